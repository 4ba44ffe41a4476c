"""From tokens to what a client reads: text, reasoning, tool calls."""
