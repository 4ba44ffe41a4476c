"""Tests of the worker of a model that reads whole texts."""
