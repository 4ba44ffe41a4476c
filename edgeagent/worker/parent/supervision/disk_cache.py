"""The log of the problems that a worker has with its disk cache."""

from __future__ import annotations

import logging
import re

from edgeagent.types import WorkerStatus
from edgeagent.worker.exit_cause import one_line, read_unwritten

# The least seconds from one log entry to the next: for the same problem, and for a different one.
_SAME_EVERY_S, _OTHER_EVERY_S = 3600.0, 60.0

logger = logging.getLogger(__name__)


class TroubleLog:
    """Logs a worker's problems with its disk cache, since the worker itself cannot write to the log."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._latest = ""
        self._told_at_s = float("-inf")

    def note(self, status: WorkerStatus, now_s: float) -> None:
        """Log the disk cache's problem, if any: the same one at most once an hour, a new one at most once a minute."""
        if status.disk_cache is None or status.disk_cache.trouble is None:
            return
        trouble = one_line(status.disk_cache.trouble)
        kind = re.sub(r"[\d.,]+", "", trouble)  # ignore the number of free bytes, which always changes
        if now_s - self._told_at_s >= (_SAME_EVERY_S if kind == self._latest else _OTHER_EVERY_S):
            self._latest, self._told_at_s = kind, now_s
            logger.warning("%s: disk cache: %s", self._model, trouble)

    def note_end(self, stderr: str) -> None:
        """Log how many bytes a stopped worker did not write, if it reported them."""
        if num_bytes := read_unwritten(stderr):
            logger.warning(
                "%s: %.1f MiB of prompts were not written to disk before the worker had to stop; a longer "
                "server.drain_s gives it more time",
                self._model,
                num_bytes / 2**20,
            )
