"""One limit on the bytes that clients have sent of bodies and frames, over all connections of the daemon.

A single body or frame has a limit of its own, but a hundred that never end would take the machine's memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from edgeagent.freed_memory import give_back_freed_memory

# Freed memory of this size is given back to the system; that takes milliseconds, so it is not done for less.
TRIM_BYTES = 4 << 20
TRIM_DELAY_S = 1.0


class InFlight:
    """The bodies and frames that have begun to arrive, and that are not yet answered or read.

    If they take more than `max_bytes`, unfinished ones are cut: those of the client that takes the most, and first the
    one that has held the most bytes for the longest time. Many small ones then do not cut another client's large one. A
    body or frame that has arrived as a whole is never cut, and counts until the application has read it.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self._clock = clock
        self._num_bytes = 0
        self._arrivals: set[Arrival] = set()
        self._peak_bytes = 0
        self._trim_timer: asyncio.TimerHandle | None = None

    def begin(self, cut: Callable[[], None]) -> Arrival:
        """Return the account of one body, or of the frames of one connection. `cut` ends it; it must not raise."""
        return Arrival(self, cut)

    def held(self, arrival: Arrival, before_bytes: int) -> None:
        """Count an arrival whose size or state has changed. Cut unfinished ones if all together take too much."""
        self._num_bytes += arrival.num_bytes - before_bytes
        self._peak_bytes = max(self._peak_bytes, self._num_bytes)
        if not arrival.num_bytes:
            self._arrivals.discard(arrival)
            self._plan_trim()
            return
        if not before_bytes:
            arrival.since_s = self._clock()
        self._arrivals.add(arrival)
        while self._num_bytes > self.max_bytes and (victim := self._costliest()) is not None:
            victim.end_with_cut()

    def _costliest(self) -> Arrival | None:
        """Return the unfinished arrival to cut next; None if there is none."""
        taken = Counter[str | None]()
        for arrival in self._arrivals:
            taken[arrival.client] += arrival.num_bytes
        now_s = self._clock()
        unfinished = (arrival for arrival in self._arrivals if not arrival.is_whole)
        return max(
            unfinished,
            key=lambda each: (taken[each.client], each.num_bytes * (now_s - each.since_s), each.num_bytes),
            default=None,
        )

    def _plan_trim(self) -> None:
        if self._peak_bytes >= TRIM_BYTES and self._trim_timer is None:
            self._trim_timer = asyncio.get_running_loop().call_later(TRIM_DELAY_S, self._trim)

    def _trim(self) -> None:
        self._trim_timer = None
        self._peak_bytes = self._num_bytes
        asyncio.get_running_loop().run_in_executor(None, give_back_freed_memory)


class Arrival:
    """The bytes that one body, or the frames of one connection, take.

    `client`: the client that sends them, as in Peer. `since_s`: when the first byte arrived.
    """

    def __init__(self, in_flight: InFlight, cut: Callable[[], None]) -> None:
        self.client: str | None = None
        self._in_flight = in_flight
        self._cut: Callable[[], None] | None = cut
        self.num_bytes = 0
        self.is_whole = False
        self.since_s = 0.0

    def hold(self, num_bytes: int, *, is_whole: bool) -> None:
        """Set how many bytes are held; no effect after the end. `is_whole`: nothing is missing, so all is used soon."""
        if self._cut is None:
            return
        before_bytes, self.num_bytes, self.is_whole = self.num_bytes, num_bytes, is_whole
        self._in_flight.held(self, before_bytes)

    def end(self) -> None:
        """Hold nothing any more."""
        self.hold(0, is_whole=True)
        # The owner, whose method this is, has this object: such a cycle would keep its buffers for minutes.
        self._cut = None

    def end_with_cut(self) -> None:
        """End, and tell the owner."""
        cut = self._cut
        self.end()
        if cut is not None:
            cut()
