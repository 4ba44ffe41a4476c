"""Planted faults: small changes of the source, each of which a test should notice (`make mutants`)."""
