"""One model's worker, from its start to its end: its process, its frames and its requests."""
