"""A model's chat template, run in a process of its own."""
