"""Chooses the next prompt to prepare: by tier, then by the client that was served longest ago, then by arrival."""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue

from edgeagent.types import Tier
from edgeagent.worker.protocol import Submit

_RANK = {tier: rank for rank, tier in enumerate(Tier)}


class PrepareQueue:
    """The requests that wait for the preparer thread. Other threads add requests; only the preparer removes them."""

    def __init__(self) -> None:
        self._arrived: SimpleQueue[Submit] = SimpleQueue()
        # In order of arrival. Only the thread that calls `get` uses this and the next two fields.
        self._waiting: list[Submit] = []
        self._served_at: dict[str, int] = {}  # by partition, while requests wait
        self._num_served = 0

    def put(self, submit: Submit) -> None:
        """Add a request; any thread may call it."""
        self._arrived.put(submit)

    def get(self) -> Submit:
        """Wait for the next request and remove it."""
        if not self._waiting:
            self._served_at.clear()
            self._waiting.append(self._arrived.get())
        with contextlib.suppress(Empty):
            while True:
                self._waiting.append(self._arrived.get_nowait())
        submit = self._waiting.pop(min(range(len(self._waiting)), key=self._position))
        self._num_served += 1
        self._served_at[submit.request.cache.partition] = self._num_served
        return submit

    def _position(self, index: int) -> tuple[int, int, int]:
        request = self._waiting[index].request
        return _RANK[request.tier], self._served_at.get(request.cache.partition, 0), index
