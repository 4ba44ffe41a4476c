"""Checks clients' JSON schemas and changes them into a form that the grammar compiler accepts."""
