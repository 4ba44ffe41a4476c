"""Ollama's protocol on the same port."""
