"""What the daemon reports to its owner, and how the owner stops it."""

from __future__ import annotations

import asyncio
import os

import pytest

from edgeagent.errors import ModelDamaged
from edgeagent.types import ModelStatus, TextDelta, WorkerState, WorkerStatus, replace
from tests.api.services import INFO, OneModel
from tests.backends.fake import FakeBackend, Gate, failing, finished
from tests.daemon.running import TOKEN, running


async def test_status() -> None:
    worker = WorkerStatus(num_running=2, num_waiting=1, num_cells_used=10, num_cells=100, tokens_per_second=12.5)
    async with running(OneModel(WorkerState.READY, info=INFO, worker=worker)) as daemon:
        status = (await daemon.http.get(f"{daemon.url}/edgeagent/status")).json()
    assert status["pid"] == os.getpid()
    assert status["uptime_s"] >= 0
    assert status["tokens_per_second"] == 12.5
    assert (status["num_connections"], status["num_live_requests"], status["is_draining"]) == (1, 0, False)
    assert status["default_model"] == "org/repo:Q4_K_M"
    [model] = status["models"]
    assert (model["state"], model["progress"], model["pid"], model["num_restarts"]) == ("ready", 0.5, 4711, 2)
    assert model["cause"] == "signal 9"
    assert (model["worker"]["num_running"], model["worker"]["num_cells"]) == (2, 100)
    assert (model["info"]["llama_cpp_commit"], model["info"]["load_ms"]) == ("abc1234", 1234.6)
    assert model["info"]["devices"] == [
        {
            "name": "CPU",
            "description": "a processor",
            "kind": "cpu",
            "memory_total_bytes": 10,
            "memory_free_bytes": 5,
        }
    ]


async def test_status_without_a_loaded_model() -> None:
    async with running(OneModel(WorkerState.STARTING)) as daemon:
        [model] = (await daemon.http.get(f"{daemon.url}/edgeagent/status")).json()["models"]
    assert (model["state"], model["info"], model["worker"]) == ("starting", None, None)


async def test_live_requests_are_counted() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (gate, TextDelta("x"), finished()))
    async with running(backend) as daemon:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        asked = asyncio.create_task(daemon.http.post(f"{daemon.url}/v1/chat/completions", json=body))
        await gate.reached.wait()
        status = (await daemon.http.get(f"{daemon.url}/edgeagent/status")).json()
        assert (status["num_live_requests"], status["num_requests_total"]) == (1, 1)
        gate.opened.set()
        assert (await asked).status_code == 200
        status = (await daemon.http.get(f"{daemon.url}/edgeagent/status")).json()
        assert (status["num_live_requests"], status["num_requests_total"]) == (0, 1)


async def test_stop_answers_before_it_happens() -> None:
    async with running(FakeBackend()) as daemon:
        headers = {"authorization": f"Bearer {TOKEN}"}
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/stop", headers=headers)
        assert (reply.status_code, reply.json()) == (202, {"status": "stopping", "num_live_requests": 0})
        await daemon.serving
    assert daemon.reporter.events == ["stopping 0"]


async def test_load_and_unload() -> None:
    backend = FakeBackend(models=("a", "b"))
    async with running(backend) as daemon:
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/load?model=b&keep_alive=5m")
        assert (reply.status_code, reply.json()["status"], reply.json()["model"]) == (200, "loaded", "b")
        assert [(each.prefill_only, each.keep_alive_s) for each in backend.requests] == [(True, 300)]
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/unload?model=b")
        expected = {"status": "unloaded", "model": "b", "num_live_requests": 0}
        assert (reply.status_code, reply.json(), backend.unloaded) == (200, expected, ["b"])
        for path in ("load?model=c", "unload?model=c"):
            reply = await daemon.http.post(f"{daemon.url}/edgeagent/{path}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/load?model=b&keep_alive=soon")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "keep_alive")


async def test_the_owners_fields_may_be_in_the_query_or_the_body() -> None:
    backend = FakeBackend(models=("a", "b"))
    async with running(backend) as daemon:
        at = f"{daemon.url}/edgeagent"
        reply = await daemon.http.post(f"{at}/load", json={"model": "b", "keep_alive": 300})
        assert (reply.status_code, reply.json()["model"]) == (200, "b")
        reply = await daemon.http.post(f"{at}/load?model=b", json={"model": "b", "keep_alive": "5m"})
        assert [each.keep_alive_s for each in backend.requests] == [300, 300]
        assert (await daemon.http.post(f"{at}/reload", json={"model": "b"})).json()["model"] == "b"
        assert (await daemon.http.post(f"{at}/unload", json={"model": "b"})).json()["model"] == "b"
        assert (await daemon.http.post(f"{at}/unload", json={"model": None})).json()["model"] == "a"
        reply = await daemon.http.post(f"{at}/unload", json={"model": "c"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert (backend.reloaded, backend.unloaded) == (["b"], ["b", "a"])


@pytest.mark.parametrize("query", ["", "&keep_alive="])
async def test_without_a_keep_alive_the_current_one_is_kept(query: str) -> None:
    backend = FakeBackend(models=("a", "b"))
    async with running(backend) as daemon:
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/load?model=b{query}")
    assert reply.status_code == 200
    assert [each.keep_alive_s for each in backend.requests if each.keep_alive_s is not None] == []


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        ("POST unload?modle=b", None, "modle"),
        ("POST unload", {"modle": "b"}, "modle"),
        ("POST unload", {"keep_alive": "x"}, "keep_alive"),
        ("POST unload", {"model": 3}, "model"),
        ("POST unload?model=a&model=b", None, "model"),
        ("POST unload?model=a", {"model": "b"}, "model"),
        ("POST load", {"keep_alive": "soon"}, "keep_alive"),
        ("POST load", {"keep_alive": True}, "keep_alive"),
        ("POST load?keepalive=5", None, "keepalive"),
        ("POST reload", {"name": "b"}, "name"),
        ("POST stop", {"force": True}, "force"),
        ("POST cache/purge?client=kiosk", {"client": ""}, "client"),
        ("POST cache/purge", {"clients": "kiosk"}, "clients"),
        ("POST cache/warm", {"prompt": "a", "clients": "kiosk"}, "clients"),
        ("POST egress/purge", {"client": "kiosk"}, "client"),
        ("GET egress?since=9", None, "since"),
        ("GET status?model=a", None, "model"),
        ("GET cache?client=kiosk", None, "client"),
    ],
)
async def test_a_field_that_an_owners_route_does_not_know_is_refused(
    route: str, body: dict[str, object] | None, param: str
) -> None:
    backend = FakeBackend(models=("a", "b"))
    async with running(backend) as daemon:
        method, path = route.split()
        reply = await daemon.http.request(method, f"{daemon.url}/edgeagent/{path}", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
        assert not daemon.stop.is_requested
    assert not (backend.reloaded or backend.unloaded or backend.requests or backend.queries)


class WithAdapter(FakeBackend):
    """A backend whose model answers with an adapter."""

    def statuses(self) -> list[ModelStatus]:
        return [replace(super().statuses()[0], adapters=("one",))]


async def test_an_adapter_of_a_loaded_model_is_tried() -> None:
    """The adapter's file may have been unusable when the model was loaded."""
    damaged = ModelDamaged("the adapter one cannot be used")
    async with running(WithAdapter(failing(damaged), models=("fake", "fake+one"))) as daemon:
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/load?model=fake")
        assert reply.status_code == 200
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/load?model=fake%2Bone")
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "model_damaged")


async def test_reload_names_the_model() -> None:
    backend = FakeBackend(models=("a", "b"))
    async with running(backend) as daemon:
        owner = {"authorization": f"Bearer {TOKEN}"}
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/reload", headers=owner)
        assert (reply.status_code, reply.json()) == (202, {"status": "reloading", "model": "a"})
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/reload?model=b", headers=owner)
        assert reply.json()["model"] == "b"
        reply = await daemon.http.post(f"{daemon.url}/edgeagent/reload?model=c", headers=owner)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert backend.reloaded == ["", "b"]
