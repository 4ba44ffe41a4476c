"""How many examples hypothesis tries: all of a test's in the profile `full` (`make test-slow`), else a part of them.

An ordinary run tries the same ones each time; a whole run gives a share of the tests others (rotation.py).
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

_PART = 3
_FEWEST = 18

# A busy machine makes any example slow.
_SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", _SLOW, max_examples=100)
settings.register_profile("quick", _SLOW, max_examples=100 // _PART, derandomize=True)
settings.load_profile("quick")


def examples(number: int) -> int:
    """Return how many of so many examples to try in this run; each run in the profile `full` tries others."""
    is_full = settings.get_current_profile_name() == "full"
    return number if is_full else max(min(number, _FEWEST), number // _PART)
