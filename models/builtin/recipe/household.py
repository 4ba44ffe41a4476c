"""The household actions: for each one the names of its tool, the parameters, and the wordings of a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import pools
from .samples import Draw, Pool, lines, words
from .texts import read_texts

_TEXTS = read_texts("household")

Slots = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter: the names it may have, its JSON type, and its allowed values if there are few."""

    names: tuple[str, ...]
    type: str = "string"
    enum: tuple[str, ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Action:
    """One household action: tool names, descriptions, wordings of requests, and the sentence that reports success."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    slots: dict[str, Slot]
    asks: Pool
    amends: Pool | None
    done: str
    fill: Callable[[Draw], Slots]


def names(text: str) -> tuple[str, ...]:
    """Return tool names from comma-separated text. Training and evaluation use the same names."""
    return tuple(name.strip() for name in text.split(","))


def sentences(text: str) -> tuple[str, ...]:
    """Return a tool's descriptions from a text. Training and evaluation use the same descriptions."""
    return tuple(line.strip() for line in text.splitlines())


def number(draw: Draw, low: int, high: int, what: str) -> int:
    """Draw a number that belongs to the draw's split. Which numbers are held out depends on `what`."""
    return int(draw.open(lambda source: f"{what}{source.randint(low, high)}")[len(what) :])


_CHORES = words(_TEXTS["chores"])


def room(draw: Draw) -> str:
    return f"{draw.open(pools.pseudo_word)} room" if draw.chance(0.15) else str(draw.pick(pools.ROOMS))


def item(draw: Draw) -> str:
    return draw.open(pools.pseudo_word) if draw.chance(0.35) else str(draw.pick(pools.ITEMS))


def chore(draw: Draw) -> str:
    roll = draw.random.random()
    if roll < 0.5:
        return str(draw.pick(_CHORES))
    if roll < 0.75:
        return f"{draw.any(('call', 'meet', 'write to', 'visit'))} {pools.name(draw)}"
    return f"{draw.any(('buy', 'get', 'pick up'))} {item(draw)}"


ACTIONS: dict[str, Action] = {
    "timer": Action(
        names(_TEXTS["timer"]["names"]),
        sentences(_TEXTS["timer"]["descriptions"]),
        {"n": Slot(("minutes", "minutes", "duration_minutes", "mins", "length"), "integer")},
        lines(_TEXTS["timer"]["asks"]),
        lines(_TEXTS["timer"]["amends"]),
        "The timer is set for {n} minutes.",
        lambda draw: {"n": number(draw, 1, 120, "timer")},
    ),
    "alarm": Action(
        names(_TEXTS["alarm"]["names"]),
        sentences(_TEXTS["alarm"]["descriptions"]),
        {"time": Slot(("time", "time", "at", "alarm_time", "when")), "day": Slot(("day", "weekday"), optional=True)},
        lines(_TEXTS["alarm"]["asks"]),
        lines(_TEXTS["alarm"]["amends"]),
        "The alarm is set for {time}.",
        lambda draw: {"time": draw.open(pools.clock)},
    ),
    "light": Action(
        names(_TEXTS["light"]["names"]),
        sentences(_TEXTS["light"]["descriptions"]),
        {
            "room": Slot(("room", "room", "location", "area")),
            "state": Slot(("state", "state", "power"), enum=("on", "off")),
        },
        lines(_TEXTS["light"]["asks"]),
        lines(_TEXTS["light"]["amends"]),
        "The light in the {room} is {state}.",
        lambda draw: {"room": room(draw), "state": draw.any(("on", "off"))},
    ),
    "dim": Action(
        names(_TEXTS["dim"]["names"]),
        sentences(_TEXTS["dim"]["descriptions"]),
        {"room": Slot(("room", "location", "area")), "n": Slot(("level", "brightness", "percent"), "integer")},
        lines(_TEXTS["dim"]["asks"]),
        lines(_TEXTS["dim"]["amends"]),
        "The light in the {room} is at {n} percent.",
        lambda draw: {"room": room(draw), "n": number(draw, 1, 100, "dim")},
    ),
    "colour": Action(
        names(_TEXTS["colour"]["names"]),
        sentences(_TEXTS["colour"]["descriptions"]),
        {"room": Slot(("room", "location", "area")), "colour": Slot(("color", "colour"))},
        lines(_TEXTS["colour"]["asks"]),
        lines(_TEXTS["colour"]["amends"]),
        "The light in the {room} is {colour}.",
        lambda draw: {
            "room": room(draw),
            "colour": draw.pick(pools.COLOURS) if draw.chance(0.75) else draw.open(pools.pseudo_word),
        },
    ),
    "heating": Action(
        names(_TEXTS["heating"]["names"]),
        sentences(_TEXTS["heating"]["descriptions"]),
        {
            "room": Slot(("room", "room", "location", "zone")),
            "n": Slot(("degrees", "temperature", "target", "celsius"), "integer"),
        },
        lines(_TEXTS["heating"]["asks"]),
        lines(_TEXTS["heating"]["amends"]),
        "The {room} is set to {n} degrees.",
        lambda draw: {"room": room(draw), "n": number(draw, 5, 35, "heat")},
    ),
    "music": Action(
        names(_TEXTS["music"]["names"]),
        sentences(_TEXTS["music"]["descriptions"]),
        {"what": Slot(("query", "query", "artist", "song", "title"))},
        lines(_TEXTS["music"]["asks"]),
        lines(_TEXTS["music"]["amends"]),
        "Playing {what}.",
        lambda draw: {
            "what": draw.pick(pools.ARTISTS) if draw.chance(0.6) else draw.open(pools.pseudo_word).capitalize()
        },
    ),
    "volume": Action(
        names(_TEXTS["volume"]["names"]),
        sentences(_TEXTS["volume"]["descriptions"]),
        {"n": Slot(("level", "volume", "percent"), "integer")},
        lines(_TEXTS["volume"]["asks"]),
        lines(_TEXTS["volume"]["amends"]),
        "The volume is at {n}.",
        lambda draw: {"n": number(draw, 0, 100, "volume")},
    ),
    "pause": Action(
        names(_TEXTS["pause"]["names"]),
        sentences(_TEXTS["pause"]["descriptions"]),
        {},
        lines(_TEXTS["pause"]["asks"]),
        None,
        "The music is off.",
        lambda _: {},
    ),
    "list": Action(
        names(_TEXTS["list"]["names"]),
        sentences(_TEXTS["list"]["descriptions"]),
        {"item": Slot(("item", "item", "product", "entry"))},
        lines(_TEXTS["list"]["asks"]),
        lines(_TEXTS["list"]["amends"]),
        "I added {item} to the list.",
        lambda draw: {"item": item(draw)},
    ),
    "remind": Action(
        names(_TEXTS["remind"]["names"]),
        sentences(_TEXTS["remind"]["descriptions"]),
        {"text": Slot(("text", "task", "message", "what")), "time": Slot(("time", "time", "at", "when"))},
        lines(_TEXTS["remind"]["asks"]),
        lines(_TEXTS["remind"]["amends"]),
        "I will remind you to {text} at {time}.",
        lambda draw: {"text": chore(draw), "time": draw.open(pools.clock)},
    ),
    "weather": Action(
        names(_TEXTS["weather"]["names"]),
        sentences(_TEXTS["weather"]["descriptions"]),
        {"city": Slot(("city", "city", "location", "place", "town"))},
        lines(_TEXTS["weather"]["asks"]),
        lines(_TEXTS["weather"]["amends"]),
        "",
        lambda draw: {"city": pools.city(draw)},
    ),
    "blinds": Action(
        names(_TEXTS["blinds"]["names"]),
        sentences(_TEXTS["blinds"]["descriptions"]),
        {
            "room": Slot(("room", "location", "area")),
            "state": Slot(("action", "command", "position"), enum=("open", "close")),
        },
        lines(_TEXTS["blinds"]["asks"]),
        lines(_TEXTS["blinds"]["amends"]),
        "The blinds in the {room}: {state}.",
        lambda draw: {"room": room(draw), "state": draw.any(("open", "close"))},
    ),
    "call": Action(
        names(_TEXTS["call"]["names"]),
        sentences(_TEXTS["call"]["descriptions"]),
        {"name": Slot(("name", "contact", "person", "who"))},
        lines(_TEXTS["call"]["asks"]),
        lines(_TEXTS["call"]["amends"]),
        "Calling {name}.",
        lambda draw: {"name": pools.name(draw)},
    ),
    "clock": Action(
        names(_TEXTS["clock"]["names"]),
        sentences(_TEXTS["clock"]["descriptions"]),
        {},
        lines(_TEXTS["clock"]["asks"]),
        None,
        "",
        lambda _: {},
    ),
}
