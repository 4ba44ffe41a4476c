"""Models, health, readiness and versions."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI, NotFoundError, UnprocessableEntityError
from websockets.asyncio.client import connect

from edgeagent.config import Config, LoadConfig, ModelConfig, StoreConfig
from edgeagent.errors import ModelDamaged, ModelLoadFailed, ModelLoading, Overloaded
from edgeagent.service import probe
from edgeagent.store.hub.cache import HubCache
from edgeagent.types import CachePolicy, GenerateRequest, RouteMode, SamplingParams, TextDelta, TextPrompt, WorkerState
from tests.api.services import INFO, OneModel
from tests.backends.fake import FakeBackend, Gate, failing, finished
from tests.daemon.running import running
from tests.store.gguf_bytes import small_model

ROUTES = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize"),
    *("/api/chat", "/api/generate", "/api/embed"),
)


async def test_the_list_of_models() -> None:
    async with (
        running(FakeBackend(models=("fake", "org/repo:Q4"))) as daemon,
        AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        models = [model async for model in await client.models.list()]
        assert [(model.id, model.object, model.owned_by) for model in models[:2]] == [
            ("fake", "model", "edgeagent"),
            ("org/repo:Q4", "model", "edgeagent"),
        ]
        assert await client.models.retrieve("org/repo:Q4") == models[1]
        with pytest.raises(NotFoundError) as missing:
            await client.models.retrieve("org/repo")
        assert missing.value.code == "model_not_found"


@pytest.mark.parametrize("name", ["default", "fake"])
async def test_every_name_that_generates_is_found(name: str) -> None:
    async with (
        running(FakeBackend()) as daemon,
        AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        assert (await client.models.retrieve(name)).id == "fake"
        assert (await client.responses.create(model=name, input="hi")).output_text == "hi"


async def test_a_model_that_the_service_does_not_know_is_not_found_on_every_route(tmp_path: Path) -> None:
    cache = HubCache(tmp_path / "models")
    for name in ("x-Q4_K_M.gguf", "x-Q8_0.gguf"):
        sha256 = hashlib.sha256(name.encode()).hexdigest()
        blob = cache.blob("org/repo", sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(b"GGUF")
        cache.publish("org/repo", "a" * 40, name, sha256)
    config = Config(state_dir=tmp_path, store=StoreConfig(models_dir=cache.root))
    here, path = "org/repo:Q8_0", str(blob)
    chat = {"messages": [{"role": "user", "content": "hi"}], "content": "hi"}
    async with running(FakeBackend(), config) as daemon:
        for name in (here, "org/repo:Q2_K", "org/other", path):
            replies = [await daemon.http.get(f"{daemon.url}/v1/models/{name.lstrip('/')}")]
            for route in ROUTES:
                text = "prompt" if route in ("/v1/completions", "/api/generate") else "input"
                body = {"model": name, text: "hi"} | chat
                replies.append(await daemon.http.post(daemon.url + route, json=body))
            for reply in replies:
                assert reply.status_code == 404, reply.text
                assert "not found" in reply.text
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
            await socket.send(json.dumps({"type": "response.create", "model": here, "input": "hi"}))
            error = json.loads(await socket.recv())
            assert (error["status"], error["error"]["code"]) == (404, "model_not_found")


async def test_models_on_this_machine_are_listed_behind_those_served(tmp_path: Path) -> None:
    store = StoreConfig(models_dir=tmp_path)
    for name in ("fake", "other"):
        (tmp_path / f"{name}.gguf").write_bytes(small_model())
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    async with (
        running(FakeBackend(), Config(model="fake", state_dir=tmp_path, store=store)) as daemon,
        AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["fake", "builtin", "other"]
        data = (await daemon.http.get(f"{daemon.url}/v1/models")).json()["data"]
        assert data[2]["edgeagent"] == {"state": "stopped", "context_length": 512, "media": []}
    for config in (Config(model="none"), Config(model="fake", load=LoadConfig(on_demand=False))):
        async with running(FakeBackend(), config) as daemon:
            data = (await daemon.http.get(f"{daemon.url}/v1/models")).json()["data"]
            assert [model["id"] for model in data] == ["fake"]


async def test_what_a_loaded_model_says() -> None:
    async with running(OneModel(WorkerState.READY, info=INFO)) as daemon:
        model, *_ = (await daemon.http.get(f"{daemon.url}/v1/models")).json()["data"]
        assert model["edgeagent"] == {"state": "ready", "context_length": 4096, "supports_tools": True, "media": []}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (WorkerState.STARTING, "Loading model"),
        (WorkerState.FAILED, "No model is ready"),
    ],
)
async def test_health_before_a_model_is_ready(state: WorkerState, message: str) -> None:
    async with running(OneModel(state)) as daemon:
        reply = await daemon.http.get(f"{daemon.url}/health")
        assert reply.status_code == 503
        assert reply.json() == {"error": {"code": 503, "message": message, "type": "unavailable_error"}}


async def test_health_of_a_model_that_was_unloaded() -> None:
    """The next request loads it again, so the daemon can serve."""
    async with running(OneModel(WorkerState.STOPPED)) as daemon:
        reply = await daemon.http.get(f"{daemon.url}/health")
        assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("name", ["one.gguf", "deleted.gguf"])
async def test_a_model_that_is_damaged_or_deleted_is_not_listed_after_it_was_asked_for(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    config = Config(model="fake", state_dir=tmp_path, store=StoreConfig(models_dir=tmp_path))
    cases = (
        (WorkerState.FAILED, False, False),
        (WorkerState.STOPPED, False, False),
        (WorkerState.FAILED, True, True),
        (WorkerState.READY, False, True),
    )
    for state, is_pinned, is_listed in cases:
        backend = OneModel(state)
        backend.status = replace(backend.status, name="one", is_pinned=is_pinned)
        async with running(backend, config) as daemon:
            data = (await daemon.http.get(f"{daemon.url}/v1/models")).json()["data"]
            tags = (await daemon.http.get(f"{daemon.url}/api/tags")).json()["models"]
            assert [model["id"] for model in data] == (["one", "builtin"] if is_listed else ["builtin"])
            assert [model["name"].removesuffix(":latest") for model in tags] == [model["id"] for model in data]


async def test_a_damaged_model_is_told_as_such() -> None:
    backend = FakeBackend(failing(ModelDamaged("x.gguf cannot be loaded: it is empty", param="model")))
    async with (
        running(backend) as daemon,
        AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=2) as client,
    ):
        with pytest.raises(UnprocessableEntityError) as refused:
            await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}])
    assert refused.value.code == "model_damaged" and "it is empty" in refused.value.message
    assert len(backend.requests) == 1


async def test_health() -> None:
    async with running(FakeBackend()) as daemon:
        reply = await daemon.http.get(f"{daemon.url}/health")
        assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


async def test_ready_generates_one_token_for_all_who_ask() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (gate, TextDelta("x"), finished()))
    async with running(backend) as daemon:
        asked = [asyncio.create_task(daemon.http.get(f"{daemon.url}/ready")) for _ in range(5)]
        await gate.reached.wait()
        gate.opened.set()
        replies = await asyncio.gather(*asked)
        replies.append(await daemon.http.get(f"{daemon.url}/ready"))
    assert {reply.status_code for reply in replies} == {200}
    [request] = backend.requests
    assert request == GenerateRequest(
        id=request.id,
        model="fake",
        prompt=TextPrompt("Hello"),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=1,
        cache=CachePolicy(read=False, write=False),
        route=RouteMode.LOCAL_ONLY,
        asked_route=RouteMode.LOCAL_ONLY,
    )


async def test_ready_asks_again_when_its_answer_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "READY_CACHE_S", 0.0)
    monkeypatch.setattr(probe, "NOT_READY_CACHE_S", 0.0)
    backend = FakeBackend()
    async with running(backend) as daemon:
        assert (await daemon.http.get(f"{daemon.url}/ready")).status_code == 200
        backend.script = failing(Overloaded("full"))
        assert (await daemon.http.get(f"{daemon.url}/ready")).status_code == 503
    assert len(backend.requests) == 2


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ModelLoading("40 %"), "model_loading"),
        (ModelLoadFailed("bad file"), "model_load_failed"),
        (Overloaded("full"), "queue_full"),
    ],
)
async def test_not_ready(failure: Exception, code: str) -> None:
    async with running(FakeBackend(lambda _: (failure,))) as daemon:
        reply = await daemon.http.get(f"{daemon.url}/ready")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, code)


async def test_a_hang_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 0.05)
    backend = FakeBackend(lambda _: (Gate(),))
    async with running(backend) as daemon:
        reply = await daemon.http.get(f"{daemon.url}/ready")
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "request_timeout")
        assert backend.num_live == 0


async def test_a_stranger_who_leaves_does_not_end_the_probe() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (gate, finished()))
    async with running(backend) as daemon:
        _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        writer.write(f"GET /ready HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n\r\n".encode())
        await gate.reached.wait()
        writer.transport.abort()
        patient = asyncio.create_task(daemon.http.get(f"{daemon.url}/ready"))
        await asyncio.sleep(0)
        gate.opened.set()
        assert (await patient).status_code == 200
    assert len(backend.requests) == 1


async def test_versions() -> None:
    async with running(OneModel(WorkerState.READY, info=INFO)) as daemon:
        body = (await daemon.http.get(f"{daemon.url}/version")).json()
    assert set(body) == {"version", "llama_cpp_commit", "llama_cpp_python", "python"}
    assert body["llama_cpp_commit"] == "abc1234"
    assert body["llama_cpp_python"]


async def test_probes_may_ask_for_the_head_alone() -> None:
    async with running(OneModel(WorkerState.READY, info=INFO)) as daemon:
        for path in ("/health", "/ready"):
            reply = await daemon.http.head(f"{daemon.url}{path}")
            assert reply.status_code == 200
            assert reply.content == b""
    async with running(OneModel(WorkerState.STARTING)) as daemon:
        assert (await daemon.http.head(f"{daemon.url}/health")).status_code == 503


async def test_an_adapter_is_a_model_of_its_own_with_a_parent(tmp_path: Path) -> None:
    (tmp_path / "other.gguf").write_bytes(small_model())
    models = {"other": ModelConfig(adapters={"x": tmp_path / "x.gguf"})}
    config = Config(model="one", state_dir=tmp_path, store=StoreConfig(models_dir=tmp_path), models=models)
    backend = OneModel(WorkerState.READY, info=INFO)
    backend.status = replace(backend.status, adapters=("a", "b"))
    name = backend.status.name
    backend.find = lambda name: name  # type: ignore[method-assign]
    async with running(backend, config) as daemon:
        data = (await daemon.http.get(f"{daemon.url}/v1/models")).json()["data"]
        one = (await daemon.http.get(f"{daemon.url}/v1/models/{name}+b")).json()
    parents = {model["id"]: model.get("parent") for model in data}
    assert {key: value for key, value in parents.items() if key != "builtin"} == {
        name: None,
        f"{name}+a": name,
        f"{name}+b": name,
        "other": None,
        "other+x": "other",
    }
    assert (one["id"], one["parent"]) == (f"{name}+b", name)


@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/api/generate", {"prompt": "hi"}),
    ],
)
async def test_an_adapter_by_its_own_field(route: str, fields: dict[str, object]) -> None:
    backend = FakeBackend(models=("fake", "fake+one"))
    async with running(backend) as daemon:
        body = {"model": "fake", "edgeagent": {"adapter": "one"}} | fields
        reply = await daemon.http.post(daemon.url + route, json=body)
        assert reply.status_code == 200, reply.text
    assert [request.model for request in backend.requests] == ["fake+one"]
