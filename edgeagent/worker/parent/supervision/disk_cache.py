"""The daemon's side of a worker's disk cache: its folder, limits and secret, and the log of its problems."""

from __future__ import annotations

import logging
import re

from edgeagent.cache_folder import ensure_private, ensure_secret
from edgeagent.config import Config
from edgeagent.errors import ConfigError
from edgeagent.types import WorkerStatus
from edgeagent.worker.exit_cause import one_line, read_unwritten
from edgeagent.worker.protocol import DiskCache

# Eviction by `cache.disk_bytes` comes first on a busy machine. This is for prompts that are no longer sent.
_MAX_UNUSED_S = 7 * 86400.0
_MIN_CLOSE_S = 1.0  # the least time for closing, even if drain_s is shorter: enough to write a conversation's end
# The least seconds from one log entry to the next: for the same problem, and for a different one.
_SAME_EVERY_S, _OTHER_EVERY_S = 3600.0, 60.0

logger = logging.getLogger(__name__)


def prepare_disk_cache(config: Config) -> DiskCache | None:
    """Create the cache folder and the secret if they are missing, and return the settings of the disk cache.

    Return None if no disk cache is configured. If the folder or the secret cannot be used, log why and return None.
    """
    if config.max_cache_bytes == 0:
        return None
    folder = config.cache_dir.absolute()
    try:
        secret = ensure_secret(config.state_dir)
        ensure_private(folder)
    except ConfigError as error:
        logger.warning("nothing is cached on disk: %s", error.message)
        return None
    except OSError as error:
        logger.warning("nothing is cached on disk: cannot use %s: %s", folder, error.strerror)
        return None
    return DiskCache(
        folder=str(folder),
        secret=secret,
        max_bytes=config.max_cache_bytes,
        min_free_bytes=config.store.min_free_bytes,
        max_unused_s=_MAX_UNUSED_S,
        max_bytes_per_hour=config.cache.max_bytes_per_hour,
        close_s=max(_MIN_CLOSE_S, config.server.drain_s),
    )


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
