"""A6: what a token opened ends with it: streams with their terminal event, sockets, background work, a pull."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from edgeagent.config import StoreConfig
from edgeagent.credentials import grants
from edgeagent.credentials.keys import (
    CLIENTS_FILE,
    OWNER,
    Client,
    KeyRing,
    KeyStatus,
    Scope,
    add_client,
    ensure_token,
    remove_client,
    rotate_token,
)
from edgeagent.errors import Unauthorized
from edgeagent.runtime_file import TOKEN_FILE, write_private
from edgeagent.store.hub import background, pull
from edgeagent.types import GenerateRequest, QueryAnswer, Started, TextDelta, TextQuery
from tests.backends.fake import Act, FakeBackend, Gate
from tests.daemon.running import Running, read_reply, running
from tests.patience import patient

# Long enough for any machine: an event that takes longer is missing.
LIMIT_S = patient(30.0)


def endless(_request: GenerateRequest) -> Iterable[Act]:
    yield Started(1, 0)
    yield TextDelta("one")
    yield Gate()


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    ensure_token(tmp_path)
    async with running(FakeBackend(endless), keys=KeyRing(tmp_path)) as daemon, asyncio.timeout(LIMIT_S):
        yield daemon


def bearer(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


ENDINGS: dict[str, Callable[[Path], object]] = {
    "removed": lambda folder: remove_client(folder, "kiosk"),
    "replaced": lambda folder: add_client(folder, "kiosk", [Scope.INFER]),
    "less": lambda folder: narrow(folder),
    "not to be trusted": lambda folder: (folder / CLIENTS_FILE).chmod(0o644),
    "file gone": lambda folder: (folder / CLIENTS_FILE).unlink(),
}


def narrow(folder: Path) -> None:
    """Remove a client's scopes but keep its token."""
    rows = json.loads((folder / CLIENTS_FILE).read_text())
    rows["clients"][0]["scopes"] = []
    write_private(folder / CLIENTS_FILE, json.dumps(rows).encode())


@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_stream_ends_with_its_token(daemon: Running, tmp_path: Path, ending: str) -> None:
    token = add_client(tmp_path, "kiosk", [Scope.INFER])
    events = aclosing(stream(daemon, token))
    async with events as mine, aclosing(stream(daemon, None)) as others:
        for each in (mine, others):
            while (await anext(each))["type"] != "response.output_text.delta":
                pass
        ENDINGS[ending](tmp_path)
        rest = [event async for event in mine]
        assert rest[-1]["type"] == "response.incomplete"
        assert rest[-1]["response"]["status"] in ("incomplete", "cancelled")
        # Another client's stream continues, here one without a token.
        assert isinstance(daemon.service, FakeBackend) and daemon.service.num_live == 1


async def stream(daemon: Running, token: str | None) -> AsyncGenerator[dict[str, Any], None]:
    body = {"input": "x", "stream": True}
    async with daemon.http.stream("POST", f"{daemon.url}/v1/responses", json=body, headers=bearer(token)) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


async def events_until(socket: ClientConnection, kind: str) -> dict[str, Any]:
    while True:
        event: dict[str, Any] = json.loads(await socket.recv())
        if event["type"] == kind:
            return event


async def test_a_socket_ends_with_its_token(daemon: Running, tmp_path: Path) -> None:
    token = add_client(tmp_path, "kiosk", [Scope.INFER])
    url = f"ws://127.0.0.1:{daemon.port}/v1/responses"
    async with (
        connect(url, additional_headers=bearer(token)) as busy,
        connect(url, additional_headers=bearer(token)) as idle,
        connect(url, additional_headers=bearer(ensure_token(tmp_path))) as owners,
    ):
        for socket in (busy, owners):
            await socket.send(json.dumps({"type": "response.create", "input": "x"}))
            await events_until(socket, "response.output_text.delta")
        await busy.send(json.dumps({"type": "response.create", "input": "waits for its turn"}))
        remove_client(tmp_path, "kiosk")
        end = await events_until(busy, "response.incomplete")
        assert end["response"]["status"] in ("incomplete", "cancelled")
        # The waiting request is refused, then the socket closes.
        for socket in (busy, idle):
            assert (await events_until(socket, "error"))["error"]["code"] == "invalid_api_key"
            with pytest.raises(ConnectionClosed):
                await events_until(socket, "never")
            assert (socket.close_code, socket.close_reason) == (1008, "the token has ended")
        await owners.send(json.dumps({"type": "response.cancel"}))
        await events_until(owners, "response.incomplete")


async def test_a_realtime_session_ends_with_its_token(daemon: Running, tmp_path: Path) -> None:
    token = add_client(tmp_path, "kiosk", [Scope.INFER])
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/realtime", additional_headers=bearer(token)) as socket:
        apart = {"conversation": "none", "input": [{"type": "message", "role": "user", "content": "x"}]}
        await socket.send(json.dumps({"type": "response.create", "response": apart}))
        await events_until(socket, "response.output_text.delta")
        remove_client(tmp_path, "kiosk")
        assert (await events_until(socket, "response.done"))["response"]["status"] in ("incomplete", "cancelled")
        assert (await events_until(socket, "error"))["error"]["code"] == "invalid_api_key"
        with pytest.raises(ConnectionClosed):
            await events_until(socket, "never")
        assert (socket.close_code, socket.close_reason) == (1008, "the token has ended")


async def test_work_in_the_background_ends_with_its_token(daemon: Running, tmp_path: Path) -> None:
    token = add_client(tmp_path, "kiosk", [Scope.INFER])
    body = {"input": "x", "background": True}
    made = (await daemon.http.post(f"{daemon.url}/v1/responses", json=body, headers=bearer(token))).json()
    url = f"{daemon.url}/v1/responses/{made['id']}"
    while (await daemon.http.get(url, headers=bearer(token))).json()["status"] != "in_progress":
        pass
    again = add_client(tmp_path, "kiosk", [Scope.INFER])
    while (found := (await daemon.http.get(url, headers=bearer(again))).json())["status"] == "in_progress":
        pass
    assert found["status"] in ("incomplete", "cancelled")


async def test_who_follows_what_another_made_is_cut_off_too(daemon: Running, tmp_path: Path) -> None:
    """The owner created it without a token, so it continues; the token that only follows it is cut off."""
    url, owner = f"{daemon.url}/v1/responses", bearer(ensure_token(tmp_path))
    made = (await daemon.http.post(url, json={"input": "x", "background": True})).json()
    async with daemon.http.stream("GET", f"{url}/{made['id']}?stream=true", headers=owner) as answer:
        lines = answer.aiter_lines()
        while await anext(lines) != "event: response.output_text.delta":
            pass
        rotate_token(tmp_path)
        assert [line async for line in lines if line.startswith("event: ")] == []
    assert (await daemon.http.get(f"{url}/{made['id']}", headers=owner)).status_code == 401
    assert (await daemon.http.get(f"{url}/{made['id']}")).json()["status"] == "in_progress"


async def test_the_owners_token_too(daemon: Running, tmp_path: Path) -> None:
    async with aclosing(stream(daemon, ensure_token(tmp_path))) as events:
        while (await anext(events))["type"] != "response.output_text.delta":
            pass
        rotate_token(tmp_path)
        assert [event async for event in events][-1]["type"] == "response.incomplete"


@pytest.mark.parametrize(("path", "body"), [("/edgeagent/cache/purge", "{}"), ("/v1/responses", '{"input": "x"}')])
async def test_a_body_that_comes_after_its_token_has_ended(
    daemon: Running, tmp_path: Path, path: str, body: str
) -> None:
    token = add_client(tmp_path, "kiosk", list(Scope))
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    head = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{daemon.port}", f"Authorization: Bearer {token}"]
    head += ["Content-Type: application/json", f"Content-Length: {len(body)}", "Expect: 100-continue", "", ""]
    writer.write("\r\n".join(head).encode())
    # The client asks for the body once the request is admitted.
    assert (await read_reply(reader)).status == 100
    remove_client(tmp_path, "kiosk")
    writer.write(body.encode())
    assert (await read_reply(reader)).status == 401
    writer.close()


async def test_the_next_request_of_a_connection_is_judged_by_itself(daemon: Running, tmp_path: Path) -> None:
    """One connection, three requests: with the token, without it, and with the removed token."""
    token = add_client(tmp_path, "kiosk", [Scope.INFER])
    models = f"{daemon.url}/v1/models"
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=1)) as http:
        assert (await http.get(models, headers=bearer(token))).status_code == 200
        remove_client(tmp_path, "kiosk")
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        url = f"{daemon.url}/v1/chat/completions"
        async with http.stream("POST", url, json=body) as answer:
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
        assert (await http.get(models, headers=bearer(token))).status_code == 401


async def test_embeddings_end_with_their_token(tmp_path: Path) -> None:
    begun = asyncio.Event()

    class Slow(FakeBackend):
        async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

    ensure_token(tmp_path)
    token = add_client(tmp_path, "kiosk", [Scope.INFER])
    async with running(Slow(), keys=KeyRing(tmp_path)) as daemon, asyncio.timeout(LIMIT_S):
        url = f"{daemon.url}/v1/embeddings"
        asked = asyncio.create_task(daemon.http.post(url, json={"input": "x"}, headers=bearer(token)))
        await begun.wait()
        remove_client(tmp_path, "kiosk")
        assert (await asked).status_code == 401


async def test_a_pull_ends_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        def __init__(self, *_: object) -> None: ...

        def pull_with_draft(self, *_: object) -> None:
            may_go_on.wait(LIMIT_S)

    monkeypatch.setattr(pull, "Puller", Slow)
    ensure_token(tmp_path)
    token, ring = add_client(tmp_path, "store", [Scope.MODELS]), KeyRing(tmp_path)
    registry, may_go_on = grants.Grants(ring), threading.Event()
    grants.GRANT.set(registry.open(ring.judge([token.encode()])))
    try:
        steps = background.Pulls(StoreConfig(), tmp_path).run("org/model")
        waiting = asyncio.ensure_future(anext(steps))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        remove_client(tmp_path, "store")
        registry.check()
        with pytest.raises(Unauthorized):
            await waiting
    finally:
        may_go_on.set()
        grants.GRANT.set(None)


def test_a_token_of_an_older_edgeagent(tmp_path: Path) -> None:
    """A token without the prefix works as before while it is in the file; then it is refused like any other."""
    old = "x" * 43
    write_private(tmp_path / TOKEN_FILE, old.encode())
    ring = KeyRing(tmp_path)
    assert ensure_token(tmp_path) == old
    assert ring.judge([old.encode()]).client == OWNER
    new = rotate_token(tmp_path)
    assert new.startswith("edge_")
    assert ring.judge([old.encode()]).status is KeyStatus.UNKNOWN
    (tmp_path / TOKEN_FILE).chmod(0o644)
    assert ring.judge([old.encode()]).status is KeyStatus.UNUSABLE
    (tmp_path / TOKEN_FILE).chmod(0o600)
    # A daemon that never knew the token cannot tell it from a foreign key.
    assert KeyRing(tmp_path).judge([old.encode()]).status is KeyStatus.FOREIGN
    assert ring.holder(ring.judge([new.encode()]).digest) == Client("", frozenset(Scope))
