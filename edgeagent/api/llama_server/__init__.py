"""llama-server's completions, infill, properties, slots, tokens and templates. Its /embedding and /v1/rerank are in
`openai.embeddings`."""
