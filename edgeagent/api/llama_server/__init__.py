"""The routes of llama-server that OpenAI's API does not have: completions, infill, embeddings, properties, slots,
tokens, templates, rerank."""
