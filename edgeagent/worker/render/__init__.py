"""Runs a model's chat template in a separate process."""
