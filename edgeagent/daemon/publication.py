"""Writes the runtime file daemon.json, in which this user's programs find the daemon's address.

The file is written once the daemon listens. If it cannot be written, for example on a full disk, the daemon tries again
every second. It runs anyway, since clients that know its address can use it.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from edgeagent.errors import ConfigError
from edgeagent.runtime_file import Runtime, remove_runtime, write_runtime

RETRY_S = 1.0

logger = logging.getLogger(__name__)


class Publication:
    """Writes and removes the runtime file of a running daemon."""

    def __init__(self, state_dir: Path, runtime: Runtime) -> None:
        self._state_dir = state_dir
        self._runtime = runtime
        self.trouble: str | None = None
        """Why the last write failed, and what follows from that. None if it did not fail, or if none was tried."""

    def publish(self) -> bool:
        """Write the file, and return whether that succeeded. Of failures in a row, only the first is logged."""
        try:
            write_runtime(self._state_dir, self._runtime)
        except ConfigError as error:
            if self.trouble is None:
                logger.warning(
                    "%s; requests to %s are served, but the command line and other programs do not find this daemon "
                    "until the file can be written, which is tried every second",
                    error.message,
                    self._runtime.url,
                )
            self.trouble = f"{error.message}; programs that look for this daemon in the state folder do not find it"
            return False
        if self.trouble is not None:
            logger.info("daemon.json is written: programs find this daemon again")
            self.trouble = None
        return True

    async def retry_until_published(self) -> None:
        """Try every second until the file is written."""
        while True:
            await asyncio.sleep(RETRY_S)
            if await asyncio.to_thread(self.publish):
                return

    def withdraw(self) -> None:
        """Remove the file if it is this daemon's own."""
        remove_runtime(self._state_dir, self._runtime.pid)
