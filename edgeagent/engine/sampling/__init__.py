"""From logits to one token: candidates, penalties, cuts and constraints."""
