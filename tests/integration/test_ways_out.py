"""Every way out of this machine: the ledger has a row before a byte is sent, and without a row nothing is sent.

`WAYS` and `STAYS` list every module that could send something. A new one fails the first test until it is in one of
them. The other tests go each way with real processes, to servers that look into the ledger when something arrives.
"""

from __future__ import annotations

import ast
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from edgeagent.cli import main
from edgeagent.doctor import plug_ins
from edgeagent.egress import (
    ANSWERS,
    BENCH,
    DOCTOR,
    EGRESS_FOLDER,
    ENGINE,
    FETCH,
    OWN_REASONS,
    PROBE,
    PULL,
    TRACES,
    UNFINISHED,
)
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.errors import EdgeAgentError
from tests.hub_server import HubServer, hub_server
from tests.integration.conftest import start_daemon, stop_daemon, wait_until
from tests.patience import patient
from tests.store.gguf_bytes import small_model

PACKAGE = Path(__file__).parents[2] / "edgeagent"
# What can open a connection, or start a program that can.
LIBRARIES = {
    *(
        "socket",
        "http",
        "urllib",
        "httpcore",
        "httpx",
        "httpx2",
        "huggingface_hub",
        "redis",
        "requests",
        "urllib3",
        "websockets",
    ),
    *(
        "opentelemetry",
        "aiohttp",
        "grpc",
        "smtplib",
        "ftplib",
        "imaplib",
        "poplib",
        "xmlrpc",
        "webbrowser",
        "subprocess",
    ),
}
CALLS = {
    *("open_connection", "create_connection", "create_datagram_endpoint", "sock_connect", "sock_sendto"),
    *("open_unix_connection", "create_unix_connection", "getaddrinfo", "getnameinfo", "getfqdn"),
    *("gethostbyname", "gethostbyname_ex", "gethostbyaddr"),
    *(
        "create_subprocess_exec",
        "create_subprocess_shell",
        "execv",
        "execve",
        "execvp",
        "popen",
        "posix_spawn",
        "spawnv",
    ),
}
HARMLESS = ("urllib.parse", "http.HTTPStatus", "websockets.frames", "websockets.exceptions", "websockets.http11")

# The modules that send something from this machine, and the ways of `GO` that show how.
WAYS = {
    "answers/redis_database.py": ("daemon",),
    "backends/remote/network.py": ("daemon", "remote test"),
    "backends/remote/transport.py": ("daemon", "remote test"),
    "bench/client.py": ("bench",),
    "daemon/traces.py": ("daemon",),
    "doctor/plug_ins.py": ("engine",),
    "store/hub/client.py": ("pull", "doctor"),
    "store/hub/pull.py": ("pull", "daemon"),
}
# The modules that could, and why nothing leaves by them.
LISTENS = "it listens, and talks to the systemd of this machine"
TO_ITS_DAEMON = "it asks the daemon whose address is in the state folder of this machine"
APPLICATION = "it is an application's client, which gives the address; commands give it their daemon's"
PROGRAM = "it starts a program of this machine, which the command names"
STAYS = {
    "api/gate/security.py": "it reads addresses, and looks up this machine's own name, which has no row",
    "api/wyoming/server.py": LISTENS,
    "cli/browser.py": "it hands the browser an address of this machine",
    "cli/link.py": TO_ITS_DAEMON,
    "cli/machine.py": PROGRAM,
    "cli/service.py": PROGRAM,
    "cli/settings.py": PROGRAM,
    "cli/temporary.py": PROGRAM,
    "cli/uninstall.py": PROGRAM,
    "cli/kiosk.py": PROGRAM,
    "client/background.py": APPLICATION,
    "client/choice.py": APPLICATION,
    "client/connection.py": APPLICATION,
    "client/start.py": PROGRAM,
    "daemon/lifecycle.py": LISTENS,
    "daemon/listeners.py": LISTENS,
    "daemon/peers.py": "it reads who owns a connection of this machine",
    "daemon/server.py": LISTENS,
    "doctor/native.py": PROGRAM,
    "doctor/system.py": "it asks the configured port of this machine whether an edgeagent listens there",
    "keepalive.py": "it sets options of connections",
    "quantize.py": PROGRAM,
    "store/hub/cache.py": "it takes the names of files and a lock from the library",
    "worker/parent/supervision/channel.py": "it starts the worker, whose modules are in this list too",
    "worker/sandbox/sandbox.py": PROGRAM,
}


_NAMES = re.compile(rf"\b({'|'.join(LIBRARIES | CALLS)})\b")


def _could_send(path: Path) -> bool:
    source, names = path.read_text(encoding="utf-8"), []
    if not _NAMES.search(source):  # to parse all modules takes a second
        return False
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                names += [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                names += [f"{module}.{alias.name}" for alias in node.names]
            case ast.Attribute(attr=str(attr)) if attr in CALLS:
                return True
    return any(name.split(".")[0] in LIBRARIES and not name.startswith(HARMLESS) for name in names)


def test_every_module_that_could_send_is_listed() -> None:
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if _could_send(path)}
    assert found == WAYS.keys() | STAYS.keys(), "say in WAYS which of GO shows its row, or in STAYS why nothing leaves"
    assert not WAYS.keys() & STAYS.keys()
    assert {way for ways in WAYS.values() for way in ways} == GO.keys()
    assert {reason for way in GO.values() for reason in way.reasons} >= {*OWN_REASONS, PROBE}


class Arrivals(list[Any]):
    """What arrived at a server. `reasons` has for each arrival the reasons of the rows that were open by then."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__()
        self.reasons: list[set[str]] = []
        self._folder = folder_of(state_dir)

    def note(self, host: str, what: Any, *, has_content: bool) -> None:
        """Note an arrival at a host. A probe's row is for no content."""
        rows = [row for row in read_rows(self._folder) if row.host == host and row.outcome == UNFINISHED]
        self.reasons.append({row.reason for row in rows} - ({PROBE} if has_content else set()))
        super().append(what)


class HubArrivals(Arrivals):
    """The arrivals at a hub and its storage."""

    hub: HubServer

    def append(self, request: Any) -> None:
        url = self.hub.url if request.host == "hub" else self.hub.storage_url
        self.note(urlsplit(url).netloc, request, has_content=False)


CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "far"}
DELTA = {"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": None}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
LAST = {"index": 0, "delta": {}, "finish_reason": "stop"}


class Server(ThreadingHTTPServer):
    """A remote, a collector of traces, and a page with wheels, which notes what arrives."""

    daemon_threads = True

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._note()
        if self.path == "/image":
            self._answer("image/png", "no image")
            return
        self._answer("application/json", json.dumps({"object": "list", "data": [{"id": "far", "object": "model"}]}))

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self._note()
        self.rfile.read(int(self.headers["Content-Length"]))
        if "completions" not in self.path:
            self._answer("application/json", "")
            return
        events = [{**CHUNK, "choices": [choice]} for choice in (DELTA, LAST)] + [
            {**CHUNK, "choices": [], "usage": USAGE}
        ]
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._answer("text/event-stream", "".join([*lines, "data: [DONE]\n\n"]))

    def _note(self) -> None:
        is_post = self.command == "POST"
        self.server.arrivals.note(f"127.0.0.1:{self.server.server_port}", self.path, has_content=is_post)

    def _answer(self, kind: str, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text.encode())


class Place(NamedTuple):
    """What a way needs: the state folder, and servers that watch the ledger."""

    state_dir: Path
    hub: HubServer
    server: Server
    images: Server
    monkeypatch: pytest.MonkeyPatch

    def run(self, *words: str) -> str:
        """Run a command; return what it prints."""
        command = [sys.executable, "-m", "edgeagent", *words, "--state-dir", str(self.state_dir)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=patient(100), check=False)
        return done.stdout + done.stderr


def pull(place: Place) -> list[str]:
    return [place.run("pull", "org/model-GGUF", "--models-dir", str(place.state_dir.parent / "models"))]


def doctor(place: Place) -> list[str]:
    return [place.run("doctor", "--network")]


def bench(place: Place) -> list[str]:
    flags = ("--scenario", "decode", "--rounds", "1", "--max-tokens", "8")
    return [place.run("bench", f"{place.server.url}/v1", *flags)]


def engine(place: Place) -> list[str]:
    """The command refuses an engine that was compiled here, before it asks anything."""
    place.monkeypatch.setattr(plug_ins, "installed_bindings", lambda: f"0.3.36{plug_ins.PORTABLE}")
    with pytest.raises(EdgeAgentError) as refused:
        plug_ins.install("vulkan", f"{place.server.url}/wheels", place.state_dir)
    return [refused.value.message]


def _add_remote(place: Place) -> None:
    main(["remote", "add", "far", place.server.url, "--model", "far=far", "--yes", "--state-dir", str(place.state_dir)])


def daemon(place: Place) -> list[str]:
    """A daemon pulls a model, and answers at a remote, with an image, and from a store; at its end it sends its traces.

    The image's address is on a host that the owner allows.
    """
    _add_remote(place)
    flags = ["--models-dir", str(place.state_dir.parent / "models"), "--trace-endpoint", place.server.url]
    flags += ["--image-hosts", urlsplit(place.images.url).netloc]
    image = [{"type": "image_url", "image_url": {"url": f"{place.images.url}/image"}}]
    asked: list[tuple[str, Any]] = [("far", "Hi"), ("builtin", image)]
    with answer_store(place) as store:
        running = start_daemon(place.state_dir, "builtin", *flags, "--answers-exact", "--answers-store", store)
        headers = {"Authorization": f"Bearer {(place.state_dir / 'token').read_text().strip()}"}
        with httpx.Client(base_url=running.url, headers=headers, timeout=patient(60)) as client:
            said = [client.post("/api/pull", json={"model": "org/model-GGUF"}).text]
            for model, content in asked:
                body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 2}
                said.append(client.post("/v1/chat/completions", json=body).text)
            # A list waits for the store, as no answer does: on a busy machine these may never ask it.
            assert client.get("/edgeagent/answers/list").status_code == 200
            assert client.get("/edgeagent/answers").json()["trouble"] is not None
            if not (place.state_dir / EGRESS_FOLDER).is_file():
                wait_until(lambda: any(PROBE in each for each in place.server.arrivals.reasons))
        said.append(place.run("cache", "answers", "stats", "--json"))
        stop_daemon(running)
    return said


def remote_test(place: Place) -> list[str]:
    _add_remote(place)
    return [place.run("remote", "test", "far")]


@contextmanager
def answer_store(place: Place) -> Iterator[str]:
    """Listen as a server for kept answers that notes what arrives, and hangs up; yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        if connection.recv(1):
                            place.server.arrivals.note(host, "a command", has_content=True)

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"redis://{host}"
        finally:  # the end of the process waits for the thread
            listener.shutdown(socket.SHUT_RDWR)
            serving.join()


class Way(NamedTuple):
    """A way out: what goes it, the reasons in its rows, and what is said if all goes well."""

    go: Callable[[Place], list[str]]
    reasons: set[str]
    well: tuple[str, ...]


GO = {
    "pull": Way(pull, {PULL}, ("is here",)),
    "doctor": Way(doctor, {DOCTOR}, ("hub",)),
    "bench": Way(bench, {BENCH}, ("decode",)),
    "engine": Way(engine, {ENGINE}, ("has no edgeagent-engine-vulkan",)),
    "remote test": Way(remote_test, {PROBE, "remote_test"}, ("far",)),
    "daemon": Way(
        daemon,
        {PULL, TRACES, PROBE, "model_unknown", FETCH, ANSWERS},
        ("success", "Hello", "leads to a file that is no PNG", "cannot be used"),
    ),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    state_dir = tmp_path / "state"
    with hub_server() as hub, serving(state_dir) as server, serving(state_dir) as images:
        arrivals = HubArrivals(state_dir)
        arrivals.hub, hub.requests = hub, arrivals
        hub.add("org/model-GGUF", {"model-Q4_K_M.gguf": small_model(1, 20_000)})
        for name, value in {"HF_ENDPOINT": hub.url, "NO_PROXY": "127.0.0.1", "HF_HUB_OFFLINE": ""}.items():
            monkeypatch.setenv(name, value)
        yield Place(state_dir, hub, server, images, monkeypatch)


@contextmanager
def serving(state_dir: Path) -> Iterator[Server]:
    server = Server(Arrivals(state_dir))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def arrived(place: Place) -> list[set[str]]:
    assert isinstance(place.hub.requests, HubArrivals)
    return [*place.hub.requests.reasons, *place.server.arrivals.reasons, *place.images.arrivals.reasons]


@pytest.mark.parametrize("name", GO)
def test_there_is_a_row_before_anything_is_sent(name: str, place: Place) -> None:
    way = GO[name]
    said = way.go(place)
    assert all(well in part for well, part in zip(way.well, said, strict=True)), said
    reasons = arrived(place)
    assert all(reasons) and set[str]().union(*reasons) == way.reasons, said
    rows = list(read_rows(folder_of(place.state_dir)))
    assert UNFINISHED not in {row.outcome for row in rows}
    if name == "pull":
        hosts = [urlsplit(url).netloc for url in (place.hub.url, place.hub.storage_url)]
        assert [(row.host, row.model, row.outcome) for row in rows] == [
            (host, "org/model-GGUF", "completed") for host in hosts
        ]


@pytest.mark.parametrize("name", GO)
def test_without_a_ledger_nothing_is_sent(name: str, place: Place) -> None:
    place.state_dir.mkdir(mode=0o700)
    (place.state_dir / EGRESS_FOLDER).write_text("not a folder")
    said = GO[name].go(place)
    assert arrived(place) == [], said
    assert all("the egress ledger in" in part for part in said), said
