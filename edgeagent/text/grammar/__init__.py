"""The required form of an answer, as constraints on its tokens."""
