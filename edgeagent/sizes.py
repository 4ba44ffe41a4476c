"""Sizes as people write them."""

from __future__ import annotations


def size_text(num_bytes: float) -> str:
    """Return a size in powers of ten, as disks are sold."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes:.0f} B"
