"""Turns a conversation into a prompt, with the chat template of the model."""
