"""A remote that computes nothing: `python -m tests.cluster.scripted PORT` answers each request at a constant rate.

On a machine with all cores busy, it stands in for a cluster on its own hardware.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from pathlib import Path

from tests.backends.remote.fault_server import Asked, FaultServer, Script, models, stream
from tests.backends.remote.streams import DONE, ROLE, chunk, usage
from tests.cluster.processes import Program, free_ports

SERVED_NAME = "tiny"
TOKEN_S = 0.02
START_LIMIT_S = 60.0


class Scripted:
    """The program, as a remote of the daemon."""

    name = "scripted"
    served_name = SERVED_NAME
    certificate: Path | None = None

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.key = secrets.token_hex(16)
        self._port, self._log = port, folder / "scripted.log"
        self._program: Program | None = None

    def start(self) -> float:
        """Start it; return how many seconds it took to answer."""
        command = [sys.executable, "-m", "tests.cluster.scripted", str(self._port)]
        self._program = Program(self.name, command, dict(os.environ), self._log)
        return self._program.wait_for(f"{self.url}/v1/models", START_LIMIT_S)

    def stop(self) -> None:
        """Stop it."""
        if self._program is not None:
            self._program.stop()
            self._program = None


class _Answers(FaultServer):
    """Sends each request as many tokens as it allows."""

    def _script(self, asked: Asked) -> Script:
        if asked.method == "GET":
            return super()._script(asked)
        most = int(asked.json.get("max_tokens") or asked.json["max_completion_tokens"])
        tokens = [chunk({"content": " word"}) for _ in range(most)]
        return stream(ROLE, *tokens, chunk(finish="length"), usage(output=most), DONE)


async def serve(port: int) -> None:
    """Answer forever."""
    answers = _Answers(gets={"/v1/models": models(SERVED_NAME)})
    answers.pace_s = TOKEN_S
    async with await asyncio.start_server(answers.serve, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
