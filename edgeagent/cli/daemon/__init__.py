"""The commands that start, show and control the daemon."""
