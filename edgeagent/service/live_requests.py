"""The registry of requests in flight: which run, which can be found by id, and which have a terminal event to write.

The shutdown, the status, cancels by id and the sockets use the registry. It does not know what a request asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress


class LiveRequest:
    """A request in flight. A protocol that keeps more state for each request derives a class.

    `partition`: the client that sent it. `is_running`: it runs, or waits at a backend. `is_visible`: the client can
    find it by its id. `is_undelivered`: its terminal event is not yet written to a socket. A stopping daemon waits
    until the event is written.
    """

    def __init__(self, request_id: str, partition: str = "") -> None:
        self.id = request_id
        self.partition = partition
        self.is_running = False
        self.is_visible = False
        self.is_undelivered = False

    def on_hidden(self) -> None:
        """Called by `LiveRequests.hide`, when clients can no longer find the request. Override it to react."""


class LiveRequests:
    """The requests in flight of all clients, by id. A request stays while it runs, is visible or is undelivered."""

    def __init__(self) -> None:
        self._requests: dict[str, LiveRequest] = {}
        self._changed = asyncio.Event()

    @property
    def num_running(self) -> int:
        return len(self.running())

    def running(self) -> list[LiveRequest]:
        return [request for request in self._requests.values() if request.is_running]

    def find(self, request_id: str, partition: str) -> LiveRequest | None:
        """Return the partition's visible request with this id; None if there is no such request."""
        request = self._requests.get(request_id)
        is_found = request is not None and request.is_visible and request.partition == partition
        return request if is_found else None

    def begin(self, request_id: str) -> None:
        """Note that a request runs from now on. Register it if its id is new."""
        self._requests.setdefault(request_id, LiveRequest(request_id)).is_running = True

    def end(self, request_id: str) -> None:
        """Note that a request no longer runs; an unknown id is ignored."""
        if request := self._requests.get(request_id):
            request.is_running = False
            self._settle(request)

    def show(self, request: LiveRequest) -> None:
        """Let the client find a request by its id. If `begin` registered an entry with this id, replace the entry."""
        if begun := self._requests.get(request.id):
            request.is_running = begun.is_running
        self._requests[request.id] = request
        request.is_visible = True

    def hide(self, request: LiveRequest) -> None:
        """Make a request invisible to its client, and call `on_hidden`. Do nothing if it was not visible."""
        if request.is_visible:
            request.is_visible = False
            request.on_hidden()
            self._settle(request)

    def expect_delivery(self, request: LiveRequest) -> None:
        """Note that a request's terminal event must still be written to a socket.

        This may take long: the request may have to wait for its lane, for the store, or for a slow client.
        """
        self._requests[request.id] = request
        request.is_undelivered = True

    def mark_delivered(self, request: LiveRequest) -> None:
        """Note that the terminal event of a request is written, or will never be."""
        request.is_undelivered = False
        self._settle(request)

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until no request runs, but at most `timeout_s` seconds. A timeout is not an error."""
        await self._wait(lambda: not self.running(), timeout_s)

    async def wait_delivered(self, timeout_s: float) -> None:
        """Wait until all terminal events are written, but at most `timeout_s` seconds. A timeout is not an error.

        The events of requests that still run are not awaited: these requests are marked as delivered first.
        """
        for hanging in self.running():
            self.mark_delivered(hanging)
        await self._wait(lambda: not any(each.is_undelivered for each in self._requests.values()), timeout_s)

    async def _wait(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not is_done():
                    self._changed.clear()
                    await self._changed.wait()

    def _settle(self, request: LiveRequest) -> None:
        if not (request.is_running or request.is_visible or request.is_undelivered):
            self._requests.pop(request.id, None)
        self._changed.set()
