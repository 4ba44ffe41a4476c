"""The buffer before a slow socket: order, what is merged, bounds."""

from __future__ import annotations

import asyncio

from edgeagent.api.responses.socket.outbox import MAX_FLOOD_BYTES, MAX_PENDING_BYTES, Outbox, Send
from tests.api.responses.socket.test_merging import drain


def say(outbox: Outbox, text: str) -> None:
    event = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": text, "logprobs": []}
    outbox.push(Send(event | {"sequence_number": 0}, "resp_1"))


async def test_order_is_kept_and_what_waits_is_merged() -> None:
    outbox = Outbox()
    say(outbox, "a")
    say(outbox, "b")
    outbox.push(Send({"type": "response.in_progress", "sequence_number": 1}, "resp_1"))
    say(outbox, "c")
    assert [event.get("delta") for event in await drain(outbox)] == ["ab", None, "c"]


async def test_what_was_taken_is_not_merged_into() -> None:
    outbox = Outbox()
    say(outbox, "a")
    taken = outbox.take()
    say(outbox, "b")
    assert isinstance(taken, Send) and taken.event["delta"] == "a"
    assert [event["delta"] for event in await drain(outbox)] == ["b"]


async def test_full_until_drained() -> None:
    outbox = Outbox()
    assert not outbox.is_full
    say(outbox, "x")
    say(outbox, "x" * MAX_PENDING_BYTES)
    assert outbox.is_full
    waiting = asyncio.create_task(outbox.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await drain(outbox)
    await waiting
    assert not outbox.is_full


def test_a_flood_of_answers_is_noticed() -> None:
    outbox = Outbox()
    outbox.push(Send({"type": "error", "text": "x" * (MAX_FLOOD_BYTES - 1000)}))
    assert not outbox.is_flooded
    outbox.push(Send({"type": "error", "text": "x"}))
    assert outbox.is_flooded
