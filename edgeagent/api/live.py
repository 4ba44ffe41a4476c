"""The requests that are running, whoever asked: counted for the status, and drained when the daemon stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from edgeagent import metrics
from edgeagent.api.service import Service
from edgeagent.errors import BackendUnavailable, EdgeAgentError
from edgeagent.types import Finished, GenerateRequest, ModelStatus, Step


class LiveRequests:
    """A Service that knows which of its requests are running, and takes no more once it drains."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._live: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False
        self._num_total = 0

    @property
    def num_live(self) -> int:
        """How many requests are running or waiting."""
        return len(self._live)

    @property
    def num_total(self) -> int:
        """How many requests there have been."""
        return self._num_total

    @property
    def is_draining(self) -> bool:
        """Whether the daemon is on its way out."""
        return self._is_draining

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        """Run a request; raise BackendUnavailable while draining."""
        if self._is_draining:
            raise BackendUnavailable("the daemon is stopping; send the request again when it is back", retry_after_s=5)
        self._live.add(request.id)
        self._idle.clear()
        self._num_total += 1
        metrics.live_requests.inc()
        end: Finished | str = "abandoned"
        try:
            async with aclosing(self._service.generate(request)) as steps:
                async for step in steps:
                    if step.deltas and isinstance(last := step.deltas[-1], Finished):
                        end = last
                    yield step
        except EdgeAgentError as error:
            end = error.code
            raise
        finally:
            self._live.discard(request.id)
            if not self._live:
                self._idle.set()
            metrics.live_requests.dec()
            if isinstance(end, Finished):
                metrics.observe_finished(end)
            else:
                metrics.requests_total.labels(end).inc()

    def cancel(self, request_id: str) -> None:
        """Cancel a live request politely; an unknown or finished id is ignored."""
        self._service.cancel(request_id)

    def models(self) -> list[ModelStatus]:
        """Return the models that are served, loaded or not."""
        return self._service.models()

    def default_model(self) -> str:
        """Return the name of the model that serves a request which names none."""
        return self._service.default_model()

    def begin_drain(self) -> None:
        """Refuse new requests from here on."""
        self._is_draining = True

    def cancel_all(self) -> None:
        """Cancel every live request politely: each still ends in its one terminal event."""
        for request_id in list(self._live):
            self._service.cancel(request_id)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs, at most `timeout_s`; return whether that came about."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return not self._live
