"""OpenAI's older endpoints: chat completions, completions, embeddings, models. Also health, readiness and version."""
