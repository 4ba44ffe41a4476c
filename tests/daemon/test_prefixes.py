"""Prefixes that the owner configured: computed once per model process; a failure does not stop the others."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import cast

import pytest

from edgeagent.config import Config, ModelConfig
from edgeagent.daemon.prefixes import Prefixes
from edgeagent.errors import ModelNotFound, Overloaded
from edgeagent.service.service import Service
from edgeagent.types import (
    ChatPrompt,
    Finished,
    FinishReason,
    GenerateRequest,
    ModelStatus,
    RouteMode,
    Sink,
    Step,
    TextPrompt,
    Tier,
    Timings,
    Usage,
    WorkerState,
)


class FakeService:
    """Models with processes, and the requests that were received."""

    def __init__(self) -> None:
        self.pids: dict[str, int | None] = {"big": None}
        self.requests: list[GenerateRequest] = []
        self.failure: Exception | None = None

    @property
    def models(self) -> FakeService:
        return self

    def statuses(self) -> list[ModelStatus]:
        return [
            ModelStatus(name, WorkerState.STOPPED if pid is None else WorkerState.READY, pid=pid)
            for name, pid in self.pids.items()
        ]

    async def locate(self, name: str) -> str:
        if name == "org/big":
            return "big"
        raise ModelNotFound(f"{name} is not here")

    async def generate(self, request: GenerateRequest, sink: Sink) -> None:
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        sink.put(Step((Finished(FinishReason.STOP, Usage(num_prompt_tokens=9), Timings()),)))


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "assistant.txt"
    path.write_text("You are kind.")
    return path


def make(service: FakeService, *files: Path, name: str = "org/big") -> Prefixes:
    config = Config(models={name: ModelConfig(prefixes=files), "elsewhere": ModelConfig(prefixes=files)})
    return Prefixes(cast(Service, service), config)


async def test_each_process_computes_them_once(service: FakeService, text: Path) -> None:
    prefixes = make(service, text)
    assert prefixes.are_wanted
    await prefixes.compute_missing()
    assert service.requests == []
    service.pids["big"], service.pids["other"] = 7, 8
    await prefixes.compute_missing()
    await prefixes.compute_missing()
    (request,) = service.requests
    assert (request.model, request.tier, request.route) == ("big", Tier.BATCH, RouteMode.LOCAL_ONLY)
    assert request.prefill_only
    assert request.cache.pin
    assert isinstance(request.prompt, ChatPrompt)
    assert [message.role for message in request.prompt.messages] == ["system", "user"]
    service.pids["big"] = 9
    await prefixes.compute_missing()
    assert len(service.requests) == 2


async def test_json_is_what_warming_takes(service: FakeService, tmp_path: Path) -> None:
    path = tmp_path / "raw.json"
    path.write_text(json.dumps({"prompt": "Once upon a time", "model": "another"}))
    service.pids["big"] = 7
    await make(service, path).compute_missing()
    (request,) = service.requests
    assert request.prompt == TextPrompt("Once upon a time")
    assert request.model == "big"


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.json", "[]", "not a JSON object"),
        ("a.json", "{", "Expecting property name"),
        ("a.json", '{"messages": []}', "messages"),
        ("a.txt", b"\xff", "can't decode"),
        ("missing.txt", None, "cannot be read: No such file"),
    ],
)
async def test_a_bad_file_is_told_and_the_next_is_computed(
    service: FakeService,
    tmp_path: Path,
    text: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
    content: str | bytes | None,
    why: str,
) -> None:
    bad = tmp_path / name
    if content is not None:
        bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    service.pids["big"] = 7
    with caplog.at_level(logging.INFO):
        await make(service, bad, text).compute_missing()
    assert why in caplog.text
    assert len(service.requests) == 1


async def test_a_refused_prefix_is_told(service: FakeService, text: Path, caplog: pytest.LogCaptureFixture) -> None:
    service.pids["big"], service.failure = 7, Overloaded("too many wait")
    await make(service, text).compute_missing()
    assert "too many wait" in caplog.text


def test_none_are_wanted_by_default(service: FakeService) -> None:
    assert not Prefixes(cast(Service, service), Config()).are_wanted
