"""The buffer before a slow socket: order and bounds."""

from __future__ import annotations

import asyncio

from edgeagent.api.responses.socket.outbox import MAX_PENDING_BYTES, Close, Outbox, Send
from edgeagent.api.wire.shape import Json


def say(outbox: Outbox, text: str) -> None:
    event = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": text, "logprobs": []}
    outbox.push(Send(event | {"sequence_number": 0}, "resp_1"))


def drain(outbox: Outbox) -> list[Json]:
    """Return the events that wait in an outbox, up to a Close."""
    events: list[Json] = []
    while isinstance(entry := outbox.take(), Send):
        events.append(entry.event)
    return events


def test_order_is_kept_and_a_close_comes_last() -> None:
    outbox = Outbox()
    say(outbox, "a")
    say(outbox, "b")
    outbox.push(Send({"type": "response.in_progress", "sequence_number": 1}, "resp_1"))
    outbox.push(Close(1000, ""))
    assert [event.get("delta") for event in drain(outbox)] == ["a", "b", None]
    assert outbox.take() is None


async def test_full_until_drained() -> None:
    outbox = Outbox()
    assert not outbox.is_full
    say(outbox, "x")
    say(outbox, "x" * MAX_PENDING_BYTES)
    assert outbox.is_full
    waiting = asyncio.create_task(outbox.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    drain(outbox)
    await waiting
    assert not outbox.is_full


def test_what_is_being_written_counts() -> None:
    outbox = Outbox()
    outbox.push(Send({"type": "response.steer.failed"}, num_bytes=MAX_PENDING_BYTES))
    outbox.take()
    assert outbox.is_full and outbox.num_bytes > MAX_PENDING_BYTES
    assert outbox.take() is None
    assert not outbox.is_full and outbox.num_bytes == 0
