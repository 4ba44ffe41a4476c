"""Which model each name stands for, of the names that requests gave. It knows no files; its owner finds the models."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_MAX_NAMES = 4096


class KnownNames:
    """The names of models that were found. Any other name stands for itself.

    `stamp` changes whenever the owner gives or takes a name: then each name is looked up again. It is asked for each
    request, so it must be quick.
    """

    def __init__(self, stamp: Callable[[], object]) -> None:
        self._stamp = stamp
        self._seen = stamp()
        self._fixed: dict[str, str] = {}
        self._found: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        """Return the model that a name stands for."""
        return self._fixed.get(name) or self._found.get(name, name)

    def fix(self, names: Iterable[str], model: str) -> None:
        """Let names stand for a model as long as the daemon runs."""
        self._fixed |= dict.fromkeys(names, model)

    def add(self, name: str, model: str) -> None:
        """Note which model a name was found to stand for."""
        if len(self._found) >= _MAX_NAMES:  # clients may spell a name in many ways
            self._found.clear()
        self._found[name] = model

    def forget(self, model: str) -> None:
        """Forget which names were resolved to a model."""
        self._found = {name: found for name, found in self._found.items() if found != model}

    def refresh(self) -> None:
        """Forget what was found if the owner's names have changed since."""
        if (now := self._stamp()) != self._seen:
            self._seen = now
            self._found.clear()
