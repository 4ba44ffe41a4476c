"""The parent's side of the worker package: a supervisor for each worker process, and the pool of models."""
