"""The names of models and of their files. Nothing here reads a model."""
