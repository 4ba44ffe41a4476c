"""Stores when each model was last loaded, as the modification time of one file per model in the state folder."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path

_FOLDER = "last-use"


class LastUse:
    """The times of the models' last loads. Without a writable state folder nothing is stored."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / _FOLDER

    def note(self, model: Path) -> None:
        """Record that a model is loaded now."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._mark(model).touch(mode=0o600)

    def age_s(self, model: Path) -> float | None:
        """Return the seconds since a model was last loaded; None if unknown."""
        try:
            return max(0.0, time.time() - self._mark(model).stat().st_mtime)
        except OSError:
            return None

    def forget(self, model: Path) -> None:
        """Forget when a model was last loaded."""
        with suppress(OSError):
            self._mark(model).unlink()

    def _mark(self, model: Path) -> Path:
        # A digest of the path, because a path can be too long for a file name.
        return self._folder / hashlib.sha256(str(model.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
