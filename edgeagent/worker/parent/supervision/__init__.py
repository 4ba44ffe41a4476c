"""Supervises one model's worker from start to end: its process, its frames and its requests."""
