"""Restricts a worker's process before it reads untrusted files."""
