"""Predicts from a file's header how much memory a model takes, and chooses settings with which it fits.

The functions are pure: the memory of the machine is an argument.
"""
