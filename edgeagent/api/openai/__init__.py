"""OpenAI's API except Responses: chat and text completions, embeddings, models. Also health, readiness and version."""
