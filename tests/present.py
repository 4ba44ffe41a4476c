"""A check that a value exists."""

from __future__ import annotations

from typing import TypeVar

_Value = TypeVar("_Value")


def present(value: _Value | None) -> _Value:
    """Return a value; raise `AssertionError` if it is None."""
    assert value is not None
    return value
