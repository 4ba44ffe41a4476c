"""Chooses the form of attention, the micro-batch and the padding for a model, by measurements on this machine."""
