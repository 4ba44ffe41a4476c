"""Turns tokens into what a client reads: text, reasoning and tool calls."""
