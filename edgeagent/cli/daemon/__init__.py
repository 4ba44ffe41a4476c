"""The commands that start the daemon, show its state, or change it."""
