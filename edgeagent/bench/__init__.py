"""Measures a server from outside, over its wire: any OpenAI-compatible one over HTTP, edgeagent over WebSocket too."""
