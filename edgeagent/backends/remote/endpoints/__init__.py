"""The endpoints of a remote: how each fares, and which one a request goes to."""
