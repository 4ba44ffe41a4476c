"""Conversations: their items, chains of responses, the store of responses, prompts, summaries. No HTTP is used here."""
