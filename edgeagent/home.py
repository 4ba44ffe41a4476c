"""Expands `~` in paths."""

from __future__ import annotations

import contextlib
from pathlib import Path


def with_home(path: Path) -> Path:
    """Return a path with `~` or `~user` expanded. If there is no such user, the path is returned unchanged."""
    with contextlib.suppress(RuntimeError):
        return path.expanduser()
    return path
