"""Remotes' answers, read from their streams, in either of OpenAI's protocols."""
