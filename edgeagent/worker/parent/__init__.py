"""The part of the worker package that runs in the daemon: a supervisor for each model's process, and their pool."""
