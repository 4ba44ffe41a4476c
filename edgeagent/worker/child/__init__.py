"""The code of the model's process. It turns requests into frames, and converts between text and the engine's tokens."""
