"""An application that checks every response stream against the event grammar, whichever client reads it."""

from __future__ import annotations

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeagent.api.wire.sse import SEND_KEY
from tests.api.event_grammar import EventGrammar, GrammarError

DONE = "data: [DONE]"


class CheckedApp:
    """Passes every message on; `check` raises the first fault of any stream so far."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.num_events = 0
        self._faults: list[GrammarError] = []

    def check(self) -> None:
        """Raise the first fault found so far."""
        if self._faults:
            raise self._faults[0]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith("/v1") or scope["path"] == "/v1/realtime":
            await self.app(scope, receive, send)
            return
        scope.pop(SEND_KEY, None)  # so that all messages pass here
        query = scope["query_string"]
        stream = _Stream(self, is_whole=b"starting_after" not in query)

        async def send_checked(message: Message) -> None:
            stream.take(message)
            await send(message)

        await self.app(scope, receive, send_checked)

    def note(self, fault: GrammarError) -> None:
        """Record a fault. Raised here, it would become an error of the daemon and change what it sends."""
        self._faults.append(fault)


class _Stream:
    """The events of one connection or one request. A stream that starts in the middle of a response is not checked."""

    def __init__(self, app: CheckedApp, *, is_whole: bool) -> None:
        self._app = app
        self._grammar = EventGrammar()
        self._is_whole = is_whole
        self._is_responses = False
        self._text = ""

    def take(self, message: Message) -> None:
        try:
            match message["type"]:
                case "websocket.send" if message.get("text"):
                    self._feed(message["text"])
                case "http.response.body" if self._is_whole:
                    self._take_body(message.get("body", b""))
        except GrammarError as fault:
            self._app.note(fault)

    def _take_body(self, body: bytes) -> None:
        if not self._is_responses and not body.startswith(b"event: response."):
            return  # of another API, or not a stream
        self._is_responses = True
        *frames, self._text = (self._text + body.decode()).split("\n\n")
        for frame in frames:
            if frame == DONE:
                self._grammar.finish()
            elif not frame.startswith(":"):
                name, data = frame.split("\n")
                self._feed(data.removeprefix("data: "), name.removeprefix("event: "))

    def _feed(self, text: str, name: str | None = None) -> None:
        self._app.num_events += 1
        event = json.loads(text)
        if name is not None and name != event["type"]:
            raise GrammarError(f"{name} names {event['type']}")
        self._grammar.feed(event)
