"""Model files: names, downloads, headers. Nothing here loads a model."""
