"""What models and their files are called. Nothing here reads a model."""
