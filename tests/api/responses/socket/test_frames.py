"""Frames of the WebSocket: what is read from each."""

from __future__ import annotations

import json

import pytest

from edgeagent.api.responses.socket.frames import CreateFrame, read_frame


@pytest.mark.parametrize("stream", [True, False, None, "yes", 1, {}])
def test_stream_is_ignored_whatever_it_holds(stream: object) -> None:
    frame = read_frame(json.dumps({"type": "response.create", "model": "m", "input": "hi", "stream": stream}))
    assert isinstance(frame, CreateFrame)
    assert frame.create_or_refusal.body.input is None and len(frame.create_or_refusal.items) == 1  # type: ignore[union-attr]
