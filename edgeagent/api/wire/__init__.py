"""What every protocol shares: how bodies are read, errors, usage, event streams, llama-server's fields."""
