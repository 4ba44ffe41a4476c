"""A model's own process: the child, its supervisor and the messages between them."""
