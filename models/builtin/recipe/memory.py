"""Follow-up questions about what the user said earlier, and requests to repeat something."""

from __future__ import annotations

from . import pools
from .facts import Fact
from .phrasing import more, worded
from .samples import Check, Draw, Message, Sample, lines, reply, restyle, user
from .talk import any_system, opening_turns
from .texts import TRAINING, read_texts

_TEXTS = read_texts("memory")

NO_NAME = "You have not told me your name yet."

_MY_NAME = more(lines(_TEXTS["my_name"]), TRAINING["my_name"])
_WHO_AM_I = more(lines(_TEXTS["who_am_i"]), TRAINING["who_am_i"])
_REMEMBER = more(lines(_TEXTS["remember"]), TRAINING["remember"])
_RECALL = more(lines(_TEXTS["recall"]), TRAINING["recall"])
_SAY = more(lines(_TEXTS["say"]), TRAINING["say"])


def _before(draw: Draw) -> list[Message]:
    return [*any_system(draw), *(opening_turns(draw) if draw.chance(0.15) else [])]


def greeting_by_name(draw: Draw) -> Sample:
    """Make a conversation in which the user says a name and the assistant greets the user by it."""
    called = pools.name(draw)
    turns = [user(restyle(draw, str(draw.pick(_MY_NAME)).format(x=called))), reply(f"Nice to meet you, {called}.")]
    return Sample("follow_up", [*_before(draw), *turns], Check("contains", (called,)))


def recall_name(draw: Draw) -> Sample:
    """Make a conversation in which the user asks for the name said earlier, or for a name that was never said."""
    question = user(restyle(draw, worded(draw, _WHO_AM_I, 0.15)))
    if draw.chance(0.2):
        return Sample("follow_up", [*_before(draw), question, reply(NO_NAME)], Check("exact", (NO_NAME,)))
    told = greeting_by_name(draw)
    called = told.check.values[0]
    between = opening_turns(draw) if draw.chance(0.35) else []
    messages = [*told.messages, *between, question, reply(f"Your name is {called}.")]
    return Sample("follow_up", messages, Check("contains", (called,)))


def _note(draw: Draw) -> tuple[str, str]:
    """Draw a fact to remember: a key in the user's words, and its value."""
    roll = draw.random.random()
    if roll < 0.3:
        noun = str(draw.pick(pools.PREFERENCES))
        return f"my favourite {noun}", draw.open(pools.pseudo_word) if draw.chance(0.5) else str(draw.pick(pools.ITEMS))
    if roll < 0.6:
        return f"my {pools.key(draw)}", pools.value(draw)
    if roll < 0.75:
        return (
            f"my {draw.any(('sister', 'brother', 'dog', 'cat', 'daughter', 'son', 'mother', 'boss'))}'s name",
            pools.name(draw),
        )
    return f"the {pools.key(draw)}", pools.value(draw)


def _yours(key: str) -> str:
    return "your" + key[2:] if key.startswith("my ") else key


def note_taken(draw: Draw) -> Sample:
    """Make a conversation in which the user states a fact and the assistant confirms it word for word."""
    key, value = _note(draw)
    text = str(draw.pick(_REMEMBER)).format(fact=f"{key} is {value}")
    answer = f"Noted: {_yours(key)} is {value}."
    return Sample("follow_up", [*_before(draw), user(restyle(draw, text)), reply(answer)], Check("contains", (value,)))


def note_recalled(draw: Draw) -> Sample:
    """Make a conversation in which the user states one or two facts and then asks for one of them."""
    notes = [_note(draw) for _ in range(draw.any((1, 1, 2)))]
    if len({key for key, _ in notes}) < len(notes):
        return note_recalled(draw)
    messages = _before(draw)
    for key, value in notes:
        messages.append(user(restyle(draw, str(draw.pick(_REMEMBER)).format(fact=f"{key} is {value}"))))
        messages.append(reply(f"Noted: {_yours(key)} is {value}."))
    if draw.chance(0.25):
        messages += opening_turns(draw)
    key, value = draw.any(notes)
    messages.append(user(restyle(draw, worded(draw, _RECALL, 0.15).format(key=key))))
    answer = Fact("value", _yours(key), value).answer.replace("The your", "Your").replace("The the", "The")
    return Sample("follow_up", [*messages, reply(answer)], Check("contains", (value,)))


def repeated(draw: Draw) -> Sample:
    """Make a conversation in which the user asks to repeat words or a code."""
    pieces = [draw.open(pools.pseudo_word) if draw.chance(0.6) else pools.value(draw) for _ in range(draw.whole(1, 4))]
    text = " ".join(pieces)
    request = str(draw.pick(_SAY)).format(x=text)
    return Sample("follow_up", [*_before(draw), user(request), reply(text)], Check("exact", (text,)))
