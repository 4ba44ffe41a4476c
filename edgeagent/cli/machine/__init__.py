"""The commands about this machine: its settings, its policy, what is installed, and what is wrong."""
