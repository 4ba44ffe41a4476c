"""One attempt to run a request at one endpoint, from the connection to the end of the answer, without retries."""

from __future__ import annotations

import asyncio
import email.utils
import time
from datetime import UTC
from functools import partial

from edgeagent.backends.remote.answer import ChatReader
from edgeagent.backends.remote.control import Control, OutOfTime
from edgeagent.backends.remote.failures import Failure, Kind, failure_of_body
from edgeagent.backends.remote.transport import Call, CallStages, Exchange, Transport
from edgeagent.remotes import Limits
from edgeagent.types import Delta, Permit

_MAX_ERROR_BYTES = 64 * 1024
_EVENT_STREAM = "text/event-stream"


class Attempt:
    """Sends one request and reads its answer.

    `ends_at_s` is the event loop's time at which the whole request must have ended.
    """

    def __init__(
        self,
        transport: Transport,
        reader: ChatReader,
        control: Control,
        limits: Limits,
        ends_at_s: float,
    ) -> None:
        self._transport = transport
        self._control = control
        self._limits = limits
        self._ends_at_s = ends_at_s
        self._exchange: Exchange | None = None
        self._loop = asyncio.get_running_loop()
        self._stages = CallStages()
        self.answer = reader
        self.is_over = False

    @property
    def was_sent(self) -> bool:
        """Whether a part of the request may have reached the remote."""
        return self._stages.sent_s > 0

    async def begin(self, permit: Permit, call: Call) -> list[Delta]:
        """Send the call; return the first content, or an empty list if the answer is complete and empty.

        Raise a Failure, or RequestEnded if the request was ended from outside.
        """
        until_s = min(self._loop.time() + self._limits.first_token_s, self._ends_at_s)
        try:
            exchange = self._exchange = await self._control.wait(
                until_s, partial(self._transport.open, permit, call, self._stages)
            )
            await self._check_head(exchange, until_s)
            while not self.is_over:
                if deltas := await self._read(until_s):
                    return deltas
        except OutOfTime:
            raise self._timeout(f"no content within {self._limits.first_token_s:g} s") from None
        return []

    async def next(self) -> list[Delta]:
        """Return more content, or an empty list at the end of the answer; raise the errors of `begin`.

        Any event restarts the idle timeout.
        """
        num_events, until_s = self.answer.num_events, self._idle_until_s()
        try:
            while not self.is_over:
                if deltas := await self._read(until_s):
                    return deltas
                if self.answer.num_events > num_events:
                    num_events, until_s = self.answer.num_events, self._idle_until_s()
        except OutOfTime:
            raise self._timeout(f"no more events within {self._limits.idle_s:g} s") from None
        return []

    async def close(self) -> None:
        """End the exchange. If the answer is unfinished, make the remote stop generating it."""
        if self._exchange is not None:
            await self._exchange.close(is_done=self.is_over and not self.answer.is_cut)

    def _timeout(self, message: str) -> Failure:
        is_over = self._loop.time() >= self._ends_at_s
        return Failure(Kind.TIMEOUT, "its answer did not end within the time limit" if is_over else message)

    def _idle_until_s(self) -> float:
        return min(self._loop.time() + self._limits.idle_s, self._ends_at_s)

    async def _read(self, until_s: float) -> list[Delta]:
        assert self._exchange is not None
        answer = self.answer
        if answer.fault is not None:
            raise answer.fault
        if not answer.has_end_marker:
            if self._loop.time() >= self._ends_at_s:
                raise OutOfTime  # a client that reads slowly does not make the request's time longer
            chunk = await self._control.wait(until_s, self._exchange.read)
            if chunk:
                deltas = self.answer.feed(chunk)
                if deltas or not answer.has_end_marker:
                    return deltas
        last = self.answer.end()
        self.is_over = True
        return last

    async def _check_head(self, exchange: Exchange, until_s: float) -> None:
        """Raise a Failure unless the response has status 200 and is an event stream."""
        is_stream = exchange.content_type == _EVENT_STREAM
        if exchange.status == 200 and is_stream:
            return
        try:
            body = await self._control.wait(until_s, partial(exchange.read_all, _MAX_ERROR_BYTES))
        except Failure:
            body = b""
        if exchange.status != 200:
            raise failure_of_body(exchange.status, body, retry_after_s(exchange.headers, time.time()))
        if exchange.content_type == "application/json" and b'"error"' in body:
            raise failure_of_body(0, body, None)
        what = "a web page (a network's sign-in page?)" if b"<html" in body[:1024].lower() else "no event stream"
        raise Failure(Kind.GARBLED, f"it answered with {what} ({exchange.content_type[:64] or 'of no type'})")


def retry_after_s(headers: dict[str, str], now_s: float) -> float | None:
    """Return how many seconds the response headers ask to wait before a retry; None if they do not say.

    Retry-After holds seconds or a date (RFC 9110, 10.2.3). OpenAI's retry-after-ms holds milliseconds.
    """
    for name, factor in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit():
            return float(text) * factor
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now_s)
