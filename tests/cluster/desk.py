"""A second edgeagent on loopback, as a remote of the daemon; it runs the same model file."""

from __future__ import annotations

from pathlib import Path

from edgeagent.runtime_file import find_daemon
from tests.cluster.endless_model import LOCAL_NAME
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.present import present


class Desk:
    """A second daemon. Its port and key are known after it has started."""

    served_name = LOCAL_NAME
    certificate: Path | None = None

    def __init__(self, model: Path, folder: Path, *flags: str, name: str = "edgeagent") -> None:
        """Prepare it; `folder` gets its state."""
        self.name = name
        self.url = self.key = ""
        self._model, self._state_dir, self._flags = model, folder / name, flags
        self._daemon: Daemon | None = None

    def start(self) -> None:
        """Start it, and wait until its model is ready."""
        self._daemon = start_daemon(self._state_dir, str(self._model), "--token-required", *self._flags)
        runtime = find_daemon(self._state_dir)
        assert runtime is not None
        self.url, self.key = self._daemon.url, present(runtime.token)

    def kill(self) -> None:
        """Kill it; its worker then ends by itself."""
        assert self._daemon is not None
        self._daemon.process.kill()
        self._daemon.process.wait()
        self._daemon = None

    def stop(self) -> None:
        """Stop it."""
        if self._daemon is not None:
            stop_daemon(self._daemon)
            self._daemon = None
