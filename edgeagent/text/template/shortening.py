"""Finds the places where a conversation that is too long for its context can be cut.

The prefix cache reuses a prompt only up to the first token that differs. So messages are dropped from the front in
steps whose size does not depend on the conversation's end, and the cut stays at the same place for many turns. When the
next step is due, the remaining messages are computed again. This module neither renders messages nor counts tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edgeagent.types import Message


def text_of(message: Message) -> str:
    """Return all text of a message, to measure its length."""
    parts = [message.content, message.reasoning]
    parts += [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return "\n".join(filter(None, parts))


def num_items(messages: Sequence[Message]) -> int:
    """Return how many items of a client's input these messages stand for.

    Reasoning, text and each call of a message are items of their own. An empty message is one item.
    """
    parts = (bool(each.reasoning) + bool(each.content) + len(each.tool_calls) for each in messages)
    return sum(max(1, num) for num in parts)


def cut_before(messages: Sequence[Message], place: int) -> tuple[Message, ...]:
    """Return the conversation without the messages before `place`. System messages and the last user message stay."""
    last = _last_of_user(messages)
    kept = (index for index, message in enumerate(messages) if index >= place or index == last or _is_system(message))
    return tuple(messages[index] for index in kept)


def cut_places(messages: Sequence[Message], step: int, size: Callable[[Message], int]) -> list[int]:
    """Return the indices where the conversation can be cut, in order: one after each step, and the last possible one.

    Each step drops messages with a total size of about `step`. `size` returns a message's size, which must be the same
    at each call. A cut is before a user's message, because templates require a conversation to begin with one. The last
    user message is never dropped; after it, a cut is before a message of the assistant. A call and its result are
    dropped together. The last message is never dropped.
    """
    places: list[int] = []
    due, num_dropped, previous = step, 0, 0
    for place in _possible_places(messages):
        dropped = (message for message in messages[previous:place] if not _is_system(message))
        num_dropped += sum(map(size, dropped))
        previous = place
        if num_dropped >= due:
            places.append(place)
            due = (num_dropped // step + 1) * step
    if previous and previous not in places:
        places.append(previous)
    return places


def _possible_places(messages: Sequence[Message]) -> Iterator[int]:
    last = _last_of_user(messages)
    open_calls: set[str | None] = set()
    results = {message.tool_call_id for message in messages if message.role == "tool"}
    for place, message in enumerate(messages):
        is_begin = message.role == "user" if place <= last else message.role == "assistant" and place > last + 1
        is_first = all(map(_is_system, messages[:place])) if place <= last else False
        if is_begin and not open_calls and not is_first:
            yield place
        open_calls.update(call.id for call in message.tool_calls if call.id in results)
        open_calls.discard(message.tool_call_id)


def _last_of_user(messages: Sequence[Message]) -> int:
    return max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)


def _is_system(message: Message) -> bool:
    return message.role == "system"
