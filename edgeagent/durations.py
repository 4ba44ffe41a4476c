"""Durations as people write them: 90, "90", "5m", "1h30m", 0, -1 (forever)."""

from __future__ import annotations

import math
import re

_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
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
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(match["parts"]))
    return math.inf if match["sign"] == "-" and seconds > 0 else seconds
