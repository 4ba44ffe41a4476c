"""The commands about this machine: its settings, its policy, the installed versions, and problems."""
