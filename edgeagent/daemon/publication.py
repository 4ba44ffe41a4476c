"""Writes the runtime file, with which this user's programs find the daemon. If that fails, it is tried again.

The file is written once the daemon listens. If it cannot be written, for example on a full disk, the daemon runs
anyway: clients that know its address can still use it.
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
    """The runtime file of a running daemon: writes it, retries after an error, and removes it."""

    def __init__(self, state_dir: Path, runtime: Runtime) -> None:
        self._state_dir = state_dir
        self._runtime = runtime
        self.trouble: str | None = None
        """Why the file could not be written, and what follows from that; None if it was written."""

    def publish(self) -> bool:
        """Write the file and return True. Return False if that fails; the first failure is logged."""
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
        """Remove the file, unless it is another daemon's."""
        remove_runtime(self._state_dir, self._runtime.pid)
