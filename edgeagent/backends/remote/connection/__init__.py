"""The connections to remotes. `transport` is the only way out."""
