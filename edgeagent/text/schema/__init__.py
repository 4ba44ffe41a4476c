"""Clients' JSON schemas: checked, and changed into what the grammar compiler takes."""
