"""Stored responses: the chains that clients continue, in memory and in a file."""
