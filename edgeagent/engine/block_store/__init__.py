"""Blocks on disk: a tier below host memory that outlives the process."""
