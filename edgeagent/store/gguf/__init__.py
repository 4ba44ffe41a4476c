"""GGUF files: their headers, read within bounds, and what a header tells."""
