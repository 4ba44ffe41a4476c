"""Requests as remotes take them, in either of OpenAI's protocols."""
