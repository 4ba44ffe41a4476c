"""The connections to remotes. Only `transport` sends anything to them."""
