"""Conversations: items, chains of responses and their storage, prompts, summaries. This package uses no HTTP."""
