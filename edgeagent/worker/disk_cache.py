"""What of the disk the daemon lets a worker use for its cache: a folder, bounds, and the installation's secret."""

from __future__ import annotations

import logging

from edgeagent.cache_folder import ensure_private, ensure_secret
from edgeagent.config import Config
from edgeagent.errors import ConfigError
from edgeagent.worker.protocol import DiskCache

_DAY_S = 86400.0
_MIN_CLOSE_S = 1.0  # also for who drains nothing: the end of a conversation takes no longer to write

logger = logging.getLogger(__name__)


def prepare_disk_cache(config: Config) -> DiskCache | None:
    """Make the folder and the secret; None where none is wanted, or no secret can be kept."""
    if config.cache.disk_bytes == 0:
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
        max_bytes=config.cache.disk_bytes,
        min_free_bytes=config.cache.min_free_bytes,
        max_unused_s=config.cache.max_unused_days * _DAY_S,
        max_bytes_per_hour=config.cache.max_bytes_per_hour,
        close_s=max(_MIN_CLOSE_S, config.server.drain_s),
    )
