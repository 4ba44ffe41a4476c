"""Measures a server from outside: any OpenAI-compatible server over HTTP, and edgeagent also over WebSocket."""
