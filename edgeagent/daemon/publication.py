"""Writes the runtime file daemon.json, in which this user's programs find the daemon's address.

The file is written once the daemon listens, and again if it is removed or damaged. If it cannot be written, for example
on a full disk, the daemon tries again every second. It runs anyway, since clients that know its address can use it.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from edgeagent.errors import ConfigError
from edgeagent.runtime_file import Runtime, is_published, remove_runtime, write_runtime

CHECK_S = 1.0

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

    async def keep_published(self) -> None:
        """Every second, forever: write the file if it is not there, or if it is not this daemon's."""
        while True:
            await asyncio.sleep(CHECK_S)
            if not await asyncio.to_thread(is_published, self._state_dir, self._runtime.pid):
                # Not in a thread, which could write the file after `withdraw`.
                self.publish()

    def withdraw(self) -> None:
        """Remove the file if it is this daemon's own."""
        remove_runtime(self._state_dir, self._runtime.pid)
