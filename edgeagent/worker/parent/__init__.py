"""The parent's side of the worker package: a supervisor for each worker process, the pool of models, and quantizing."""
