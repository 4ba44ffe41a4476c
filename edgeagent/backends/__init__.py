"""Places that generate, behind one protocol."""
