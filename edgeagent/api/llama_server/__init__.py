"""The routes of llama-server that OpenAI's API does not have: properties, slots, tokens, templates, rerank."""
