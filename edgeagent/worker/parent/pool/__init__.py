"""The models of this machine: which are loaded, and which must make room."""
