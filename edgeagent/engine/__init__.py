"""The engine: token ids in, token ids out, one batch at a time. It knows no text, no process and no network."""
