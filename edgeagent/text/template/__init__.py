"""From a conversation to a prompt, with the chat template of the model."""
