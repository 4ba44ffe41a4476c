"""Responses over a WebSocket: one connection, its frames, lanes and steering."""
