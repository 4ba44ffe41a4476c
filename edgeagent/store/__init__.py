"""Model files: their names, downloads and headers. This package does not load models."""
