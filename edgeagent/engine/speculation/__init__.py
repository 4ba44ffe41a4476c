"""Speculative decoding: sources of draft tokens, and decisions on how many tokens to draft."""
