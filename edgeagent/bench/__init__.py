"""Measures a server as a client: any OpenAI-compatible server over HTTP, and edgeagent also over WebSocket."""
