"""Formats and parses sizes in bytes."""

from __future__ import annotations

import re


def size_text(num_bytes: float) -> str:
    """Return a size as text in decimal units (kB, MB, GB), which are usual for disks."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes:.0f} B"


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def memory_text(num_bytes: float) -> str:
    """Return a size as text in binary units (KiB, MiB, GiB), which are usual for memory."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes:.0f} B"


def memory_bytes(text: str) -> int:
    """Return the bytes of a size such as 8G, 8GB or 8GiB; raise ValueError for other texts. Units are powers of two."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 8G or 512M")
    return int(float(match[1]) * _UNITS[match[2].upper()])
