"""OpenAI's Realtime API with text, on top of the session of the Responses API."""
