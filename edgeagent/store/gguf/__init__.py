"""Reads the headers of GGUF files within bounds, and derives a model's properties from them."""
