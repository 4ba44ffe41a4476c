"""`edgeagent run`: a conversation in the terminal."""
