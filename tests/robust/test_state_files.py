"""Files of the state folder that are damaged, swapped or of another version: the daemon serves, or says why it cannot.

The members are what a real daemon leaves in its folder, so a new kind of file is tried too. Cached blocks are row F8.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from edgeagent.credentials.keys import Scope, add_client, clients
from edgeagent.runtime_file import find_daemon
from tests.integration.conftest import start_daemon, stop_daemon
from tests.patience import patient
from tests.robust.fake_serve import command, serving

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the daemon cannot be stopped by a signal there")

MAX_LINES = 6
# Each makes its content from the file's own and that of another file.
DAMAGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "emptied": lambda own, other: b"",
    "cut": lambda own, other: own[: len(own) // 2],
    "noise": lambda own, other: bytes(range(256)) * 8,
    "swapped": lambda own, other: other,
    "of a later version": lambda own, other: own.replace(b'"version": 1', b'"version": 99').replace(b":1", b":99"),
}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state folder of a daemon that has served and ended."""
    folder = tmp_path_factory.mktemp("used") / "state"
    daemon = start_daemon(folder, "builtin")
    add_client(folder, "kiosk", [Scope.INFER])
    content = json.dumps({"input": "Hello! " * 200, "max_output_tokens": 2}).encode()
    request = urllib.request.Request(f"{daemon.url}/v1/responses", content, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=patient(60)) as reply:
        assert reply.status == 200
    stop_daemon(daemon)
    return folder


def files_of(folder: Path) -> list[Path]:
    """Return the folder's files, without cached blocks and the locks that the kernel holds."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in found if path.suffix not in (".lock", ".kv") and path.name != "lock")


def outcome(folder: Path, log: Path) -> str:
    """Start a daemon; return "serves" if it answers a request, otherwise what it said at its end."""
    with log.open("wb") as output:
        process = subprocess.Popen(command(folder), stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            with suppress(Exception):
                if (runtime := find_daemon(folder)) is not None and runtime.pid == watched.pid:
                    return "serves" if asked(runtime.url) else "does not serve"
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        return log.read_text()
    finally:
        process.terminate()
        process.wait(patient(20))


def asked(url: str) -> bool:
    content = json.dumps({"input": "hi"}).encode()
    request = urllib.request.Request(f"{url}/v1/responses", content, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=patient(60)) as reply:
        return bool(reply.status == 200)


def damaged(used: Path, copy: Path, damage: Callable[[bytes, bytes], bytes]) -> Iterator[tuple[str, Path]]:
    """Damage each file, in a copy of the folder; yield the name of the case."""
    names = files_of(used)
    for index, name in enumerate(names):
        own, other = (used / name).read_bytes(), (used / names[index - 1]).read_bytes()
        if (content := damage(own, other)) == own:
            continue
        shutil.copytree(used, copy, copy_function=shutil.copy2)
        copy.chmod(0o700)
        (copy / name).write_bytes(content)
        yield str(name), copy
        shutil.rmtree(copy)


EARLIER = Path(__file__).with_name("state_0_1")
"""What a daemon of version 0.1.0 left: a token, a client with a token, and a response (the database as text)."""


def test_the_state_of_an_earlier_version_is_used(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir(0o700)
    for name in ("token", "clients.json"):
        shutil.copy(EARLIER / name, folder)
        (folder / name).chmod(0o600)
    with closing(sqlite3.connect(folder / "responses.sqlite3")) as database:
        database.executescript((EARLIER / "responses.sql").read_text())
        database.execute("UPDATE responses SET created_s = ?", (time.time(),))  # it would be too old
        database.commit()
        (name,) = database.execute("SELECT id FROM responses").fetchone()
    with serving(folder) as daemon:
        headers = {"Authorization": f"Bearer {(EARLIER / 'token').read_text().strip()}"}
        stored = httpx.get(f"{daemon.runtime.url}/v1/responses/{name}", headers=headers)
        assert stored.status_code == 200 and stored.json()["metadata"] == {"of": "0.1.0"}
        more = {"input": "Which word?", "previous_response_id": name}
        assert httpx.post(f"{daemon.runtime.url}/v1/responses", json=more, headers=headers).status_code == 200
    assert [(client.name, client.scopes) for client in clients(folder)] == [("kiosk", frozenset({Scope.INFER}))]
    assert folder.with_suffix(".log").read_text().count("Traceback") == 0
    assert not list(folder.glob("*.damaged"))


@pytest.mark.timeout(300)
@pytest.mark.slow(seconds=14)
@pytest.mark.parametrize("way", DAMAGES)
def test_damaged_files_cost_what_they_hold_and_no_more(used: Path, tmp_path: Path, way: str) -> None:
    log, bad = tmp_path / "log", dict[str, str]()
    for case, folder in damaged(used, tmp_path / "state", DAMAGES[way]):
        said = outcome(folder, log)
        text = log.read_text()
        is_told = said == "serves" or (said.startswith("error: ") and len(said.splitlines()) <= MAX_LINES)
        if not is_told or "Traceback" in text:
            bad[case] = text[-1000:]
    assert bad == {}
