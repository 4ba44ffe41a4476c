"""Every refusal that may pass says when to retry: over HTTP, in Ollama's API, as an event, before a socket opens."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import connect

from edgeagent import errors
from edgeagent.api.wire.errors import WIRE_FORMS
from edgeagent.errors import EdgeAgentError
from edgeagent.types import ModelStatus, WorkerState
from tests.backends.fake import FakeBackend, failing
from tests.daemon.running import Running, limited, running
from tests.robust.raw import get, upgrade

PASSING = [cls for cls, form in WIRE_FORMS.items() if form.may_pass]
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def waits(headers: object) -> bool:
    """Return whether headers ask the client to wait for a number of seconds."""
    return isinstance(headers, dict) and 1 <= int(headers["retry-after"]) <= 120


def test_something_may_pass() -> None:
    assert {errors.Overloaded, errors.ModelLoading, errors.BackendUnavailable, errors.WorkerCrashed} <= set(PASSING)


@pytest.mark.parametrize("error", PASSING)
async def test_over_every_transport(error: type[EdgeAgentError]) -> None:
    async with running(FakeBackend(failing(error("no")))) as daemon:
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/chat/completions", {**CHAT, "stream": True}),
            ("/v1/responses", {"model": "fake", "input": "hi"}),
            ("/v1/responses", {"model": "fake", "input": "hi", "stream": True}),
            ("/v1/completions", {"model": "fake", "prompt": "hi"}),
            ("/api/chat", CHAT),
            ("/api/generate", {"model": "fake", "prompt": "hi"}),
        ):
            reply = await daemon.http.post(f"{daemon.url}{path}", json=body)
            # Ollama uses 503 for a full queue.
            assert reply.status_code in (WIRE_FORMS[error].status, 503), path
            assert waits(dict(reply.headers)), path
        # for this error /ready depends on the remotes, and this model is ready
        if error is not errors.LocalUnavailable:
            assert waits(dict((await daemon.http.get(f"{daemon.url}/ready")).headers))
        assert waits(await refusal(daemon))


async def refusal(daemon: Running) -> object:
    """Return the headers of the error that answers a create."""
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
        await socket.send(json.dumps({"type": "response.create", "model": "fake", "input": "hi"}))
        event = json.loads(await socket.recv())
        assert event["type"] == "error", event
        return event.get("headers")


class Loading(FakeBackend):
    """A backend whose model is still loading."""

    def statuses(self) -> list[ModelStatus]:
        return [ModelStatus("fake", WorkerState.STARTING, progress=0.5)]


async def test_while_the_model_loads() -> None:
    async with running(Loading()) as daemon:
        reply = await daemon.http.get(f"{daemon.url}/health")
        assert reply.status_code == 503 and waits(dict(reply.headers))


async def test_too_many_connections() -> None:
    config = limited(max_connections=1)
    async with running(FakeBackend(), config) as daemon, connect(f"ws://127.0.0.1:{daemon.port}/v1/responses"):
        for ask in (get, upgrade):
            reply = await ask(daemon, "Host: 127.0.0.1:{port}")
            assert reply.status == 503 and waits(reply.headers)


@pytest.fixture(autouse=True)
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("edgeagent.service.probe.NOT_READY_CACHE_S", 0.0)
    yield
