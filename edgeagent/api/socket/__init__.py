"""A WebSocket for any protocol: frames in, actions out, an outbox with back-pressure, and the pump that drives them."""
