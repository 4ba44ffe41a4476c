"""The log of what clients are refused, bounded however many there are."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

WINDOW_S = 60.0
MAX_LINES = 20


class RefusalLog:
    """Logs refusals: one line a minute for each subject, and at most MAX_LINES lines a minute in total.

    A subject is the sender or the header that was refused. The first line of a later minute says how many refusals were
    not logged.
    """

    def __init__(self, verb: str = "refused", clock: Callable[[], float] = time.monotonic) -> None:
        """`verb`: what is done to the subjects, the first word of a line."""
        self._verb = verb
        self._clock = clock
        self._since_s = clock()
        self._logged: set[str] = set()
        self._num_left_out = 0

    def write(self, why: str, subject: str, place: str) -> None:
        """Log a refusal: the error's code or another reason, its subject, and the route (`place`)."""
        now_s = self._clock()
        left_out = ""
        if now_s - self._since_s >= WINDOW_S:
            left_out = f"; {self._num_left_out} more before were not logged" if self._num_left_out else ""
            self._since_s, self._num_left_out = now_s, 0
            self._logged.clear()
        if subject in self._logged or len(self._logged) >= MAX_LINES:
            self._num_left_out += 1
            return
        self._logged.add(subject)
        logger.warning("%s (%s): %s, at %s%s", self._verb, why, subject, place, left_out)
