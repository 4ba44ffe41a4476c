"""Tests of the grammar itself: it accepts every golden file and finds every planted fault."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.api.checked_app import CheckedApp
from tests.api.event_grammar import NOTES, EventGrammar, GrammarError, check_stream
from tests.api.serving import GOLDEN

Event = dict[str, Any]
Events = list[Event]

# One response for every kind of item and of end.
NAMES = ("text", "length", "failed", "cancelled", "reasoning_text_calls", "socket_compaction", "session_prefill_only")


def golden(name: str) -> Events:
    events: Events = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return events


def renumbered(events: Events) -> Events:
    """Return the events with consecutive numbers, so that a gap in the numbers does not reveal a fault."""
    return [event | {"sequence_number": index} for index, event in enumerate(events)]


def faults(events: Events) -> Iterator[tuple[str, Events]]:
    """Yield the stream with one event left out, repeated, or sent too early."""
    for index, event in enumerate(events):
        before, after = events[:index], events[index + 1 :]
        yield f"without {event['type']}", before + after
        yield f"twice {event['type']}", [*before, event, event, *after]
        if after and after[0] != event:
            yield f"{after[0]['type']} before {event['type']}", [*before, after[0], event, *after[1:]]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.json")), ids=lambda path: path.stem)
def test_every_golden_file_obeys(path: Any) -> None:
    check_stream(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_no_event_may_be_missing_repeated_or_early(name: str) -> None:
    events = golden(name)
    tried = 0
    for fault, broken in faults(events):
        tried += 1
        with pytest.raises(GrammarError):
            check_stream(renumbered(broken))
            pytest.fail(f"{name}: {fault} was not seen")
    assert tried > 2 * len(events)


def change(events: Events, kind: str, edit: Callable[[Event], object]) -> Events:
    """Return a copy of the events with the first one of a kind edited."""
    changed = copy.deepcopy(events)
    edit(next(event for event in changed if event["type"] == f"response.{kind}"))
    return changed


EDITS: list[tuple[str, str, Callable[[Event], object]]] = [
    ("text", "output_text.delta", lambda event: event.update(delta="x")),
    ("text", "output_text.delta", lambda event: event.update(logprobs=None)),
    ("text", "output_text.delta", lambda event: event.update(item_id="msg_other")),
    ("text", "output_text.delta", lambda event: event.update(output_index=1)),
    ("text", "output_text.delta", lambda event: event.update(content_index=1)),
    ("text", "output_text.delta", lambda event: event.update(type="response.reasoning_text.delta")),
    ("text", "output_text.done", lambda event: event.update(text="x")),
    ("text", "content_part.added", lambda event: event["part"].update(text="x")),
    ("text", "content_part.done", lambda event: event["part"].update(text="x")),
    ("text", "output_item.added", lambda event: event["item"].update(content=[{}])),
    ("text", "output_item.added", lambda event: event["item"].update(status="completed")),
    ("text", "output_item.added", lambda event: event.update(output_index=1)),
    ("text", "output_item.done", lambda event: event["item"].update(id="msg_other")),
    ("text", "output_item.done", lambda event: event["item"].update(status="in_progress")),
    ("text", "output_item.done", lambda event: event["item"]["content"][0].update(text="x")),
    ("text", "created", lambda event: event["response"].update(status="completed")),
    ("text", "in_progress", lambda event: event["response"].update(id="resp_other")),
    ("text", "in_progress", lambda event: event["response"].update(usage={})),
    ("text", "completed", lambda event: event["response"].update(id="resp_other")),
    ("text", "completed", lambda event: event["response"].update(status="incomplete")),
    ("text", "completed", lambda event: event["response"].update(output=[])),
    ("text", "completed", lambda event: event["response"].update(usage=None)),
    ("text", "completed", lambda event: event["response"].update(completed_at=None)),
    ("text", "completed", lambda event: event["response"]["output"][0].update(id="msg_other")),
    ("text", "completed", lambda event: event["response"]["usage"].update(total_tokens=0)),
    ("text", "completed", lambda event: event["response"].update(error={"code": "x", "message": "x"})),
    ("length", "incomplete", lambda event: event["response"].update(incomplete_details=None)),
    ("cancelled", "incomplete", lambda event: event["response"].update(incomplete_details={"reason": "x"})),
    ("failed", "failed", lambda event: event["response"].update(error=None)),
    ("session_tool_call", "function_call_arguments.delta", lambda event: event.update(delta="")),
    ("session_tool_call", "function_call_arguments.done", lambda event: event.update(arguments="{}")),
    ("session_tool_call", "function_call_arguments.done", lambda event: event.update(name="other")),
    ("session_tool_call", "reasoning_text.done", lambda event: event.update(text="x")),
    ("session_lanes", "output_text.delta", lambda event: event.update(stream_id="b")),
    ("session_lanes", "completed", lambda event: event.pop("stream_id")),
    ("socket_compaction", "output_item.done", lambda event: event["item"].update(type="message")),
]


@pytest.mark.parametrize(
    ("name", "kind", "edit"), EDITS, ids=[f"{index}-{name}" for index, (_, name, _) in enumerate(EDITS)]
)
def test_a_wrong_field_is_seen(name: str, kind: str, edit: Callable[[Event], object]) -> None:
    events = golden(name)
    check_stream(events)
    with pytest.raises(GrammarError):
        check_stream(change(events, kind, edit))


@pytest.mark.parametrize("number", [3, 5, -1, None, "4", True])
def test_numbers_come_one_by_one(number: Any) -> None:
    events = golden("text")
    events[4]["sequence_number"] = number
    with pytest.raises(GrammarError, match="number"):
        check_stream(events)


def test_a_background_responses_numbers_only_grow() -> None:
    events = copy.deepcopy(golden("text"))
    for index, event in enumerate(events):
        event["sequence_number"] = index * index
        if "response" in event:
            event["response"]["background"] = True
    check_stream(events)
    events[5]["sequence_number"] = events[4]["sequence_number"]
    with pytest.raises(GrammarError, match="grow"):
        check_stream(events)


def test_two_ends() -> None:
    events = golden("text")
    failed = copy.deepcopy(golden("failed")[-1])
    failed["response"]["id"] = events[-1]["response"]["id"]
    with pytest.raises(GrammarError):
        check_stream([*events, failed | {"sequence_number": len(events)}])


def test_an_end_is_needed() -> None:
    grammar = EventGrammar()
    for event in golden("text")[:-1]:
        grammar.feed(event)
    with pytest.raises(GrammarError, match="no terminal event"):
        grammar.finish()


def test_an_error_ends_nothing_that_has_begun() -> None:
    error = golden("socket_error")
    check_stream([*error, *golden("text"), *error])
    with pytest.raises(GrammarError, match="under way"):
        check_stream(golden("text")[:3] + error)


def test_notes_may_follow_the_end() -> None:
    events = golden("session_steered_behind_a_call")
    assert {event["type"] for event in events} >= NOTES
    check_stream(events)
    with pytest.raises(GrammarError, match="number"):
        check_stream([event for event in events if event["type"] != "response.steer.pending"][:9] + events[8:9])


async def play(*chunks: bytes, path: str = "/v1/responses") -> CheckedApp:
    """Return a checked application after it has sent a body in these chunks."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk})

    async def drop(_message: Any = None) -> Any:
        return None

    checked = CheckedApp(app)
    await checked({"type": "http", "path": path, "query_string": b""}, drop, drop)
    return checked


def framed(events: Events) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


async def test_a_checked_application_sees_what_its_streams_hold() -> None:
    body = framed(golden("text"))
    for size in (50, len(body)):
        whole = await play(*(body[start : start + size] for start in range(0, len(body), size)), b"data: [DONE]\n\n")
        whole.check()
        assert whole.num_events == len(golden("text"))
    for broken in (framed(golden("text")[1:]), framed(golden("text")[:-1]) + b"data: [DONE]\n\n"):
        with pytest.raises(GrammarError):
            (await play(broken)).check()
    named = body.replace(b"event: response.completed", b"event: response.failed")
    with pytest.raises(GrammarError, match="names"):
        (await play(named)).check()
