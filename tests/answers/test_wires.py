"""Kept answers on every wire: the same events as from a model, ids of their own, a mark. And the owner's routes."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from edgeagent.api.app import create_app
from edgeagent.api.wyoming.server import Wyoming
from edgeagent.config import Config
from edgeagent.daemon.listeners import bind
from edgeagent.state_files import ANSWERS_FILE
from edgeagent.types import FinishReason, ReasoningDelta, Started, TextDelta, ToolCallDelta, ToolCallStarted
from tests.answers.caches import ModelBackend, caching
from tests.backends.fake import finished
from tests.daemon.running import TOKEN, Running, running
from tests.owner_key import OwnerKey
from tests.patience import patient

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


def ids(event: Any, names: tuple[str, ...] = ("id", "call_id", "response_id")) -> set[str]:
    match event:
        case dict():
            own = {str(value) for name, value in event.items() if name in names and value}
            return own.union(*(ids(value, names) for value in event.values()))
        case list():
            return set().union(*(ids(each, names) for each in event))
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


async def realtime_events(daemon: Running) -> list[Any]:
    """Ask in a Realtime session of its own. Return its events up to the end of the answer."""
    url = f"ws://127.0.0.1:{daemon.port}/v1/realtime"
    events: list[Any] = []
    async with connect(url, additional_headers=OWNER) as socket, asyncio.timeout(patient(30)):
        tools = [{"type": "function", **TOOL}]
        said = [{"type": "input_text", "text": "What time is it?"}]
        for event in (
            {"type": "session.update", "session": {"type": "realtime", "tools": tools, "output_modalities": ["text"]}},
            {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": said}},
            {"type": "response.create"},
        ):
            await socket.send(json.dumps(event))
        while not events or events[-1]["type"] != "response.done":
            events.append(json.loads(await socket.recv()))
    return events


async def test_a_kept_answer_over_the_realtime_api(model_file: Path) -> None:
    script = SCRIPT
    backend = ModelBackend(model_file, lambda request: [finished(output=0)] if request.prefill_only else script)
    async with caching(backend, sampled=True) as answers, running(answers, answers=answers) as daemon:
        made, kept, third = [await realtime_events(daemon) for _ in range(3)]
    assert len([request for request in backend.requests if not request.prefill_only]) == 1
    begin = next(index for index, event in enumerate(kept) if event["type"] == "response.created")
    assert [shape(event) for event in kept[begin:]] == [shape(event) for event in made[begin:]]
    assert not marks(made) and marks(kept), "it says that it was kept"
    names = ("id", "call_id", "response_id", "item_id", "event_id")
    common = ids(kept, names) & ids(third, names) - {mark["id"] for mark in marks(kept) if isinstance(mark, dict)}
    assert not common, "ids are its own"


async def test_a_kept_answer_over_wyoming(model_file: Path) -> None:
    from wyoming.asr import Transcript
    from wyoming.client import AsyncTcpClient
    from wyoming.event import Event

    text = " ".join(map(str, range(200)))
    backend = ModelBackend(model_file, lambda _: (Started(8, 0), *map(TextDelta, text.split(" ")), finished()))

    async def ask(port: int) -> list[Event]:
        events: list[Event] = []
        async with AsyncTcpClient("127.0.0.1", port, read_timeout=patient(10)) as client:
            await client.write_event(Transcript("What time is it?", language="en").event())
            while not events or events[-1].type != "handled-stop":
                event = await client.read_event()
                assert event is not None and event.type in ("handled-start", "handled-chunk", "handled", "handled-stop")
                events.append(event)
        return events

    async with caching(backend, sampled=True) as answers:
        app = create_app(Config(), answers, keys=OwnerKey(TOKEN), answers=answers)
        with closing(bind("127.0.0.1", 0, "--wyoming")) as listener:
            serving = asyncio.create_task(Wyoming(app.state.context).serve(listener))
            asked = [await ask(listener.getsockname()[1]) for _ in range(3)]
            serving.cancel()
            await asyncio.wait({serving})
        assert answers.counts == {"miss": 1, "exact": 2}
    conversations = set()
    for events in asked:
        *pieces, whole, stop = events
        assert [pieces[0].type, whole.type, stop.type] == ["handled-start", "handled", "handled-stop"]
        assert "".join(each.data["text"] for each in pieces[1:]) == whole.data["text"] == text.replace(" ", "")
        assert pieces[0].data["context"] == whole.data["context"]
        conversations.add(whole.data["context"]["conversation_id"])
    assert len(conversations) == 3, "each is a conversation of its own"


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


async def test_without_a_cache_the_routes_say_so(tmp_path: Path) -> None:
    async with running(ModelBackend(Path("none.gguf")), Config(state_dir=tmp_path)) as daemon:
        url = f"{daemon.url}/edgeagent/answers"
        assert (await daemon.http.get(url, headers=OWNER)).json() == {"is_on": False}
        assert (await daemon.http.get(f"{url}/list", headers=OWNER)).json() == {"answers": []}
        assert (await daemon.http.delete(f"{url}/0", headers=OWNER)).json()["error"]["code"] == "not_supported"
        assert (await daemon.http.post(f"{url}/forget", headers=OWNER)).json()["num_answers"] == 0
        (tmp_path / ANSWERS_FILE).touch()
        refused = (await daemon.http.post(f"{url}/forget", headers=OWNER)).json()["error"]
        assert refused["code"] == "not_supported" and f"delete {ANSWERS_FILE}*" in refused["message"]
