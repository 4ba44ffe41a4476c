"""Imported by Python itself at start."""

from tests.platforms.rename import rename

rename("darwin")
