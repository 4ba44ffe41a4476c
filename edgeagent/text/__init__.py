"""Handles text for the engine: templates, tokens to text, stop strings, tool calls, grammars. It never sees logits."""
