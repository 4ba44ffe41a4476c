"""Readers of the answers that remotes stream, in either of OpenAI's protocols."""
