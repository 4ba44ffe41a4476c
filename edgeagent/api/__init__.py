"""The wire protocols: JSON over HTTP and WebSocket, access control, errors. Independent of where a request runs."""
