"""The engine: token ids in, token ids out, one batch at a time. It does not handle text, processes or the network."""
