"""Whole conversations on a socket, frame by frame, compared with golden files: what a client may rely on.

`make golden` writes the files again; review the changes afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgeagent.api.responses.socket.frames import read_frame
from edgeagent.api.responses.socket.session import MAX_ACTIVE
from edgeagent.errors import Overloaded, WorkerCrashed
from edgeagent.types import FinishReason, ReasoningDelta, Started, TextDelta, ToolCallDelta, ToolCallStarted
from tests.api.responses.socket.session_client import Client
from tests.api.serving import check_golden
from tests.backends.fake import finished

CALL = (ToolCallStarted(0, "call_1", "set_timer"), ToolCallDelta(0, '{"minutes"'), ToolCallDelta(0, ":5}"))


def tool_call(client: Client) -> None:
    tools = [{"type": "function", "name": "set_timer", "parameters": {"type": "object"}}]
    client.create(input="five minutes", tools=tools)
    first = client.started[0]
    client.step(first, Started(8, 4))
    client.step(first, ReasoningDelta("A timer."))
    client.step(first, *CALL, finished(FinishReason.TOOL_CALLS))
    result = [{"type": "function_call_output", "call_id": "call_1", "output": "set"}]
    client.create(previous_response_id=first, input=result, tools=tools)
    client.finish(client.started[1], "Done.")


def lanes(client: Client) -> None:
    client.create(input="slow", stream_id="a")
    client.create(input="quick", stream_id="b")
    slow, quick = client.started
    client.step(slow, TextDelta("one"))
    client.finish(quick, "hello")
    client.step(slow, TextDelta(" two"), finished())


def queued(client: Client) -> None:
    for index in range(MAX_ACTIVE):
        client.create(stream_id=f"lane{index}")
    client.create(stream_id="late")
    for request_id in client.started[:MAX_ACTIVE]:
        client.fail(request_id, Overloaded("full", retry_after_s=2))
    client.finish(client.started[-1])


def cancelled(client: Client) -> None:
    client.create(input="count")
    first = client.started[0]
    client.step(first, TextDelta("one two"))
    client.send("response.cancel", response_id=first)
    client.step(first, finished(FinishReason.CANCELLED))
    client.send("response.cancel", response_id=first)


def steered(client: Client) -> None:
    client.create(input="count", stream_id="a")
    first = client.started[0]
    client.step(first, TextDelta("one two"))
    client.send("response.steer", previous_response_id=first, input="backwards")
    client.step(first, finished(FinishReason.CANCELLED))
    client.finish(client.started[1], "two one")
    client.send("response.steer", previous_response_id=first, input="again")


def steered_behind_a_call(client: Client) -> None:
    client.create(input="five minutes")
    first = client.started[0]
    client.step(first, *CALL)
    client.send("response.steer", previous_response_id=first, input="no, six")
    client.step(first, finished(FinishReason.TOOL_CALLS))
    result = [{"type": "function_call_output", "call_id": "call_1", "output": "set"}]
    client.create(previous_response_id=first, input=result)
    client.finish(client.started[1], "Six.")


def prefill_only(client: Client) -> None:
    client.create(instructions="Be brief.", input=[], generate=False)
    client.step(client.started[0], Started(8, 4), finished(output=0))


def failed(client: Client) -> None:
    client.create()
    client.step(client.started[0], TextDelta("ye"))
    client.fail(client.started[0], WorkerCrashed("the worker ended: signal 9", retry_after_s=1))


def refusals(client: Client) -> None:
    client.create(previous_response_id="resp_gone")
    client.create(stream_id="no such name")
    client.create(conversation="conv_1", previous_response_id="resp_gone")
    client.create(input=[{"type": "function_call_output", "call_id": "call_gone", "output": ""}])
    client.send("session.update")
    client.take(client.session.receive(read_frame("{")))
    client.take(client.session.expire())


SCENARIOS: tuple[Callable[[Client], None], ...] = (
    tool_call,
    lanes,
    queued,
    cancelled,
    steered,
    steered_behind_a_call,
    prefill_only,
    failed,
    refusals,
)


@pytest.mark.parametrize("play", SCENARIOS, ids=lambda play: play.__name__)
def test_golden(play: Callable[[Client], None]) -> None:
    client = Client()
    play(client)
    events = client.events
    if play is queued:
        # One of the sixteen equal lanes shows as much as all.
        events = [event for event in events if event.get("stream_id") in ("lane0", "late")]
    check_golden(f"session_{play.__name__}", events)
