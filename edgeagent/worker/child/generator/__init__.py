"""The worker of a model that generates."""
