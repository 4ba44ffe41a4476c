"""What every protocol shares: how bodies are read, errors, usage, event streams, fields of llama.cpp."""
