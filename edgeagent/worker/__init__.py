"""The process that runs one model: the child, its supervisor and the messages between them."""
