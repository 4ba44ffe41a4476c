"""The commands that start the daemon, or ask it and change what it has."""
