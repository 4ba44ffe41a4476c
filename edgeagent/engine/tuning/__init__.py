"""Chooses the form of attention and the micro-batch for a model, by measurements on this machine."""
