"""The number of examples that hypothesis tries: all in the profile `full` (`make test-slow`), else a part of them.

A run tries the same examples each time, unless it has a seed (rotation.py).
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_PART = 8
_FEWEST = 9

# On a busy machine any example may be slow.
_SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", _SLOW, max_examples=100)
settings.register_profile("quick", _SLOW, max_examples=100 // _PART, derandomize=True)
settings.load_profile("quick")


def examples(number: int, fewest: int = _FEWEST) -> int:
    """Return how many of `number` examples to try in this run; runs in the profile `full` try different ones.

    `fewest`: how many are tried in any run.
    """
    is_full = settings.get_current_profile_name() == "full"
    return number if is_full else max(min(number, fewest), number // _PART)
