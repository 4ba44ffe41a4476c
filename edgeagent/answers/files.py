"""What the files of a model say about its answers: whether they changed, and whether the chat template shows the date.

Each function reads the disk: call it in a thread.
"""

from __future__ import annotations

import logging
import re
from datetime import datetime
from pathlib import Path

from edgeagent.errors import EdgeAgentError, StoreError
from edgeagent.store.file_records import sha256_of
from edgeagent.store.gguf.header import read_header
from edgeagent.store.names.parsing import split_paths
from edgeagent.worker.parent.pool.loading import identity

logger = logging.getLogger(__name__)

_PATTERNS = re.compile(r"strftime_now\(\s*(['\"])(?P<pattern>[^'\"]*)\1\s*\)")
_OF_A_DATE = re.compile(r"(?:[^%]|%[-_0^#]*[aAbBCdDeFgGhjmnuUVwWyY%])*")
_MAX_MODELS = 256


class Clocks:
    """Whether the chat templates of models show the date, by the models' files. One thread owns it."""

    def __init__(self) -> None:
        self._days: dict[tuple[str, str], bool | None] = {}

    def day(self, path: Path, identity_: str, now: datetime) -> str | None:
        """Return the date for a question to a model whose template shows it; "" if its template shows none.

        None: the template shows the time of day, or the file cannot be read. Its answers are not kept.
        """
        place = (str(path), identity_)
        if place not in self._days:
            if len(self._days) >= _MAX_MODELS:
                self._days.clear()
            self._days[place] = _shows_day(path)
        shows_day = self._days[place]
        if shows_day is None:
            return None
        return now.strftime("%Y-%m-%d") if shows_day else ""


def identity_of(model: Path, adapter: Path | None) -> str:
    """Return a value that changes when the file of the model or the adapter does; "" if one cannot be reached."""
    found = [identity(path) for path in (model, adapter) if path is not None]
    return " ".join(found) if all(found) else ""


def content_of(model: Path, adapter: Path | None) -> str:
    """Return the hash of the model's and the adapter's files; "" if one cannot be read.

    It takes as long as reading them; after that, only what has changed is read again.
    """
    paths = [*split_paths(model), *([] if adapter is None else [adapter])]
    try:
        return " ".join(map(sha256_of, paths))
    except (StoreError, OSError) as error:
        logger.warning("answers of %s are not kept: its file cannot be read: %s", model.name, error)
        return ""


def shows_day(template: str) -> bool | None:
    """Whether a chat template shows the date; None if it shows the time of day, or may."""
    if "strftime_now" not in template:
        return False
    patterns = [match["pattern"] for match in _PATTERNS.finditer(template)]
    num_known = len(patterns) + template.count("strftime_now is ")
    is_date = num_known == template.count("strftime_now") and all(map(_OF_A_DATE.fullmatch, patterns))
    return True if is_date else None


def _shows_day(path: Path) -> bool | None:
    try:
        return shows_day(read_header(path).chat_template)
    except (EdgeAgentError, OSError) as error:
        logger.warning("answers of %s are not kept: its chat template cannot be read: %s", path.name, error)
        return None
