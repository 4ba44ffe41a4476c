"""Where a request may run: the stricter of its field and its token's mode, on every wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextvars import Context
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from edgeagent.config import Config, ServerConfig
from edgeagent.credentials.keys import KeyRing, Scope, add_client, ensure_token
from edgeagent.errors import LocalUnavailable
from edgeagent.router.router import Router
from edgeagent.types import AnswerSoFar, GenerateRequest, Permit, RouteMode, Sink, WorkerState
from tests.api.services import OneModel
from tests.backends.fake import FakeBackend, failing
from tests.daemon.running import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGES = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "hello"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hello"},
    "/api/chat": {"model": "default", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "default", "prompt": "hello", "stream": False},
}
TOKENS: dict[str, str] = {}
LOCAL, PREFERRED, ANY = RouteMode.LOCAL_ONLY, RouteMode.PREFER_LOCAL, RouteMode.REMOTE_ONLY


class FromAWorker(FakeBackend):
    """Its steps come in another context than the request's, as a worker's do."""

    async def generate(
        self, request: GenerateRequest, sink: Sink, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> None:
        async for step in self.play(request, permit, so_far):
            Context().run(sink.put, step)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("state")
    TOKENS[""] = ensure_token(folder)
    TOKENS["kiosk"] = add_client(folder, "kiosk", [Scope.INFER], RouteMode.LOCAL_ONLY)
    TOKENS["desk"] = add_client(folder, "desk", [Scope.INFER], RouteMode.PREFER_LOCAL)
    async with running(FromAWorker(), Config(server=ServerConfig(token_required=True)), KeyRing(folder)) as daemon:
        yield daemon


def last(daemon: Running) -> GenerateRequest:
    assert isinstance(daemon.service, FakeBackend)
    return daemon.service.requests[-1]


CASES = [
    ("", None, None),
    ("", "remote_only", ANY),
    ("", "local_only", LOCAL),
    ("desk", None, PREFERRED),
    ("desk", "remote_only", PREFERRED),
    ("desk", "local_only", LOCAL),
    ("kiosk", "remote_only", LOCAL),
]


@pytest.mark.parametrize(("client", "asked", "route"), CASES)
@pytest.mark.parametrize("path", BODIES)
async def test_the_stricter_of_token_and_field_holds(
    locked: Running, path: str, client: str, asked: str | None, route: RouteMode | None
) -> None:
    headers = {"Authorization": f"Bearer {TOKENS[client]}"}
    field = {} if asked is None else {"edgeagent": {"route": asked}}
    reply = await locked.http.post(f"{locked.url}{path}", json=BODIES[path] | field, headers=headers)
    assert reply.status_code == 200, reply.text
    assert "x-edgeagent-warning" not in reply.headers
    assert (last(locked).route, last(locked).client) == (route, client)


@pytest.mark.parametrize(("client", "asked", "route"), CASES)
async def test_on_a_socket_too(locked: Running, client: str, asked: str | None, route: RouteMode | None) -> None:
    headers = {"Authorization": f"Bearer {TOKENS[client]}"}
    field = {} if asked is None else {"edgeagent": {"route": asked}}
    async with connect(f"ws://127.0.0.1:{locked.port}/v1/responses", additional_headers=headers) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": "hello"} | field))
        while json.loads(await socket.recv())["type"] != "response.completed":
            pass
    assert (last(locked).route, last(locked).client) == (route, client)


async def test_a_create_that_waited_on_a_socket_is_still_its_clients(locked: Running) -> None:
    """The last step of the response before it starts the response, and comes from a worker."""
    headers = {"Authorization": f"Bearer {TOKENS['kiosk']}"}
    async with connect(f"ws://127.0.0.1:{locked.port}/v1/responses", additional_headers=headers) as socket:
        for _ in range(2):
            await socket.send(json.dumps({"type": "response.create", "input": "hello"}))
        num_completed = 0
        while num_completed < 2:
            num_completed += json.loads(await socket.recv())["type"] == "response.completed"
    assert isinstance(locked.service, FakeBackend)
    assert [request.route for request in locked.service.requests[-2:]] == [LOCAL, LOCAL]


async def test_what_continues_a_local_conversation_stays_here(locked: Running) -> None:
    """Each request sends the earlier turns again, so a later request must not send them to a remote."""
    headers = {"Authorization": f"Bearer {TOKENS['']}"}

    async def respond(**fields: Any) -> dict[str, Any]:
        reply = await locked.http.post(f"{locked.url}/v1/responses", json={"input": "hello"} | fields, headers=headers)
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = reply.json()
        return answer

    free = await respond()
    assert "mode" not in free["edgeagent"]
    kept = await respond(edgeagent={"route": "local_only"}, previous_response_id=free["id"])
    assert kept["edgeagent"]["mode"] == "local_only"
    after = await respond(edgeagent={"route": "remote_only"}, previous_response_id=kept["id"])
    assert after["edgeagent"]["mode"] == "local_only" and last(locked).route is LOCAL
    await respond(previous_response_id=after["id"])
    assert last(locked).route is LOCAL
    await respond(previous_response_id=free["id"])
    assert last(locked).route is None
    item = {"type": "item_reference", "id": kept["output"][0]["id"]}
    await respond(input=[item, {"role": "user", "content": "and?"}])
    assert last(locked).route is LOCAL
    async with connect(f"ws://127.0.0.1:{locked.port}/v1/responses", additional_headers=headers) as socket:
        for previous in (kept["id"], None):
            create = {"type": "response.create", "input": "hello", "previous_response_id": previous}
            await socket.send(json.dumps(create))
            while (event := json.loads(await socket.recv()))["type"] != "response.completed":
                pass
            assert last(locked).route is (LOCAL if previous else None)
            again = {"type": "response.create", "input": "hello", "previous_response_id": event["response"]["id"]}
            await socket.send(json.dumps(again))
            while json.loads(await socket.recv())["type"] != "response.completed":
                pass
            assert last(locked).route is (LOCAL if previous else None)


async def test_ollamas_clients_send_it_among_the_options(locked: Running) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['']}"}
    body = BODIES["/api/chat"] | {"options": {"edgeagent": {"route": "local_only"}, "temperature": 0}}
    reply = await locked.http.post(f"{locked.url}/api/chat", json=body, headers=headers)
    assert reply.status_code == 200 and "x-edgeagent-warning" not in reply.headers
    assert last(locked).route is LOCAL
    both = body | {"edgeagent": {"route": "prefer_local"}}
    await locked.http.post(f"{locked.url}/api/chat", json=both, headers=headers)
    assert last(locked).route is LOCAL


@pytest.mark.parametrize("path", BODIES)
async def test_the_same_field_says_how_much_is_drafted(locked: Running, path: str) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['']}"}
    for asked in (0, 3, None):
        body = BODIES[path] | {"edgeagent": {"draft_tokens": asked}}
        reply = await locked.http.post(f"{locked.url}{path}", json=body, headers=headers)
        assert reply.status_code == 200 and last(locked).draft_tokens == asked


FIELDS = [
    ({"route": "anywhere"}, "edgeagent.route", "must be 'local_only', 'prefer_local'"),
    ({"route": 1}, "edgeagent.route", "must be 'local_only'"),
    ({"rout": "local_only"}, "edgeagent.rout", "is unknown"),
    ({"draft_tokens": 99}, "edgeagent.draft_tokens", "must be"),
    ("local_only", "edgeagent", "must be an object"),
]


@pytest.mark.parametrize(("field", "param", "message"), FIELDS)
@pytest.mark.parametrize("path", BODIES)
async def test_what_is_not_understood_is_refused(
    locked: Running, path: str, field: object, param: str, message: str
) -> None:
    """A misspelt `route` that was ignored would let a request leave the machine."""
    headers = {"Authorization": f"Bearer {TOKENS['']}"}
    reply = await locked.http.post(f"{locked.url}{path}", json=BODIES[path] | {"edgeagent": field}, headers=headers)
    assert reply.status_code == 400
    assert f"{param} {message}" in reply.text


@pytest.mark.parametrize("field", [None, {}, {"route": None}])
async def test_an_empty_field_says_nothing(locked: Running, field: object) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['']}"}
    body = BODIES["/v1/responses"] | {"edgeagent": field}
    reply = await locked.http.post(f"{locked.url}/v1/responses", json=body, headers=headers)
    assert reply.status_code == 200 and last(locked).route is None


async def test_a_prompt_that_is_only_computed_ahead_stays_here(locked: Running) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['']}"}
    reply = await locked.http.post(f"{locked.url}/edgeagent/cache/warm", json={"prompt": "hello"}, headers=headers)
    assert reply.status_code == 200 and last(locked).route is LOCAL
    body = {"input": "hello", "generate": False, "edgeagent": {"route": "remote_only"}}
    await locked.http.post(f"{locked.url}/v1/responses", json=body, headers=headers)
    assert last(locked).route is LOCAL


WARMING = {"generate": False, "edgeagent": {"route": "remote_only"}}


@pytest.mark.parametrize("machine", RouteMode)
async def test_a_request_for_remotes_alone_is_never_computed_here(machine: RouteMode) -> None:
    """Neither an answer, nor a choice, nor a prompt ahead, nor a turn of a conversation that asked for it."""
    local, gpu = FakeBackend(), FakeBackend()
    gpu.name = "remote:gpu"
    asked = {"edgeagent": {"route": "remote_only"}}
    is_away = machine in (RouteMode.PREFER_REMOTE, RouteMode.REMOTE_ONLY)
    async with running(Router([local, gpu], machine_mode=lambda: machine)) as daemon:
        for path, body in BODIES.items():
            reply = await daemon.http.post(f"{daemon.url}{path}", json=body | asked)
            assert reply.status_code == (200 if is_away else 403), reply.text
            assert is_away or "the request asks for remote_only" in reply.text
        body = {"input": "hello", "choices": ["yes", "no"], **asked}
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/choose", json=body)
        assert reply.status_code == 403 and "choices are computed on this machine alone" in reply.text
        assert reply.json()["error"]["param"] == "edgeagent.route"
        reply = await daemon.http.post(f"{daemon.url}/v1/responses", json={"input": "hello", **WARMING})
        assert reply.json()["status"] == "completed" and reply.json()["usage"]["input_tokens"] == 0
        body = {"input": "and?", "previous_response_id": reply.json()["id"]}
        reply = await daemon.http.post(f"{daemon.url}/v1/responses", json=body)
        assert reply.status_code == (200 if is_away else 403), "the conversation asked for it"
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
            for fields, is_done in ((WARMING, True), (asked, is_away)):
                await socket.send(json.dumps({"type": "response.create", "input": "hello", **fields}))
                ends = ("response.completed", "response.failed", "error")
                while (event := json.loads(await socket.recv()))["type"] not in ends:
                    pass
                assert (event["type"] == "response.completed") == is_done, event
    assert local.requests == []


async def test_a_turn_for_remotes_alone_cannot_continue_a_conversation_that_stays_here() -> None:
    local = FakeBackend()
    async with running(Router([local, FakeBackend()], machine_mode=lambda: RouteMode.PREFER_REMOTE)) as daemon:
        body: dict[str, Any] = {"input": "hello", "edgeagent": {"route": "local_only"}}
        kept = (await daemon.http.post(f"{daemon.url}/v1/responses", json=body)).json()
        body = {"input": "and?", "edgeagent": {"route": "remote_only"}, "previous_response_id": kept["id"]}
        reply = await daemon.http.post(f"{daemon.url}/v1/responses", json=body)
        assert reply.status_code == 403 and "its conversation" in reply.text


async def test_remotes_make_a_daemon_ready_that_has_no_model_of_its_own() -> None:
    for state, status in ((WorkerState.READY, 200), (WorkerState.FAILED, 503)):
        service = OneModel(state)
        service.script = failing(LocalUnavailable("there is no model here"))
        async with running(service) as daemon:
            reply = await daemon.http.get(f"{daemon.url}/ready", headers={"Authorization": f"Bearer {'x' * 43}"})
            assert reply.status_code == status, reply.text


async def test_the_probe_of_readiness_stays_here(locked: Running) -> None:
    await locked.http.get(f"{locked.url}/ready", headers={"Authorization": f"Bearer {TOKENS['']}"})
    assert last(locked).route is LOCAL
