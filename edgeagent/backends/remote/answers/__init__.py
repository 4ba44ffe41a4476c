"""Readers of the answers that remotes stream."""
