"""What a daemon has for the world outside: the owner's remotes, their keys, and the ledger of what leaves."""

from __future__ import annotations

from edgeagent.config import Config
from edgeagent.egress.ledger import Ledger
from edgeagent.remotes.file import RemotesFile
from edgeagent.remotes.keys import KeyFinder
from edgeagent.router.modes import machine_mode
from edgeagent.types import RouteMode


class Outside:
    """Follows the owner's file of remotes; opens no connection. `close` releases the ledger."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.file = RemotesFile(config.state_dir)
        self.keys = KeyFinder(waits=False)
        self.ledger = Ledger(config.state_dir, self.file)
        if self.file.remotes:
            self.ledger.open()

    @property
    def mode(self) -> RouteMode:
        """Where requests may run by the machine's mode, at this moment."""
        return machine_mode(self._config, self.file)

    def close(self) -> None:
        """Release the ledger's file."""
        self.ledger.close()
