"""Drafters, and how many tokens to draft."""
