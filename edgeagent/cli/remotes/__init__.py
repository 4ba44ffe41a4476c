"""The commands about remotes: list and change them, set their limits, and show what was sent to them."""
