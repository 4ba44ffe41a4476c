"""When each model was last loaded: a file of the state folder for each, whose date it is."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from pathlib import Path

_FOLDER = "last-use"


class LastUse:
    """The dates of the models' last loads. Without a writable state folder there are none."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / _FOLDER

    def note(self, model: Path) -> None:
        """Note that a model is loaded now."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._mark(model).touch(mode=0o600)

    def age_s(self, model: Path) -> float | None:
        """Return how long ago a model was last loaded; None where that is not known."""
        try:
            return max(0.0, time.time() - self._mark(model).stat().st_mtime)
        except OSError:
            return None

    def forget(self, model: Path) -> None:
        """Drop what is known of a model."""
        with suppress(OSError):
            self._mark(model).unlink()

    def _mark(self, model: Path) -> Path:
        # The digest of the path as the store gives it: paths are too long for file names.
        return self._folder / hashlib.sha256(str(model.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
