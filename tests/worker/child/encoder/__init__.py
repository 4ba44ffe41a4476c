"""Tests of the worker of models that read whole texts."""
