"""The real worker, taken over: for each prompt it tries what an intruder would, and answers with how that went.

`python -P -m tests.robust.intruder` stands in for `python -P -m edgeagent.worker.process`. The prompt is JSON: what to
try it on.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from edgeagent.errors import InvalidRequest
from edgeagent.types import GenerateRequest, TextPrompt
from edgeagent.worker import process
from edgeagent.worker.host import Host, Prepared


def attempts(port: int, folder: str, secret: str, model: str) -> dict[str, Callable[[], object]]:
    """Return what to try, by name."""
    return {
        "connect": lambda: socket.create_connection(("127.0.0.1", port), timeout=5).close(),
        "resolve and send": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)),
        "unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "write a file": lambda: Path(folder, "planted").write_text("x"),
        "change the model": lambda: Path(model).open("r+b").close(),
        "delete the model": lambda: Path(model).unlink(),
        "read a secret": lambda: Path(secret).read_text(),
        "list a folder": lambda: list(Path(folder).iterdir()),
        "run a program": lambda: subprocess.run([sys.executable, "-c", "0"], check=True),
        "read the daemon's environment": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "signal the daemon": lambda: os.kill(os.getppid(), 0),
        "read the model": lambda: Path(model).read_bytes(),
        "start a process": lambda: os.waitpid(_fork(), 0),
    }


def _fork() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid


def intrude(host: Host, request: GenerateRequest, *_: object) -> Prepared:
    """Try everything; the refusal's message tells the outcomes and the environment."""
    assert isinstance(request.prompt, TextPrompt)
    outcomes = {}
    for name, attempt in attempts(**json.loads(request.prompt.text)).items():
        try:
            attempt()
            outcomes[name] = "done"
        except Exception as error:
            outcomes[name] = type(error).__name__
    raise InvalidRequest(json.dumps({"outcomes": outcomes, "environment": sorted(os.environ)}))


if __name__ == "__main__":
    Host.prepare = intrude  # type: ignore[method-assign,assignment]
    os._exit(process.main())
