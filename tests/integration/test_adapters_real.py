"""LoRA adapters in a real daemon: selected by name, used beside each other, and kept when a worker dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from edgeagent.store.names.catalog import builtin_model
from tests.adapters import make_adapter
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient

MODELS = ("builtin", "builtin+one", "builtin+two")
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 400, "maxItems": 400}
FORMAT = {"type": "json_schema", "json_schema": {"name": "numbers", "strict": True, "schema": NUMBERS}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("lora")
    lines = ['[models."builtin".adapters]']
    # With these adapters no two tokens are almost equally likely; the requests that share a step change the rounding.
    for name, seed, std in (("one", 2, 0.25), ("two", 3, 0.2)):
        path = make_adapter(folder / f"{name}.gguf", builtin_model().path, seed=seed, std=std)
        lines.append(f"{name} = '{path}'")
    make_adapter(folder / "fatal.gguf", builtin_model().path, num_stacked=2)
    lines.append(f"fatal = '{folder / 'fatal.gguf'}'")
    (folder / "short.gguf").write_bytes((folder / "one.gguf").read_bytes()[:1000])
    lines += [f"short = '{folder / 'short.gguf'}'", f"gone = '{folder / 'gone.gguf'}'"]
    (folder / "config.toml").write_text("\n".join(lines))
    running = start_daemon(folder / "state", "builtin", "--config", str(folder / "config.toml"))
    yield running
    stop_daemon(running)


def body(model: str, **fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "Tell me something about the kitchen and the lamps in it."}]
    return {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0} | fields


async def text_of(client: httpx.AsyncClient, daemon: Daemon, model: str, **fields: object) -> str:
    reply = await client.post(f"{daemon.url}/v1/chat/completions", json=body(model, **fields))
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


async def test_each_adapter_answers_as_itself_beside_the_others(daemon: Daemon) -> None:
    async with httpx.AsyncClient(timeout=patient(60)) as client:
        alone = {model: await text_of(client, daemon, model) for model in MODELS}
        assert len(set(alone.values())) == 3
        beside = await asyncio.gather(*(text_of(client, daemon, model) for model in MODELS * 4))
        assert beside == [alone[model] for model in MODELS * 4]
        assert await text_of(client, daemon, "builtin", edgeagent={"adapter": "two"}) == alone["builtin+two"]


async def test_they_are_models_to_openais_client(daemon: Daemon) -> None:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none") as client:
        models = {model.id: model.model_dump().get("parent") async for model in client.models.list()}
        assert models == models | {"builtin": None, "builtin+one": "builtin", "builtin+two": "builtin"}
        assert (await client.models.retrieve("builtin+one")).id == "builtin+one"
        with pytest.raises(openai.NotFoundError, match="builtin has these adapters: one, two, fatal, short, gone"):
            await client.chat.completions.create(**body("builtin+three"))


async def test_one_whose_file_is_fatal_damaged_or_gone_is_refused_alone(daemon: Daemon) -> None:
    async with httpx.AsyncClient(timeout=patient(60)) as client:
        for name in ("fatal", "short", "gone"):
            reply = await client.post(f"{daemon.url}/v1/chat/completions", json=body(f"builtin+{name}"))
            assert reply.status_code == 422, reply.text
            assert f"the adapter {name} cannot be used" in reply.json()["error"]["message"]
            assert f"{name}.gguf" in reply.json()["error"]["message"]
        assert await text_of(client, daemon, "builtin")


@pytest.mark.slow(seconds=3)
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
async def test_the_next_worker_continues_with_the_adapter(daemon: Daemon) -> None:
    async with httpx.AsyncClient(timeout=patient(60)) as client:
        wanted = await text_of(client, daemon, "builtin+one", max_tokens=300, response_format=FORMAT)
        running = asyncio.create_task(text_of(client, daemon, "builtin+one", max_tokens=300, response_format=FORMAT))
        victim = daemon.worker_pid()
        await asyncio.sleep(0.1)
        os.kill(victim, signal.SIGKILL)
        assert await running == wanted
        assert await text_of(client, daemon, "builtin+one", max_tokens=1)
    assert daemon.worker_pid() != victim
