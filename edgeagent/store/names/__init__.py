"""The names of models and of their files. This package does not read models."""
