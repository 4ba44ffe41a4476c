"""What llama-server's clients ask beside OpenAI's endpoints: properties, tokens, templates."""
