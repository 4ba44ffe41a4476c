"""Sends every hostile name to every route that takes one; prints statuses and opened paths: `python -m … FOLDER`.

It is a separate process, since an audit hook cannot be removed.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from edgeagent.store.hub import pull
from edgeagent.store.hub.pull import Puller
from tests.robust import asgi
from tests.robust.name_vectors import WIRE_NAMES

opened: set[str] = set()


def note(event: str, arguments: tuple[Any, ...]) -> None:
    """Record each path that is opened, listed, created, renamed or removed."""
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink"):
        for argument in arguments[:2]:
            if isinstance(argument, str | bytes):
                opened.add(os.path.abspath(os.fsdecode(argument)))  # noqa: PTH100 links stay as they are


def ask(caller: asgi.Caller, name: str) -> list[tuple[str, int]]:
    """Send a name to every route that takes one; return each route with its status."""
    user = {"role": "user", "content": "hi"}
    bodies: list[tuple[str, Any]] = [
        ("/api/show", {"model": name}),
        ("/api/copy", {"source": name, "destination": "copied"}),
        ("/api/copy", {"source": "fake", "destination": name}),
        ("/api/pull", {"model": name, "stream": False}),
        ("/v1/models/pull", {"model": name, "stream": False}),
        ("/api/chat", {"model": name, "messages": [user], "stream": False}),
        ("/v1/chat/completions", {"model": name, "messages": [user]}),
        ("/v1/responses", {"model": name, "input": "hi"}),
        ("/v1/responses", {"model": "fake", "input": "hi", "previous_response_id": name}),
    ]
    answers = [(path, caller.post(path, body)) for path, body in bodies]
    answers.append(("/api/delete", caller.delete("/api/delete", {"model": name})))
    answers += [(path, caller.get(path + name)) for path in ("/v1/models/", "/v1/responses/", "/")]
    return [(path, int(answer.status)) for path, answer in answers]


def main(folder: Path) -> None:
    """Print the paths opened beyond those for a harmless name, and the statuses."""
    nowhere = partial(Puller, endpoint="http://127.0.0.1:9")
    pull.Puller = nowhere  # type: ignore[assignment, misc]
    pull.RETRY_WAIT_S = 0.0
    asgi.STATE_DIR = folder
    with asgi.calling() as caller:
        for harmless in ("org/repo", "org/repo:Q4_0", "fake", "nothing"):
            ask(caller, harmless)
        sys.addaudithook(note)
        statuses: dict[str, dict[int, list[str]]] = {}
        for name in WIRE_NAMES:
            for path, status in ask(caller, name):
                statuses.setdefault(path, {}).setdefault(status, []).append(name)
        foreign = sorted(path for path in opened if not Path(path).is_relative_to(folder))
        print(json.dumps({"statuses": statuses, "opened": foreign}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
