"""What is learned of kept questions, as events, and the log to which machines that share a store write them.

All machines apply the same events in the order of the log. So they know the same questions, and learn one boundary and
one test of the measured error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from msgspec import DecodeError, Struct, msgpack

from edgeagent.answers.seal import Seal

_SEALED_AS = b"event"  # a key of another length than those of answers


class Compared(Struct, frozen=True, tag="compared"):
    """A question of this similarity was compared with a kept one: whether the answer of that was right.

    `check_probability`: with which that answer was chosen to be checked, if it had been given; otherwise None.
    """

    key: bytes
    similarity: float
    is_right: bool
    check_probability: float | None = None


class Added(Struct, frozen=True, tag="added"):
    """A question whose answer is kept under `key`. `vector`: float32, little-endian.

    `first`: how it compared with the nearest one before it.
    """

    key: bytes
    place: bytes
    text: str
    vector: bytes
    first: Compared | None = None


class Forgotten(Struct, frozen=True, tag="forgotten"):
    """Questions that are forgotten; None: all, and what they taught."""

    keys: tuple[bytes, ...] | None


Event = Added | Compared | Forgotten


@dataclass(frozen=True, slots=True)
class Page:
    """Events of a log, sealed, each with its position. `is_off`: no answer may be given from similarity."""

    is_off: bool
    events: tuple[tuple[str, bytes], ...]


class Log(Protocol):
    """Logs at a server, by name. What the server does not do in time counts as failed: None, or nothing happens."""

    async def append(self, name: str, content: bytes) -> None:
        """Write an event at the end."""

    async def page(self, name: str, after: str, limit: int) -> Page | None:
        """Return the events after a position; FIRST for those from the beginning. None if it cannot be read."""

    async def turn_off(self, name: str) -> None:
        """Let all machines give no more answers from similarity."""

    async def clear(self, name: str, content: bytes) -> None:
        """Remove all events, turn answers on again, and write an event."""


FIRST = "0-0"


def sealed_event(event: Event, seal: Seal) -> bytes:
    """Return an event as only machines with the same secret can read it."""
    return seal.seal(_SEALED_AS, msgpack.encode(event))


def opened_event(content: bytes, seal: Seal) -> Event | None:
    """Return the event that `sealed_event` wrote; None for anything else."""
    opened = seal.open(_SEALED_AS, content)
    if opened is None:
        return None
    try:
        event: Event = msgpack.decode(opened, type=Event)
    except DecodeError:
        return None
    return event
