"""Kept answers on every wire: the same events as from a model, ids of their own, a mark. And the owner's routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeagent.config import Config
from edgeagent.types import FinishReason, ReasoningDelta, Started, TextDelta, ToolCallDelta, ToolCallStarted
from tests.answers.caches import ModelBackend, caching
from tests.backends.fake import finished
from tests.daemon.running import TOKEN, Running, running

OWNER = {"Authorization": f"Bearer {TOKEN}"}
MESSAGES = [{"role": "user", "content": "What time is it?"}]
TOOL = {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}
SCRIPT = (
    Started(8, 0),
    ReasoningDelta("Look."),
    TextDelta("One moment."),
    *(ToolCallStarted(0, "call_1", "clock"), ToolCallDelta(0, "{}")),
    finished(FinishReason.TOOL_CALLS),
)
WIRES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "temperature": 0, "tools": [{"type": "function", "function": TOOL}]},
    "/v1/responses": {"input": "What time is it?", "temperature": 0, "tools": [{"type": "function", **TOOL}]},
    "/v1/messages": {
        "model": "fake",
        "max_tokens": 9,
        "messages": MESSAGES,
        "temperature": 0,
        "tools": [{"name": "clock", "input_schema": TOOL["parameters"]}],
    },
    "/api/chat": {
        "model": "fake",
        "messages": MESSAGES,
        "options": {"temperature": 0},
        "tools": [{"type": "function", "function": TOOL}],
    },
    "/v1/completions": {"prompt": "What time is it?", "temperature": 0},
    "/completion": {"prompt": "What time is it?", "temperature": 0},
}


async def events(daemon: Running, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the JSON objects of a streamed answer, in order."""
    async with daemon.http.stream("POST", f"{daemon.url}{path}", json={**body, "stream": True}, headers=OWNER) as got:
        assert got.status_code == 200
        lines = [line async for line in got.aiter_lines()]
    parts = [line.removeprefix("data: ") for line in lines if line.startswith(("data: ", "{"))]
    return [json.loads(part) for part in parts if part != "[DONE]"]


def shape(event: Any) -> Any:
    """Return the names of an event's fields, without those that only a model's answer or only a kept one has."""
    skipped = {"edgeagent", "timings", "served_by", "reason", "model", "cache"}
    match event:
        case dict():
            return {name: shape(value) for name, value in event.items() if name not in skipped}
        case list():
            return [shape(value) for value in event]
        case str() | int() | float() | bool():
            return type(event).__name__.replace("float", "int")
    return event


def marks(event: Any) -> list[Any]:
    """Return all that says in an event that the answer was kept."""
    match event:
        case dict():
            own = [event["answer"]] if "age_s" in (event.get("answer") or ()) else []
            own += ["served_by"] if event.get("served_by") == "answers" else []
            return own + [mark for value in event.values() for mark in marks(value)]
        case list():
            return [mark for value in event for mark in marks(value)]
    return []


def ids(event: Any) -> set[str]:
    match event:
        case dict():
            own = {value for name, value in event.items() if name in ("id", "call_id", "response_id") and value}
            return {str(value) for value in own}.union(*map(ids, event.values()))
        case list():
            return set().union(*map(ids, event))
    return set()


@pytest.mark.parametrize("path", WIRES)
async def test_a_kept_answer_has_the_events_of_a_models(path: str, model_file: Path) -> None:
    script = SCRIPT if "tools" in WIRES[path] else (SCRIPT[0], SCRIPT[2], finished())
    backend = ModelBackend(model_file, lambda _: script)
    async with caching(backend) as answers, running(answers, answers=answers) as daemon:
        made, kept = [await events(daemon, path, WIRES[path]) for _ in range(2)]
        third = await events(daemon, path, WIRES[path])
    assert len(backend.requests) == 1
    assert [shape(event) for event in kept] == [shape(event) for event in made]
    assert not marks(made) and marks(kept), "it says that it was kept"
    if path != "/completion":
        common = ids(kept) & ids(third) - {mark["id"] for mark in marks(kept) if isinstance(mark, dict)}
        assert not {name for name in common if name not in ("fake", "0")}, "ids are its own"


@pytest.mark.parametrize("path", WIRES)
async def test_a_kept_answer_as_a_whole(path: str, model_file: Path) -> None:
    script = SCRIPT if "tools" in WIRES[path] else (SCRIPT[0], SCRIPT[2], finished())
    async with (
        caching(ModelBackend(model_file, lambda _: script)) as answers,
        running(answers, answers=answers) as daemon,
    ):
        body = {**WIRES[path], "stream": False}
        made, kept = [await daemon.http.post(f"{daemon.url}{path}", json=body, headers=OWNER) for _ in range(2)]
    assert shape(made.json()) == shape(kept.json())
    assert kept.headers["x-edgeagent-served-by"] == "answers" and kept.headers["x-edgeagent-reason"] == "exact"


@pytest.mark.parametrize(
    "more",
    [{"store": False}, {"no_store": True}, {"cache_prompt": False}, {"edgeagent": {"answers": "none"}}],
    ids=lambda more: next(iter(more)),
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_request_opts_out(path: str, more: dict[str, Any], model_file: Path) -> None:
    backend = ModelBackend(model_file)
    async with caching(backend) as answers, running(answers, answers=answers) as daemon:
        for body in ({**WIRES[path], **more}, WIRES[path], {**WIRES[path], **more}):
            assert (await daemon.http.post(f"{daemon.url}{path}", json=body, headers=OWNER)).status_code == 200
        assert len(backend.requests) == 3
        reading = {**WIRES[path], "store": False, "edgeagent": {"answers": "read"}}
        read = await daemon.http.post(f"{daemon.url}{path}", json=reading, headers=OWNER)
    assert marks(read.json()) and len(backend.requests) == 3


async def test_several_answers_to_one_question_are_not_one(model_file: Path) -> None:
    backend = ModelBackend(model_file)
    async with caching(backend, sampled=True) as answers, running(answers, answers=answers) as daemon:
        body = {"messages": MESSAGES, "n": 3}
        for num in (3, 5):
            await daemon.http.post(f"{daemon.url}/v1/chat/completions", json=body, headers=OWNER)
            assert len(backend.requests) == num


async def test_the_owner_sees_and_forgets(model_file: Path, tmp_path: Path) -> None:
    backend = ModelBackend(model_file)
    async with (
        caching(backend, tmp_path / "answers.sqlite3") as answers,
        running(answers, config=Config(state_dir=tmp_path), answers=answers) as daemon,
    ):

        async def asked(method: str, path: str, **given: Any) -> Any:
            got = await daemon.http.request(method, f"{daemon.url}/edgeagent/answers{path}", headers=OWNER, **given)
            assert got.status_code == 200, got.text
            return got.json()

        for path in ("/v1/chat/completions", "/v1/completions"):
            await daemon.http.post(f"{daemon.url}{path}", json=WIRES[path], headers=OWNER)
        listed = (await asked("GET", "/list"))["answers"]
        assert [(each["client"], each["question"]) for each in listed] == [("", "What time is it?")] * 2
        assert "text" not in listed[0]
        assert "text" in (await asked("GET", "/list?whole=true&limit=1"))["answers"][0]
        report = await asked("GET", "")
        assert (report["is_on"], report["num_answers"], report["outcomes"]) == (True, 2, {"miss": 2})
        assert await asked("DELETE", f"/{listed[0]['id']}") == {"status": "forgotten", "num_answers": 1}
        gone = await daemon.http.delete(f"{daemon.url}/edgeagent/answers/{listed[0]['id']}", headers=OWNER)
        assert gone.status_code == 404
        assert await asked("POST", "/forget", json={}) == {"status": "forgotten", "num_answers": 1}
        assert (await asked("GET", "/list"))["answers"] == []


async def test_without_a_cache_the_routes_say_so() -> None:
    async with running(ModelBackend(Path("none.gguf"))) as daemon:
        url = f"{daemon.url}/edgeagent/answers"
        assert (await daemon.http.get(url, headers=OWNER)).json() == {"is_on": False}
        assert (await daemon.http.get(f"{url}/list", headers=OWNER)).json() == {"answers": []}
        assert (await daemon.http.delete(f"{url}/0", headers=OWNER)).json()["error"]["code"] == "not_supported"
        assert (await daemon.http.post(f"{url}/forget", headers=OWNER)).json()["num_answers"] == 0
