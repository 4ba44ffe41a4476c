"""Sizes, durations and shares as people read and write them: 8 GB, 512M, 1h30m, "loading 40%"."""

from __future__ import annotations

import math
import re


def size_text(num_bytes: float) -> str:
    """Return a size as text in decimal units (kB, MB, GB), which are usual for disks."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:,.1f} {unit}"
    return f"{num_bytes:.0f} B"


_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
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
    return int(float(match[1]) * _SIZE_UNITS[match[2].upper()])


_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_TIME_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)")
# A Go duration, or a plain number of seconds.
_DURATION = re.compile(
    rf"(?P<sign>[+-]?)(?:(?P<number>{_NUMBER})|(?P<parts>(?:(?:{_NUMBER})(?:ns|us|µs|μs|ms|s|m|h))+))"
)


def seconds_of(duration: float | str) -> float:
    """Return a duration in seconds, infinity if it is negative; raise ValueError if it is not a duration."""
    if not isinstance(duration, str):
        if math.isnan(duration):
            raise ValueError("a duration is a number")
        return math.inf if duration < 0 else float(duration)
    match = _DURATION.fullmatch(duration.strip())
    if match is None:
        raise ValueError(f"{duration[:64]!r} is not a duration: give seconds, or a number and a unit, as in 5m")
    if match["number"] is not None:
        seconds = float(match["number"])
    else:
        seconds = sum(float(number) * _TIME_UNITS[unit] for number, unit in _PART.findall(match["parts"]))
    return math.inf if match["sign"] == "-" and seconds > 0 else seconds


def load_stage(progress: float) -> str:
    """Return what a load does at a progress of 0 to 1. At 1 the file was read, and the model computes a few tokens."""
    # Rounded down, so that 100% never appears while the file is still being read.
    return "checking the model" if progress >= 1 else f"loading {int(progress * 100)}%"
