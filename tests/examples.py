"""How many examples hypothesis tries: all of a test's in the profile `full` (`make test-slow`), else a part of them."""

from __future__ import annotations

from hypothesis import settings

_PART = 3
_FEWEST = 6

# A busy machine makes any example slow.
settings.register_profile("full", deadline=None, max_examples=100)
settings.register_profile("quick", deadline=None, max_examples=100 // _PART)
settings.load_profile("quick")


def examples(number: int) -> int:
    """Return how many of so many examples to try in this run; each run that is not derandomized tries others."""
    return number if settings.get_current_profile_name() == "full" else max(_FEWEST, number // _PART)
