"""One daemon serves all models of a machine: real workers, with models switched by the ollama and openai packages."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator

import httpx
import ollama
import openai
import psutil
import pytest
from websockets.asyncio.client import connect

from edgeagent.store.names.catalog import builtin_model
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient
from tests.present import present

HI = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with two more models in its models' folder."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "models").mkdir()
    for name in ("one", "two"):
        shutil.copyfile(builtin_model().path, folder / "models" / f"{name}.gguf")
    running = start_daemon(folder / "state", "builtin", "--models-dir", str(folder / "models"))
    yield running
    stop_daemon(running)


def num_workers(daemon: Daemon) -> int:
    children = psutil.Process(daemon.process.pid).children()
    return sum("edgeagent.worker.child.process" in " ".join(child.cmdline()) for child in children)


async def test_ollamas_client_switches_loads_and_unloads(shelf: Daemon) -> None:
    client = ollama.AsyncClient(host=shelf.url)
    answers = await asyncio.gather(
        *(client.chat("one", HI, options={"num_predict": 2, "num_ctx": size}) for size in (512, 1024))
    )
    assert all(answer.message.content for answer in answers)
    assert num_workers(shelf) == 2  # the default model's and one more, for any requested context size
    assert {model.model for model in (await client.ps()).models} == {"builtin:latest", "one:latest"}
    assert (await client.generate("two", keep_alive="5m")).done_reason == "load"
    loaded = {model.model: model for model in (await client.ps()).models}
    assert present(loaded["two:latest"].expires_at) < present(loaded["builtin:latest"].expires_at)
    assert (await client.generate("two", keep_alive=0)).done_reason == "unload"
    assert num_workers(shelf) == 2
    await client.chat("one", HI, options={"num_predict": 1}, keep_alive=0)
    assert {model.model for model in (await client.ps()).models} == {"builtin:latest"}
    await client._client.aclose()


async def test_openais_client_switches_models(shelf: Daemon) -> None:
    async with openai.AsyncOpenAI(base_url=f"{shelf.url}/v1", api_key="none") as client:
        for model in ("two", "builtin", "default"):
            chat = await client.chat.completions.create(model=model, messages=HI, max_tokens=2)
            assert chat.choices[0].message.content is not None
            response = await client.responses.create(model=model, input="Hello!", max_output_tokens=16)
            assert response.output_text
        with pytest.raises(openai.NotFoundError, match="'tow' not found"):
            await client.chat.completions.create(model="tow", messages=HI)


async def test_one_socket_switches_models_and_a_conversation_goes_on_with_another(shelf: Daemon) -> None:
    async with connect(f"{shelf.url.replace('http', 'ws')}/v1/responses") as socket:
        previous = None
        for model in ("builtin", "one", "two", "one"):
            create = {"model": model, "input": "Hello!", "max_output_tokens": 8, "previous_response_id": previous}
            await socket.send(json.dumps({"type": "response.create", **create}))
            events = [json.loads(await socket.recv())]
            while events[-1]["type"] not in ("response.completed", "response.incomplete"):
                events.append(json.loads(await socket.recv()))
                assert events[-1]["type"] not in ("error", "response.failed"), events[-1]
            assert any(event["type"] == "response.output_text.delta" for event in events)
            assert events[-1]["response"]["model"] == model
            assert events[-1]["response"]["previous_response_id"] == previous
            previous = events[-1]["response"]["id"]
    assert num_workers(shelf) == 3


async def test_the_owner_loads_and_unloads(shelf: Daemon) -> None:
    async with httpx.AsyncClient(base_url=shelf.url, timeout=patient(60)) as http:
        assert (await http.post("/edgeagent/load?model=one")).json()["status"] == "loaded"
        assert (await http.post("/edgeagent/unload?model=one")).json()["status"] == "unloaded"
        models = (await http.get("/edgeagent/status")).json()["models"]
    assert "one" not in {model["name"] for model in models if model["pid"] is not None}


async def test_a_copys_name_given_to_another_model_means_that_one_at_once(shelf: Daemon) -> None:
    client = ollama.AsyncClient(host=shelf.url)
    async with httpx.AsyncClient(base_url=shelf.url, timeout=patient(60)) as http:
        for source in ("one", "two"):
            await client.copy(source, "mine")
            assert (await http.post("/edgeagent/load?model=mine")).json()["model"] == source
        await client.delete("mine")
        assert (await http.post("/edgeagent/load?model=mine")).status_code == 404
        for source in ("one", "two"):
            await http.post("/edgeagent/unload", params={"model": source})
    await client._client.aclose()
