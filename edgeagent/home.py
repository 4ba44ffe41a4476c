"""Expands `~` in paths."""

from __future__ import annotations

import contextlib
from pathlib import Path


def with_home(path: Path) -> Path:
    """Return a path with `~` or `~user` expanded; unchanged if no user has that name, so that no file is found."""
    with contextlib.suppress(RuntimeError):
        return path.expanduser()
    return path
