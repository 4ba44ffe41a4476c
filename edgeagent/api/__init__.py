"""The wire: HTTP and WebSocket shapes, who may ask, error bodies. It does not know where a request runs."""
