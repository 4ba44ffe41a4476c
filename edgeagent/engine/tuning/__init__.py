"""Choices for a model by measurements on this machine: the form of attention and the micro-batch."""
