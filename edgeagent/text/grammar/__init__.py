"""Turns the required form of an answer into constraints on its tokens."""
