"""Paths as people write them."""

from __future__ import annotations

import contextlib
from pathlib import Path


def with_home(path: Path) -> Path:
    """Return a path with `~` or `~user` filled in; as it is where nobody has that name: then there is no such file."""
    with contextlib.suppress(RuntimeError):
        return path.expanduser()
    return path
