"""llama.cpp's own server on loopback, as a remote of the daemon; it runs the same model file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tests.cluster.processes import Program, free_ports

SERVED_NAME = "endless-there"
START_LIMIT_S = 120.0


class LlamaServer:
    """A server that can be killed, paused and started again at the same address."""

    served_name = SERVED_NAME
    certificate: Path | None = None

    def __init__(
        self, binary: Path, model: Path, folder: Path, *, seats: int, context: int, name: str = "llama-server"
    ) -> None:
        """Prepare it; each of its `seats` streams has a context of `context` tokens, and `folder` gets its log."""
        (port,) = free_ports(1)
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.key = secrets.token_hex(16)
        self._log = folder / f"{name}.log"
        self._command = [str(binary), "-m", str(model), "--alias", SERVED_NAME, "--host", "127.0.0.1"]
        self._command += ["--port", str(port), "-np", str(seats), "-c", str(seats * context)]
        self._command += ["-t", "1", "-tb", "1", "--no-webui"]
        self._program: Program | None = None

    def start(self) -> float:
        """Start it; return how many seconds it took to answer."""
        self._program = Program(self.name, self._command, dict(os.environ) | {"LLAMA_API_KEY": self.key}, self._log)
        return self._program.wait_for(f"{self.url}/health", START_LIMIT_S)

    def kill(self) -> None:
        """Kill it, as a power failure would."""
        assert self._program is not None
        self._program.kill()
        self._program = None

    def pause(self) -> None:
        """Suspend it, so that it hangs."""
        assert self._program is not None
        self._program.pause()

    def resume(self) -> None:
        """Resume it."""
        assert self._program is not None
        self._program.resume()

    def stop(self) -> None:
        """Stop it."""
        if self._program is not None:
            self._program.stop()
            self._program = None
