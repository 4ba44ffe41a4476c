"""The wire: HTTP and WebSocket shapes, who may ask, error bodies. It does not depend on where a request runs."""
