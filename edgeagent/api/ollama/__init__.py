"""Ollama's API, on the same port as OpenAI's."""
