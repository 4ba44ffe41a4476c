"""The items of conversations, and their JSON."""
