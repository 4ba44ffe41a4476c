"""Frames of the WebSocket: what is read from each."""

from __future__ import annotations

import json

import pytest

from edgeagent.api.responses.socket.frames import CreateFrame, RefusedFrame, read_frame


@pytest.mark.parametrize("stream", [True, False, None, "yes", 1, {}])
def test_stream_is_ignored_whatever_it_holds(stream: object) -> None:
    frame = read_frame(json.dumps({"type": "response.create", "model": "m", "input": "hi", "stream": stream}))
    assert isinstance(frame, CreateFrame)
    assert frame.create_or_refusal.body.input is None and len(frame.create_or_refusal.items) == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("background", [False, None])
def test_background_is_refused_here_not_ignored(background: bool | None) -> None:
    """A client that sends it relies on an answer that outlives the connection."""
    sent = {"type": "response.create", "input": "hi"}
    frame = read_frame(json.dumps({**sent, "background": True}))
    assert isinstance(frame, CreateFrame) and isinstance(frame.create_or_refusal, RefusedFrame)
    assert (frame.create_or_refusal.error.code, frame.create_or_refusal.error.param) == ("not_supported", "background")
    frame = read_frame(json.dumps({**sent, "background": background}))
    assert isinstance(frame, CreateFrame) and not isinstance(frame.create_or_refusal, RefusedFrame)
