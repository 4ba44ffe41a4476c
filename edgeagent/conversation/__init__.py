"""Conversations: their items, chains of responses and where they are stored, prompts, summaries. It knows no HTTP."""
