"""Longer conversations: one system prompt, then several exchanges of different kinds, like a day at a kiosk."""

from __future__ import annotations

from . import facts, memory, sums, talk, tools
from .actions import household
from .samples import Check, Draw, Message, Sample


def _strip(messages: list[Message]) -> list[Message]:
    return [m for m in messages if m["role"] != "system"]


def session(draw: Draw, most_facts: int = 8, most_turns: int = 5) -> Sample:
    """Draw a longer conversation. Training uses every assistant turn; evaluation checks only the last one."""
    known = facts.distinct_facts(draw, draw.whole(2, most_facts))
    order = household(draw) if draw.chance(0.4) else None
    messages: list[Message] = [facts.fact_prompt(draw, known)]
    check = Check("exact")
    for _ in range(draw.whole(2, most_turns)):
        roll = draw.random.random()
        if roll < 0.45:
            fact = draw.any(known)
            added, check = facts.exchange(draw, fact), Check("contains", (fact.value,))
        elif roll < 0.55 and order is not None:
            added, check = tools.exchange(draw, order), Check("contains", ())
        else:
            make = draw.any(
                (
                    talk.nameless_talk,
                    sums.simple_sum,
                    talk.foreign,
                    memory.note_taken,
                    memory.greeting_by_name,
                    sums.conversion,
                )
            )
            sample = make(draw)
            added, check = _strip(sample.messages), sample.check
        messages += added
    if len(messages) == 1:
        messages += facts.exchange(draw, known[0])
    return Sample("sessions", messages, check, [order.tool] if order else [])


def long_session(draw: Draw) -> Sample:
    """Draw a session that fills most of the model's context."""
    return session(draw, most_facts=40, most_turns=24)
