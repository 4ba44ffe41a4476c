"""Runs each model in its own process: the child, its supervisor, the pool of models, and the messages."""
