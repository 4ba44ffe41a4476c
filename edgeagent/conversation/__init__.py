"""Conversations: their items, chains of responses and where they are stored, prompts, summaries. They use no HTTP."""
