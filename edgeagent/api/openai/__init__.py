"""OpenAI's older endpoints: chat completions, completions, embeddings, models."""
