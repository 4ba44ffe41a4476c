"""What the daemon reports to its owner, and how the owner stops it."""

from __future__ import annotations

import asyncio
import os

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


class WithAdapter(FakeBackend):
    """A backend whose model answers with an adapter."""

    def models(self) -> list[ModelStatus]:
        return [replace(super().models()[0], adapters=("one",))]


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
