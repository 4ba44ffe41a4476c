"""What runs in the model's process: requests in, frames out, text around the engine."""
