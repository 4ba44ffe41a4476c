"""The live requests of one model: what each was given, what is still owed, and that each ends exactly once.

It outlives the workers: a request waits here while a model loads, and is handed to the next worker when one dies before
answering. It checks a worker's messages against the protocol, and knows neither processes nor time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edgeagent.errors import EdgeAgentError, InvalidRequest, WorkerCrashed, from_code
from edgeagent.types import Delta, Finished, FinishReason, GenerateRequest, Started, Step, Timings, Usage
from edgeagent.worker.protocol import Failed, ProtocolError, StepItem, Steps

_MAX_SUBMISSIONS = 2


class Sink(Protocol):
    """Who gets a request's answer. Neither call may block or raise; after a Finished or a failure none follows."""

    def put(self, step: Step) -> None:
        """Take a step."""
        ...

    def fail(self, error: EdgeAgentError) -> None:
        """Take the error that ends the request."""
        ...


class LiveRequest:
    """One accepted request. `tokens` are the ids given out so far, from which another backend could go on."""

    __slots__ = (
        "accepted_at_s",
        "cancelled_at_s",
        "has_output",
        "is_sent",
        "num_submissions",
        "request",
        "sink",
        "started",
        "tokens",
    )

    def __init__(self, request: GenerateRequest, sink: Sink, accepted_at_s: float) -> None:
        self.request = request
        self.sink: Sink | None = sink
        self.accepted_at_s = accepted_at_s
        self.cancelled_at_s: float | None = None
        self.is_sent = False
        self.num_submissions = 0
        self.started: Started | None = None
        self.has_output = False
        self.tokens: list[int] = []


class Ledger:
    """All live requests of a model, by id, in order of acceptance."""

    def __init__(self) -> None:
        self._live: dict[str, LiveRequest] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def num_sent(self) -> int:
        """Return how many requests the worker has."""
        return sum(live.is_sent for live in self._live.values())

    def unsent(self) -> list[LiveRequest]:
        """Return the requests no worker has, oldest first."""
        return [live for live in self._live.values() if not live.is_sent]

    def oldest_cancel_s(self) -> float | None:
        """Return when the longest unanswered cancel was sent."""
        cancelled = (live.cancelled_at_s for live in self._live.values())
        return min((at_s for at_s in cancelled if at_s is not None), default=None)

    def add(self, request: GenerateRequest, sink: Sink, now_s: float) -> LiveRequest:
        """Accept a request; raise InvalidRequest for an id that is live."""
        if request.id in self._live:
            raise InvalidRequest(f"a request with id {request.id!r} is live; give each its own", param="id")
        live = self._live[request.id] = LiveRequest(request, sink, now_s)
        return live

    def mark_sent(self, live: LiveRequest) -> None:
        """Note that the worker has it."""
        live.is_sent = True
        live.num_submissions += 1

    def cancel(self, request_id: str, now_s: float) -> bool:
        """End an unsent request; True if it is with the worker, which must then be told."""
        live = self._live.get(request_id)
        if live is None or live.cancelled_at_s is not None:
            return False
        live.cancelled_at_s = now_s
        if not live.is_sent:
            self._finish_cancelled(live)
        return live.is_sent

    def abandon(self, request_id: str, now_s: float) -> bool:
        """Cancel a request that nobody listens to any more; True as for cancel."""
        live = self._live.get(request_id)
        if live is None:
            return False
        live.sink = None
        return self.cancel(request_id, now_s)

    def fail(self, live: LiveRequest, error: EdgeAgentError) -> None:
        """End one request with an error."""
        del self._live[live.request.id]
        if live.sink is not None:
            live.sink.fail(error)

    def fail_all(self, make_error: Callable[[], EdgeAgentError]) -> None:
        """End every request, each with an error of its own; the cancelled ones as cancelled."""
        for live in list(self._live.values()):
            if live.cancelled_at_s is None:
                self.fail(live, make_error())
            else:
                self._finish_cancelled(live)

    def cancel_all(self) -> None:
        """End every request as cancelled, with what it used."""
        for live in list(self._live.values()):
            self._finish_cancelled(live)

    def on_steps(self, steps: Steps) -> None:
        """Hand a step's deltas to their requests; raise ProtocolError where no request is owed any."""
        for item in steps.items:
            self._on_item(item, steps.at_s)

    def on_failed(self, failed: Failed) -> None:
        """End a request with the worker's error."""
        error = from_code(failed.code, failed.message, param=failed.param)
        live = self._sent(failed.id)
        error.num_delivered_tokens = len(live.tokens)
        self.fail(live, error)

    def on_death(self, cause: str) -> None:
        """Settle what a dead worker had: cancelled, failed, or, with nothing given out yet, back among the unsent."""
        for live in [live for live in self._live.values() if live.is_sent]:
            if live.cancelled_at_s is not None:
                self._finish_cancelled(live)
            elif live.has_output or live.num_submissions >= _MAX_SUBMISSIONS:
                self.fail(live, _crash(live, cause))
            else:
                live.is_sent = False

    def _on_item(self, item: StepItem, at_s: float) -> None:
        live = self._sent(item.id)
        if any(isinstance(delta, Finished) for delta in item.deltas[:-1]):
            raise ProtocolError(f"deltas of request {item.id!r} after its end")
        deltas = _note_start(live, item.deltas)
        live.tokens += item.tokens
        live.has_output = live.has_output or bool(item.tokens) or any(not isinstance(d, Started) for d in deltas)
        if deltas and isinstance(deltas[-1], Finished):
            del self._live[item.id]
        if live.sink is not None and (deltas or item.tokens):
            live.sink.put(Step(deltas, item.tokens, at_s))

    def _sent(self, request_id: str) -> LiveRequest:
        live = self._live.get(request_id)
        if live is None or not live.is_sent:
            raise ProtocolError(f"an answer to request {request_id!r}, which is not live")
        return live

    def _finish_cancelled(self, live: LiveRequest) -> None:
        del self._live[live.request.id]
        if live.sink is None:
            return
        started = live.started or Started(0, 0)
        usage = Usage(started.num_prompt_tokens, started.num_cached_tokens, len(live.tokens))
        live.sink.put(Step((Finished(FinishReason.CANCELLED, usage, Timings()),)))


def _note_start(live: LiveRequest, deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
    """Keep a request's Started; return the deltas without one that a second worker repeats."""
    if not deltas or not isinstance(deltas[0], Started):
        return deltas
    if live.started is not None:
        return deltas[1:]
    live.started = deltas[0]
    return deltas


def _crash(live: LiveRequest, cause: str) -> WorkerCrashed:
    return WorkerCrashed(
        f"the model's process ended under the request ({cause}); a new one is started, try again",
        retry_after_s=1.0,
        served_by="local",
        num_delivered_tokens=len(live.tokens),
    )
