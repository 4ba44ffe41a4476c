"""OpenAI's API except Responses: completions, embeddings, models. Also rerank, pulls, health, readiness and version."""
