"""The local and the remote backends, which generate answers behind one protocol."""
