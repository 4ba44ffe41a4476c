"""The commands about remotes: which there are, what they may take, and what was sent to them."""
