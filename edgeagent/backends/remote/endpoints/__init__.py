"""The endpoints of a remote: the health and speed of each, and the choice among them for a request."""
