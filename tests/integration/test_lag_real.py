"""L9 with a real worker: while it tokenizes, renders, compiles, computes and writes to disk, the loop stays in time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from edgeagent.config import Config, EngineConfig
from edgeagent.router import build
from edgeagent.types import WorkerState
from tests.daemon.running import running
from tests.robust.lag import assert_in_time, post
from tests.worker.support import eventually

MIB = 1 << 20

pytestmark = [pytest.mark.alone, pytest.mark.slow(seconds=12)]

numbers = itertools.count()


def tokenize() -> bytes:
    return json.dumps({"content": ("word " * (MIB // 5))[:MIB], "with_pieces": True}).encode()


def render() -> bytes:
    """Return a conversation that was not rendered before."""
    messages = [{"role": role, "content": f"{next(numbers)} {'word ' * 200}"} for role in ("user", "assistant") * 200]
    return json.dumps({"messages": messages}).encode()


def compile_schema() -> bytes:
    """Return a new request with the largest schema that is accepted."""
    properties = {f"field{next(numbers)}": {"type": "string", "maxLength": 9} for _ in range(800)}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "large", "schema": schema, "strict": True}}
    return json.dumps({**chat("Hello!"), "response_format": form}).encode()


def compute_and_keep() -> bytes:
    """Return a new prompt of several blocks, which are written to disk."""
    return json.dumps(chat(f"{next(numbers)} " + "some other words " * 200)).encode()


def chat(text: str) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 2}


Make = Callable[[], bytes]

ACTIVITIES: list[tuple[str, Make]] = [
    ("/tokenize", tokenize),
    ("/apply-template", render),
    ("/v1/chat/completions", compile_schema),
    ("/v1/chat/completions", compute_and_keep),
]


async def test_what_the_worker_does_is_not_felt(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path / "state", model="builtin", engine=EngineConfig())
    config.state_dir.mkdir(mode=0o700)
    router = build(config)
    await router.start()
    try:
        await eventually(lambda: router.models.statuses()[0].state is WorkerState.READY)
        async with running(router, config) as daemon:
            for path, make in ACTIVITIES:

                async def act(path: str = path, make: Make = make) -> None:
                    status = await asyncio.to_thread(partial(post, daemon.port, path, make()))
                    assert status == 200, path

                await assert_in_time(act)
    finally:
        await router.stop()
