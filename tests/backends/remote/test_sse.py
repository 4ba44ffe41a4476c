"""Parsing events from bytes: every cut gives the same events, any line end is accepted, too long input is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.backends.remote.answer import Event, EventReader
from edgeagent.backends.remote.failures import Failure
from tests.backends.remote.streams import cut

MANY = (
    b"\xef\xbb\xbf: a comment\r\n\r\n"
    b"data: one\r\n\r\n"
    b"event: two\rdata:second\rdata: line\r\r"
    b"id: 7\nretry: 9\nnonsense\ndata\n\n"
    b"event: nameless\n\n"
    b"data: \xc3\xa4\xf0\x9f\x98\x80\n\n"
    b"data: half"
)
EVENTS = [Event("", b"one"), Event("two", b"second\nline"), Event("", b""), Event("", "ä😀".encode())]


def events(pieces: list[bytes]) -> list[Event]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


@given(st.lists(st.integers(0, 10_000), max_size=8))
def test_any_cut_gives_the_same_events(places: list[int]) -> None:
    assert events(cut(MANY, places)) == EVENTS


def test_byte_by_byte() -> None:
    assert events([MANY[index : index + 1] for index in range(len(MANY))]) == EVENTS


def test_a_half_event_is_noticed() -> None:
    reader = EventReader()
    assert not list(reader.feed(b"data: one\n"))
    assert reader.has_half_an_event
    assert list(reader.feed(b"\n")) == [Event("", b"one")]
    assert not reader.has_half_an_event


@pytest.mark.parametrize("more", [b"x" * 60, b"data: 1234567890\n" * 6])
def test_what_is_too_long_is_refused_behind_what_came_before(more: bytes) -> None:
    reader = EventReader(max_event_bytes=50)
    found: list[Event] = []
    with pytest.raises(Failure, match="more than 50 bytes"):
        found.extend(reader.feed(b"data: first\n\n" + more))
    assert found == [Event("", b"first")]
