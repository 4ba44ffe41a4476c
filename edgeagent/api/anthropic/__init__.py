"""Anthropic's Messages API. `openai` has the parts that are the same."""
