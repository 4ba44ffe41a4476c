"""The wire protocols: JSON over HTTP and WebSocket, access control, errors. They do not know where a request runs."""
