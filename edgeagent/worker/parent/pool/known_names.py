"""Maps the names in requests to models that the pool has found. This module does not search for models."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_MAX_NAMES = 4096


class KnownNames:
    """Maps names to models that were found. Any other name maps to itself.

    `stamp` returns a value that changes whenever the machine's owner adds or removes a name. After a change, the names
    that `add` mapped are forgotten. `stamp` is called for each request, so it must be fast.
    """

    def __init__(self, stamp: Callable[[], object]) -> None:
        self._stamp = stamp
        self._seen = stamp()
        self._fixed: dict[str, str] = {}
        self._found: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the model that a name maps to; the name itself if no model was found for it."""
        return self._fixed.get(name) or self._found.get(name, name)

    def fix(self, names: Iterable[str], model: str) -> None:
        """Map names to a model for as long as the daemon runs."""
        self._fixed |= dict.fromkeys(names, model)

    def add(self, name: str, model: str) -> None:
        """Map a name to the model that was found for it."""
        if len(self._found) >= _MAX_NAMES:  # clients may spell a name in many ways
            self._found.clear()
        self._found[name] = model

    def forget(self, model: str) -> None:
        """Forget all names that `add` mapped to a model."""
        self._found = {name: found for name, found in self._found.items() if found != model}

    def refresh(self) -> None:
        """Forget all names that `add` mapped, if the stamp has changed."""
        if (now := self._stamp()) != self._seen:
            self._seen = now
            self._found.clear()
