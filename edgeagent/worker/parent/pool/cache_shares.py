"""Divides the limits of the disk cache among the models, and gives each worker its folder."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from edgeagent import cache_folder
from edgeagent.cache_retention import evict_unused
from edgeagent.config import Config
from edgeagent.errors import ConfigError
from edgeagent.worker.parent.pool.known_prefixes import KnownPrefixes
from edgeagent.worker.protocol import DiskCache, DiskShare

# Eviction by `cache.disk_bytes` comes first on a busy machine. This is for prompts that are no longer sent.
_MAX_UNUSED_S = 7 * 86400.0
_MIN_CLOSE_S = 1.0  # the least time for closing, even if drain_s is shorter: enough to write a conversation's end
_HOUR_S = 3600.0
# After a model was unloaded. Until then, its worker may still hold the lock of its folder.
_AFTER_UNLOAD_S = 60.0

logger = logging.getLogger(__name__)


class CacheShares:
    """The models' shares of the disk cache.

    Bytes: a model may take what the other loaded models leave, and at least an equal part of the limit. Blocks of
    models that are not loaded give way to those of the loaded ones. Writes: the bytes of an hour are divided equally
    among the models that were loaded in the last hour.
    """

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._num_bytes: Mapping[Path, int] = {}  # by folder, of the loaded models
        self._loaded_at_s: dict[Path, float] = {}  # when a folder's model was last seen loaded
        self._identities: dict[Path, str] = {}  # of the folders that workers got
        # Of the models that are not loaded, as of the latest eviction; 0 if only pinned blocks were left.
        self._unused_bytes = 0
        self._is_first = True
        self._due_s = clock()

    def prepare(self, model: Path) -> DiskCache | None:
        """Create the model's cache folder and the secret if they are missing; return the settings for its worker.

        Return None if no disk cache is configured. If the folder or the secret cannot be used, log why and return None.
        Call this in a thread: it reads the disk.
        """
        config = self._config
        if config.max_cache_bytes == 0:
            return None
        cache_dir = config.cache_dir.absolute()
        try:
            secret = cache_folder.ensure_secret(config.state_dir)
            folder = cache_folder.model_folder(cache_dir, model, secret)
            _make(folder)
            os.utime(folder)  # so that it is not removed as an old empty one before the worker locks it
        except ConfigError as error:
            logger.warning("nothing is cached on disk: %s", error.message)
            return None
        except OSError as error:
            logger.warning("nothing is cached on disk: cannot use %s: %s", cache_dir, error.strerror)
            return None
        self._identities[folder] = _identity(folder)
        share = self.share_of(folder)
        return DiskCache(
            folder=str(folder),
            secret=secret,
            max_bytes=share.max_bytes,
            min_free_bytes=config.store.min_free_bytes,
            max_unused_s=_MAX_UNUSED_S,
            max_bytes_per_hour=share.max_bytes_per_hour,
            close_s=max(_MIN_CLOSE_S, config.server.drain_s),
        )

    def prefixes_of(self, model: Path) -> KnownPrefixes:
        """Return what is known of a model's prefixes on disk. Call this in a thread: it reads the disk."""
        config = self._config
        if config.max_cache_bytes == 0:
            return KnownPrefixes()
        try:
            secret = cache_folder.ensure_secret(config.state_dir)
        except ConfigError:  # `prepare` logs it
            return KnownPrefixes()
        return KnownPrefixes(secret, cache_folder.model_folder(config.cache_dir.absolute(), model, secret))

    def is_replaced(self, folder: Path) -> bool:
        """Create a worker's folder again if it is missing. Return whether it differs from the one that the worker got.

        A worker cannot use a new folder, because its sandbox is bound to the old one. Call this in a thread: it reads
        the disk.
        """
        with contextlib.suppress(OSError):  # tried again at the next call
            _make(folder)
        found = _identity(folder)
        return found not in ("", self._identities.get(folder, found))

    def share_of(self, folder: Path) -> DiskShare:
        """Return how many bytes the model with this folder may have on disk now, and write in an hour."""
        limit = self._config.max_cache_bytes
        others = {other: num_bytes for other, num_bytes in self._num_bytes.items() if other != folder}
        max_bytes = max(limit // (len(others) + 1), limit - sum(others.values()))
        since_s = self._clock() - _HOUR_S
        num_writers = len({folder} | {other for other, at_s in self._loaded_at_s.items() if at_s >= since_s})
        return DiskShare(max_bytes, -(-self._config.cache.max_bytes_per_hour // num_writers))

    def note_loaded(self, num_bytes: Mapping[Path, int]) -> None:
        """Note the folders of all loaded models, with the bytes that their blocks take."""
        if self._num_bytes.keys() - num_bytes.keys():
            self._due_s = min(self._due_s, self._clock() + _AFTER_UNLOAD_S)
        self._num_bytes = num_bytes
        # A new dict, since `prepare` reads it in another thread.
        self._loaded_at_s = self._loaded_at_s | dict.fromkeys(num_bytes, self._clock())

    def evict_if_due(self) -> None:
        """Evict blocks of models that are not loaded, once an hour and whenever room is needed.

        Call this in a thread: it reads the disk.
        """
        config = self._config
        cache_dir, min_free_bytes = config.cache_dir.absolute(), config.store.min_free_bytes
        left = max(0, config.max_cache_bytes - sum(self._num_bytes.values()))
        if config.max_cache_bytes == 0:
            return
        try:
            if not (self._clock() >= self._due_s or self._needs_room(left)):
                return
            self._due_s = self._clock() + _HOUR_S
            if self._is_first:
                self._remove_old(cache_dir)
            self._unused_bytes = evict_unused(
                cache_dir, max_bytes=left, min_free_bytes=min_free_bytes, ttl_s=_MAX_UNUSED_S
            )
            if self._needs_room(left):
                self._unused_bytes = 0  # the rest is pinned
        except OSError as error:
            logger.warning("the cache folder %s cannot be kept in order: %s", cache_dir, error.strerror)

    def _needs_room(self, left_bytes: int) -> bool:
        """Whether blocks of models that are not loaded must go. `left_bytes`: how many bytes may stay."""
        if self._unused_bytes == 0:
            return False
        free_bytes = shutil.disk_usage(self._config.cache_dir).free
        return self._unused_bytes > left_bytes or free_bytes < self._config.store.min_free_bytes

    def _remove_old(self, cache_dir: Path) -> None:
        """Remove the blocks of versions of edgeagent that kept those of all models in one folder."""
        self._is_first = False
        if cache_dir.is_dir() and (num_blocks := cache_folder.remove_files(cache_dir)):
            logger.info("%d cached blocks of an older version were removed from %s", num_blocks, cache_dir)


def _make(folder: Path) -> None:
    """Create a model's folder and the cache folder above it, private to this user. Raise OSError if that fails."""
    cache_folder.ensure_private(folder.parent)
    cache_folder.ensure_private(folder)


def _identity(folder: Path) -> str:
    """Return a value that changes when the folder is replaced; "" if it cannot be reached."""
    try:
        status = folder.stat()
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}"
