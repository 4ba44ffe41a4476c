"""A1: the documents equal the decision, for everything known about a client, and the live app."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from edgeagent.api.app import create_app
from edgeagent.api.gate.access import PEER_KEY, Access
from edgeagent.api.routes import NEEDS, PATHS
from edgeagent.config import Config, ServerConfig
from edgeagent.credentials.decision import Listener, Sender, User, decide
from edgeagent.credentials.keys import (
    CLIENTS_FILE,
    CheckedKeys,
    Client,
    KeyRing,
    KeyStatus,
    Scope,
    add_client,
    ensure_token,
    remove_client,
)
from edgeagent.errors import EdgeAgentError, Forbidden, Unauthorized
from tests.backends.fake import FakeBackend
from tests.robust.test_A1_every_route import concrete, every_route

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = (DOCS / "access.md").read_text(encoding="utf-8")
HTTP = (DOCS / "reference" / "http.md").read_text(encoding="utf-8")
SCOPES = [frozenset(some) for size in range(len(Scope) + 1) for some in combinations(Scope, size)]
OWN, OTHER, UNTOLD = User(0, is_own=True), User(1001), User()
PORT = 8127
LINK, CONVERSATIONS = "/edgeagent/page/link", "/edgeagent/conversations"


def table(title: str) -> list[list[str]]:
    """Return the cells of the table under a heading of the document."""
    section = DOCUMENT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


WHO = {int(number): (health, infer, owner) for number, _, health, infer, owner in table("Who asks")}


def test_the_documents_name_every_route_with_its_need() -> None:
    named = set(re.findall(r"^\| `[A-Z]+ (\S+)` \| (\w+) \|", HTTP, re.MULTILINE))
    others = re.search(r"The WebSockets (.+?) need `(\w+)`", DOCUMENT, re.DOTALL)
    assert others is not None
    named |= {(path, others[2]) for path in re.findall(r"`(/[^`]*)`", others[1])}
    wanted = {(path.replace(":path", ""), "none" if need is None else need.value) for path, need in NEEDS.items()}
    assert named == wanted


@dataclass(frozen=True)
class Case:
    """What is known about a request; `scopes` are those of its token."""

    listener: Listener
    user: User
    key_status: KeyStatus
    scopes: frozenset[Scope]
    is_page: bool


def cases() -> Iterator[Case]:
    for listener, user, key_status, is_page in product(Listener, (OWN, OTHER, UNTOLD), KeyStatus, (False, True)):
        for scopes in SCOPES if key_status is KeyStatus.KNOWN else [frozenset()]:
            yield Case(listener, user, key_status, scopes, is_page)


def row_of(case: Case, need: Scope | None) -> int:
    """Return the index of the document's row for a case."""
    ours = {KeyStatus.UNKNOWN: 3, KeyStatus.UNUSABLE: 4, KeyStatus.SEVERAL: 5}
    if case.key_status in ours:
        return ours[case.key_status]
    if case.key_status is KeyStatus.KNOWN:
        return 1 if need in case.scopes else 2
    if case.listener is Listener.LOCKED:
        return 6
    if case.user is OWN:
        return 8 if case.is_page else 7
    if case.listener is Listener.UNIX:
        return 11
    return 9 if case.user is OTHER else 10


NAMES = {"as its client": "kiosk", "as the owner": "", "as `uid:N`": "uid:1001", "as `uid:unknown`": "uid:unknown"}


def test_the_decision_is_the_documents_table() -> None:
    """All of 5 needs × 3 listeners × 3 users × what is shown × page or not."""
    num = 0
    for case in cases():
        client = Client("kiosk", case.scopes) if case.key_status is KeyStatus.KNOWN else None
        sender = Sender(case.listener, case.user, CheckedKeys(case.key_status, client, reason="why"), case.is_page)
        for need in (None, *Scope):
            health, infer, owner = WHO[row_of(case, need)]
            expected = health if need is None else infer if need is Scope.INFER else owner
            verdict = decide(need, sender)
            num += 1
            if not expected.startswith("yes"):
                assert type(verdict) is {"401": Unauthorized, "403": Forbidden}[expected], (case, need)
                assert isinstance(verdict, EdgeAgentError) and len(verdict.message) > 40
                continue
            assert isinstance(verdict, Client), (case, need, verdict)
            if need is None:
                assert verdict == Client("", frozenset())
                continue
            assert need in verdict.scopes
            if ", " in expected:
                assert verdict.name == NAMES[expected.partition(", ")[2]], (case, need)
            if row_of(case, need) in (8, 9, 10):
                assert verdict.scopes == {Scope.INFER}
    assert num == 5 * 3 * 3 * 2 * (len(KeyStatus) - 1 + len(SCOPES))


class FixedPeer:
    """A connection's peer with a fixed user."""

    def __init__(self, user: User) -> None:
        self._user = user
        self.client: str | None = None

    async def user(self) -> User:
        return self._user


@dataclass(frozen=True)
class Setting:
    """How a request arrives, in the decision's terms."""

    listener: Listener
    user: User

    def scope_fields(self) -> dict[str, Any]:
        if self.listener is Listener.UNIX:
            return {"server": ("/run/s", None), "client": None}
        return {"server": ("127.0.0.1", PORT), "client": ("127.0.0.1", 50000), PEER_KEY: FixedPeer(self.user)}


SETTINGS = [
    Setting(Listener.UNIX, OWN),
    Setting(Listener.LOOPBACK, OWN),
    Setting(Listener.LOOPBACK, OTHER),
    Setting(Listener.LOOPBACK, UNTOLD),
    Setting(Listener.LOCKED, OWN),
]


class CountingPeer:
    """Counts how often the system is asked for the peer's user."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def user(self) -> User:
        self.num_asked += 1
        return OWN


async def test_the_user_is_looked_up_only_where_the_decision_needs_it(tmp_path: Path) -> None:
    held = ensure_token(tmp_path)

    async def num_asked(path: str, key: str, *, is_token_required: bool = False) -> int:
        peer = CountingPeer()
        headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
        scope = {"type": "http", "path": path, "headers": headers, "server": ("127.0.0.1", PORT), PEER_KEY: peer}
        await Access(PATHS, KeyRing(tmp_path), is_token_required=is_token_required).authorize(scope)
        return peer.num_asked

    assert await num_asked("/v1/models", "") == 1
    assert await num_asked("/v1/models", "sk-unused") == 1
    assert await num_asked("/v1/models", held) == 0
    assert await num_asked("/health", "") == 0
    assert await num_asked("/v1/models", "", is_token_required=True) == 0


def make_keys(folder: Path) -> dict[str, tuple[list[str], KeyStatus, frozenset[Scope]]]:
    """Return the credentials that a request may show, by name: its keys, their status and their scopes."""
    every = frozenset(Scope)
    held = {"owner": (ensure_token(folder), every)}
    for scope in Scope:
        held[scope.value] = (add_client(folder, f"c-{scope}", [scope]), frozenset({scope}))
    removed = add_client(folder, "gone", every)
    remove_client(folder, "gone")
    shown: dict[str, tuple[list[str], KeyStatus, frozenset[Scope]]] = {
        name: ([token], KeyStatus.KNOWN, scopes) for name, (token, scopes) in held.items()
    }
    return shown | {
        "nothing": ([], KeyStatus.NONE, frozenset()),
        "another key": (["sk-unused"], KeyStatus.FOREIGN, frozenset()),
        "empty": ([""], KeyStatus.FOREIGN, frozenset()),
        "removed": ([removed], KeyStatus.UNKNOWN, frozenset()),
        "unknown": (["edge_" + "x" * 43], KeyStatus.UNKNOWN, frozenset()),
        "two": ([held["owner"][0], "sk-unused"], KeyStatus.SEVERAL, frozenset()),
        "two others": (["sk-a", "sk-b"], KeyStatus.FOREIGN, frozenset()),
    }


async def status_of(app: Any, path: str, method: str, setting: Setting, keys: list[str], *, is_page: bool) -> int:
    """Return the status of a request to the application itself; 101 if a WebSocket is accepted."""
    host = b"localhost" if setting.listener is Listener.UNIX else f"127.0.0.1:{PORT}".encode()
    headers = [(b"host", host), *((b"authorization", f"Bearer {key}".encode()) for key in keys)]
    headers += [(b"user-agent", b"Mozilla/5.0")] if is_page else []
    is_socket = method == "WEBSOCKET"
    scope = {
        "type": "websocket" if is_socket else "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "ws" if is_socket else "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
        **setting.scope_fields(),
    }
    statuses: list[int] = []
    ends = {"type": "websocket.disconnect", "code": 1000} if is_socket else {"type": "http.disconnect"}
    first = {"type": "websocket.connect"} if is_socket else {"type": "http.request", "body": b"", "more_body": False}
    messages = [ends, first]

    async def receive() -> dict[str, Any]:
        return messages.pop() if len(messages) > 1 else ends

    async def send(message: dict[str, Any]) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            statuses.append(message["status"])
        elif message["type"] == "websocket.accept":
            statuses.append(101)

    await app(scope, receive, send)
    return statuses[0] if statuses else 0


@pytest.mark.daily(1, seconds=3)
@pytest.mark.parametrize("are_files_sound", [True, False], ids=["files sound", "files open to others"])
async def test_every_route_of_the_live_app(tmp_path: Path, are_files_sound: bool) -> None:
    """Every route and method × credentials × how the request arrives × page or not × state of the files."""
    keys = make_keys(tmp_path)
    ring = KeyRing(tmp_path)
    assert ring.judge([b"x"]).status is KeyStatus.FOREIGN
    if not are_files_sound:
        (tmp_path / CLIENTS_FILE).chmod(0o644)
    for setting in SETTINGS:
        # Without the documents, which take half a second to build: a 404 also shows that a request got through.
        server = ServerConfig(token_required=setting.listener is Listener.LOCKED)
        app = create_app(Config(state_dir=tmp_path, server=server), FakeBackend(), keys=ring)
        for (path, methods), (name, (shown, key_status, scopes)), is_page in product(
            [*every_route(), ("/nothing", {"GET"})], keys.items(), (False, True)
        ):
            if is_page and key_status not in (KeyStatus.NONE, KeyStatus.KNOWN):
                continue
            need = NEEDS.get(path, Scope.ADMIN)
            if not are_files_sound and key_status in (KeyStatus.KNOWN, KeyStatus.UNKNOWN):
                key_status, scopes = KeyStatus.UNUSABLE, frozenset()
            row = WHO[row_of(Case(setting.listener, setting.user, key_status, scopes, is_page), need)]
            expected = row[0] if need is None else row[1] if need is Scope.INFER else row[2]
            # What the document says under the table: two routes refuse some whose scopes would do.
            is_clients = key_status is KeyStatus.KNOWN and name != "owner"
            is_pages = key_status is KeyStatus.NONE and is_page
            if (path == LINK and is_clients) or (path.startswith(CONVERSATIONS) and is_pages):
                expected = expected if not expected.startswith("yes") else "403"
            for method in sorted(methods):
                status = await status_of(app, concrete(path), method, setting, shown, is_page=is_page)
                where = (path, method, name, setting, is_page, status)
                assert (status not in (401, 403)) if expected.startswith("yes") else status == int(expected), where
        await asyncio.sleep(0)
