"""The buffer before a slow socket: order, what a protocol merges, bounds."""

from __future__ import annotations

import asyncio

from edgeagent.api.socket.outbox import MAX_FLOOD_BYTES, MAX_PENDING_BYTES, Outbox, Send
from tests.api.socket.echo import WordMerging, drain


def say(outbox: Outbox, text: str) -> None:
    outbox.push(Send({"type": "word", "text": text}))


async def test_order_is_kept_and_what_waits_is_merged() -> None:
    merging = WordMerging()
    outbox = Outbox(merging)
    say(outbox, "a")
    say(outbox, "b")
    outbox.push(Send({"type": "end"}))
    say(outbox, "c")
    assert [event.get("text") for event in await drain(outbox)] == ["ab", None, "c"]
    assert [entry.event["type"] for entry in merging.appended] == ["word", "end", "word"]


async def test_what_was_taken_is_not_merged_into() -> None:
    outbox = Outbox(WordMerging())
    say(outbox, "a")
    taken = await outbox.take()
    say(outbox, "b")
    assert isinstance(taken, Send) and taken.event["text"] == "a"
    assert [event["text"] for event in await drain(outbox)] == ["b"]


async def test_full_until_drained() -> None:
    outbox = Outbox(WordMerging())
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
    outbox = Outbox(WordMerging())
    outbox.push(Send({"type": "error", "text": "x" * MAX_FLOOD_BYTES}))
    assert not outbox.is_flooded
    outbox.push(Send({"type": "error", "text": "x"}))
    assert outbox.is_flooded
