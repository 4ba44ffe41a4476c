"""The images and sounds that a client sends in binary frames, until its next creates name them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

from edgeagent.api.gate.body_limit import InFlight
from edgeagent.types import MAX_MEDIA_BYTES


class SentFiles:
    """The latest files of one connection, by the names that its frames use: `sha256:` and the hash.

    They have at most MAX_MEDIA_BYTES together, as those of a request. If clients send too much at once, they are
    dropped.
    """

    def __init__(self, in_flight: InFlight, client: str) -> None:
        """`in_flight` counts the bytes; see InFlight."""
        self._in_flight = in_flight
        self._client = client
        self._files: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes = 0
        self._arrival = in_flight.begin(self._drop)

    @property
    def by_name(self) -> dict[str, bytes]:
        return dict(self._files)

    async def add(self, data: bytes) -> None:
        """Keep a file. The hash of a large one takes more than 10 ms, beside the event loop."""
        hashed = await asyncio.to_thread(hashlib.sha256, data)
        name = f"sha256:{hashed.hexdigest()}"
        self._num_bytes += len(data) - len(self._files.pop(name, b""))
        self._files[name] = data
        while self._num_bytes > MAX_MEDIA_BYTES:
            _, oldest = self._files.popitem(last=False)
            self._num_bytes -= len(oldest)
        self._arrival.client = self._client
        self._arrival.hold(self._num_bytes, is_whole=False)

    def close(self) -> None:
        """Drop all files. Call no method afterwards."""
        self._files.clear()
        self._arrival.end()

    def _drop(self) -> None:
        self._files.clear()
        self._num_bytes = 0
        self._arrival = self._in_flight.begin(self._drop)
