"""Keeps the live requests of one model and their output, and makes sure that each request ends exactly once.

Requests outlive workers: a request waits here while a model loads. If a worker dies, the next worker continues the
request after the delivered tokens. Open queries are here too; they fail with the worker that has them. This module
checks a worker's messages against the protocol. It knows neither processes nor clocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from itertools import chain, count
from operator import attrgetter
from typing import Protocol

from msgspec.structs import replace

from edgeagent.errors import EdgeAgentError, InvalidRequest, Overloaded, from_code
from edgeagent.types import (
    TIER_RANKS,
    AnswerSoFar,
    Delta,
    Embed,
    Finished,
    FinishReason,
    GenerateRequest,
    Handover,
    Interrupted,
    PurgeCache,
    QueryAnswer,
    Rerank,
    Started,
    Step,
    TextQuery,
    Timings,
    TokenLogprob,
    Usage,
)
from edgeagent.worker.parent.supervision.refusals import crashed_again, stuck
from edgeagent.worker.protocol import AnswerPart, Ask, Delivered, Failed, ProtocolError, StepItem, StepResult

# A request fails after this many ends of its workers, of any kind except replacements. A kill from outside is usually
# not caused by a request. But a request that needs more memory than the machine has must fail too.
_MAX_DEATHS = 5
# It also fails after this many crashes and hangs if its last worker delivered no token for it. The limit is below the
# three crashes that lead to quarantine.
_MAX_FRUITLESS_CRASHES = 2
# After more kills than this, a request is a suspect. A crash makes it one at once.
_MAX_UNSUSPECTED_DEATHS = 2
_IS_SENT = attrgetter("is_sent")
# The most deltas that are held until a step's last part. Only an echoed prompt and log probabilities need the first
# limit.
_MAX_PARTS = 512
_MAX_PLAIN_PARTS = 4
# The most open queries, and the most parts of an answer to one.
MAX_QUERIES = 64
MAX_EMBEDS = 16
_MAX_ANSWER_PARTS = 4096
_ID_PREFIX = "ask-"  # ids of requests never begin with this


class EndKind(StrEnum):
    """How a worker ended. It is recorded in each request that is handed over to the next worker."""

    CRASHED = "worker_crashed"
    KILLED = "worker_killed"
    HUNG = "worker_hung"
    REPLACED = "worker_replaced"


class Receiver(Protocol):
    """The receiver of an answer. Its methods must not block.

    After a Finished or a failure, no method is called. If `put` raises, only this request fails, with its exception.
    """

    def put(self, step: Step) -> None:
        """Receive a step."""
        ...

    def fail(self, error: Exception) -> None:
        """Receive the error that ends the request."""
        ...


@dataclass(slots=True, eq=False)
class AcceptedRequest:
    """One accepted request.

    `so_far` is the earlier output of another machine. `tokens` are the token ids that were delivered after it, and
    `step_lengths` has how many of them each step delivered. If the worker dies, the next one continues after `tokens`.
    An output that this machine generated ahead of the request is part of `tokens` from the beginning. `frame`: its
    encoded Submit, during `submit` only. A request that is sent at once is not encoded again.
    """

    request: GenerateRequest
    receiver: Receiver | None
    accepted_at_s: float
    so_far: AnswerSoFar | None = None
    frame: bytes = b""
    cancelled_at_s: float | None = None
    is_sent: bool = False
    started: Started | None = None
    tokens: list[int] = field(default_factory=list)
    step_lengths: list[int] = field(default_factory=list)
    held_logprobs: tuple[TokenLogprob, ...] = ()  # of the last tokens, whose text was not sent yet
    num_delivered: int = 0  # the tokens whose text the client has
    pending_deltas: list[Delta] = field(default_factory=list)  # of a step whose last part has not arrived
    first_token_at_s: float | None = None
    last_token_at_s: float = 0.0
    has_progressed: bool = False  # got a token from its current worker
    num_deaths: int = 0  # ends of its workers, except replacements
    num_crashes: int = 0  # the crashes and hangs among them
    handovers: tuple[Handover, ...] = ()

    def __post_init__(self) -> None:
        if self.so_far is not None:
            self.tokens, self.step_lengths = list(self.so_far.tokens), list(self.so_far.step_lengths)
            self.num_delivered = self.so_far.num_tokens
        if self.tokens:
            self.so_far = None

    @property
    def delivered(self) -> Delivered:
        """The output so far, in the form that the next worker needs."""
        return Delivered(tuple(self.tokens), tuple(self.step_lengths), self.held_logprobs, self.so_far)

    @property
    def first_token_ms(self) -> float:
        return 0.0 if self.first_token_at_s is None else (self.first_token_at_s - self.accepted_at_s) * 1000

    @property
    def is_suspect(self) -> bool:
        """Whether the request may be the cause of its workers' ends.

        True if a worker crashed or hung during the request, or three were killed. False again once the request gets a
        token from its current worker.
        """
        is_marked = self.num_crashes > 0 or self.num_deaths > _MAX_UNSUSPECTED_DEATHS
        return is_marked and not self.has_progressed

    @property
    def is_exhausted(self) -> bool:
        """Whether the request must end because too many workers died during it."""
        is_fruitless = self.num_crashes >= _MAX_FRUITLESS_CRASHES and not self.has_progressed
        return is_fruitless or self.num_deaths >= _MAX_DEATHS


class ModelRequests:
    """All live requests of a model, by id, in order of acceptance."""

    def __init__(self) -> None:
        self._live: dict[str, AcceptedRequest] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def num_sent(self) -> int:
        return sum(live.is_sent for live in self._live.values())

    def unasked(self) -> list[str]:
        return [live.request.id for live in self._live.values() if live.request.is_unasked]

    def sendable(self) -> list[AcceptedRequest]:
        """Return the requests that should be sent to the worker now.

        Suspects (`is_suspect`) are sent one at a time, by tier. The next suspect is sent when the one before has got
        a token or has ended. So if a suspect ends another worker, no other suspect is blamed.
        """
        unsent = [live for live in self._live.values() if not live.is_sent]
        sendable = [live for live in unsent if not live.is_suspect]
        if not any(live.is_sent and live.is_suspect for live in self._live.values()):
            suspects = (live for live in unsent if live.is_suspect)
            sendable[:0] = sorted(suspects, key=lambda live: TIER_RANKS[live.request.tier])[:1]
        return sendable

    @property
    def has_unsent(self) -> bool:
        return not all(map(_IS_SENT, self._live.values()))

    def oldest_cancel_s(self) -> float | None:
        cancelled = (live.cancelled_at_s for live in self._live.values())
        return min((at_s for at_s in cancelled if at_s is not None), default=None)

    def add(
        self, request: GenerateRequest, receiver: Receiver, now_s: float, so_far: AnswerSoFar | None = None
    ) -> AcceptedRequest:
        """Accept a request; raise InvalidRequest if its id is live. `so_far` is the output of another machine."""
        if request.id in self._live:
            raise InvalidRequest(f"a request with id {request.id!r} is live; give each request its own id", param="id")
        live = self._live[request.id] = AcceptedRequest(request, receiver, now_s, so_far)
        return live

    def cancel(self, request_id: str, now_s: float) -> bool:
        """Cancel a request; if it is unsent, end it at once. Return True if the caller must send the worker a Cancel.

        An unknown or cancelled id is ignored.
        """
        live = self._live.get(request_id)
        if live is None or live.cancelled_at_s is not None:
            return False
        live.cancelled_at_s = now_s
        if not live.is_sent:
            self._finish_cancelled(live)
        return live.is_sent

    def end_cancelled(self, request_id: str) -> None:
        """Tell the receiver of a cancelled request that it has ended. The worker's own end is then ignored."""
        live = self._live.get(request_id)
        if live is not None and live.cancelled_at_s is not None:
            _deliver(live, _cancelled_step(live))
            live.receiver = None

    def fail(self, live: AcceptedRequest, error: EdgeAgentError) -> None:
        """End one request with an error. Record in the error how many tokens were delivered."""
        error.num_delivered_tokens = live.num_delivered
        del self._live[live.request.id]
        if live.receiver is not None:
            live.receiver.fail(error)

    def fail_all(self, make_error: Callable[[], EdgeAgentError]) -> None:
        """End every request: a cancelled one as cancelled, each other one with a new error."""
        for live in list(self._live.values()):
            if live.cancelled_at_s is None:
                self.fail(live, make_error())
            else:
                self._finish_cancelled(live)

    def fail_begun(self, make_error: Callable[[], EdgeAgentError]) -> None:
        """End every request for which a worker delivered tokens, each with a new error. The others can start over."""
        for live in [live for live in self._live.values() if live.tokens]:
            self.fail(live, make_error())

    def cancel_all(self) -> None:
        """End every request with a Finished(cancelled) that states the request's usage."""
        for live in list(self._live.values()):
            self._finish_cancelled(live)

    def on_steps(self, steps: StepResult) -> None:
        """Deliver a step's deltas to their requests; raise ProtocolError if an item violates the protocol."""
        for item in steps.items:
            self._on_item(item, steps.at_s)

    def on_failed(self, failed: Failed) -> None:
        """End a request with the worker's error; raise ProtocolError if the worker does not have the request."""
        error = from_code(failed.code, failed.message, param=failed.param)
        self.fail(self._sent(failed.id), error)

    def blame(self, request_id: str, cause: str) -> bool:
        """End the request that hung the worker, with an error, so that it does not hang the next worker.

        A cancelled request ends as cancelled. Return False if the worker does not have the request.
        """
        live = self._live.get(request_id)
        if live is None or not live.is_sent:
            return False
        if live.cancelled_at_s is None:
            self.fail(live, stuck(cause))
        return True

    def on_worker_end(self, cause: str, kind: EndKind) -> None:
        """Settle the requests of a dead worker: each is cancelled, fails, or waits for the next worker."""
        for live in [live for live in self._live.values() if live.is_sent]:
            live.pending_deltas.clear()
            live.num_deaths += kind is not EndKind.REPLACED
            live.num_crashes += kind in (EndKind.CRASHED, EndKind.HUNG)
            if live.cancelled_at_s is not None:
                self._finish_cancelled(live)
            elif live.is_exhausted:
                self.fail(live, crashed_again(cause))
            else:
                live.is_sent = live.has_progressed = False
                live.handovers += (Handover("local", "local", live.num_delivered, kind),)
                _deliver(live, Step((Interrupted(kind),)))

    def _on_item(self, item: StepItem, at_s: float) -> None:
        live = self._sent(item.id)
        if len(item.deltas) > 1 and any(isinstance(delta, Finished) for delta in item.deltas[:-1]):
            raise ProtocolError(f"deltas of request {item.id!r} after its end")
        # Text without its tokens could not be continued, so all parts are delivered together with the last one.
        deltas = item.deltas
        if deltas and isinstance(deltas[0], Started):
            deltas = _note_start(live, deltas)
        if item.is_part or live.pending_deltas:
            live.pending_deltas += deltas
            if item.is_part:
                is_long = live.request.echo or live.request.logprobs is not None
                if len(live.pending_deltas) > (_MAX_PARTS if is_long else _MAX_PLAIN_PARTS):
                    raise ProtocolError(f"an item of request {item.id!r} in {len(live.pending_deltas)} parts")
                return
            deltas = tuple(live.pending_deltas)
            live.pending_deltas.clear()
        if item.tokens:
            live.tokens += item.tokens
            live.step_lengths.append(len(item.tokens))
            live.has_progressed = True
            live.first_token_at_s = live.first_token_at_s or at_s
            live.last_token_at_s = at_s
        num_held = len(item.held_logprobs)
        if num_held > len(live.tokens):
            raise ProtocolError(f"{num_held} log probabilities of the {len(live.tokens)} tokens of {item.id!r}")
        live.held_logprobs = item.held_logprobs
        if deltas and isinstance(deltas[-1], Finished):
            del self._live[item.id]
            deltas = (*deltas[:-1], _with_handovers(deltas[-1], live, at_s))
        if deltas or item.tokens:
            step = Step(deltas, item.tokens, at_s, item.num_withheld)
            live.num_delivered += step.num_delivered
            _deliver(live, step)

    def _sent(self, request_id: str) -> AcceptedRequest:
        live = self._live.get(request_id)
        if live is None or not live.is_sent:
            raise ProtocolError(f"an answer to request {request_id!r}, which is not live")
        return live

    def _finish_cancelled(self, live: AcceptedRequest) -> None:
        del self._live[live.request.id]
        _deliver(live, _cancelled_step(live))


def _cancelled_step(live: AcceptedRequest) -> Step:
    started = live.started or Started(0, 0)
    usage = Usage(started.num_prompt_tokens, started.num_cached_tokens, live.num_delivered)
    # The times of the stages before the first token are the worker's, and unknown here.
    decode_ms = (live.last_token_at_s - (live.first_token_at_s or live.last_token_at_s)) * 1000
    timings = Timings(first_token_ms=live.first_token_ms, decode_ms=decode_ms, handovers=live.handovers)
    return Step((Finished(FinishReason.CANCELLED, usage, timings),))


def _deliver(live: AcceptedRequest, step: Step) -> None:
    if (receiver := live.receiver) is None:
        return
    try:
        receiver.put(step)
    except Exception as error:  # a bug there must not end the other requests
        live.receiver = None
        receiver.fail(error)


def _note_start(live: AcceptedRequest, deltas: tuple[Delta, ...]) -> tuple[Delta, ...]:
    """Record the Started of a request's first worker. Return the deltas, without the Started of a later worker."""
    if live.started is not None:
        return deltas[1:]
    assert isinstance(deltas[0], Started)
    live.started = deltas[0]
    return deltas


def _with_handovers(finished: Finished, live: AcceptedRequest, at_s: float) -> Finished:
    """Return a Finished that covers all workers of a request: the handovers, the times and the first cached tokens.

    If an earlier worker sent the first token, the times of the stages before it are 0: the earlier worker's times are
    unknown, and the last worker's times measure repeated work, which counts as decoding.
    """
    if not live.handovers:
        return finished
    timings = replace(finished.timings, handovers=live.handovers)
    if timings.is_resumed:
        timings = replace(timings, queue_ms=0.0, load_ms=0.0, render_ms=0.0, cache_ms=0.0, prefill_ms=0.0)
    if live.first_token_at_s is not None:
        decode_ms = (at_s - live.first_token_at_s) * 1000
        timings = replace(timings, first_token_ms=live.first_token_ms, decode_ms=decode_ms)
    usage = finished.usage
    if live.started is not None:
        usage = replace(usage, num_cached_tokens=live.started.num_cached_tokens)
    return replace(finished, usage=usage, timings=timings)


class Kind(Enum):
    """The kinds of queries.

    An Embed or a Rerank takes long. A PurgeCache waits for the disk. Any other query is quick. No kind waits for
    another.
    """

    QUICK = auto()
    EMBED = auto()
    PURGE = auto()


def _kind_of(query: TextQuery) -> Kind:
    match query:
        case Embed() | Rerank():
            return Kind.EMBED
        case PurgeCache():
            return Kind.PURGE
        case _:
            return Kind.QUICK


class Query:
    """One query, and the parts of its answer so far.

    `future` gets the answer or an error. `sent_at_s` is when the query was sent to the worker; None before that.
    """

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.kind = _kind_of(ask.query)
        self.future: asyncio.Future[QueryAnswer] = asyncio.get_running_loop().create_future()
        self.sent_at_s: float | None = None
        self.parts: list[QueryAnswer] = []


class Queries:
    """All open queries, by id, in order of arrival."""

    def __init__(self) -> None:
        self._open: dict[str, Query] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._open)

    @staticmethod
    def has_id(some_id: str) -> bool:
        """Whether this is the id of a query (open or ended), and not the id of a request."""
        return some_id.startswith(_ID_PREFIX)

    def add(self, query: TextQuery) -> Query:
        """Add a query; raise Overloaded if too many queries of its kind are open."""
        added = Query(Ask(f"{_ID_PREFIX}{next(self._numbers)}", query))
        num_waiting = sum(other.kind is added.kind for other in self._open.values())
        is_embed = added.kind is Kind.EMBED
        if num_waiting >= (MAX_EMBEDS if is_embed else MAX_QUERIES):
            what = "requests for embeddings" if is_embed else "questions about text"
            raise Overloaded.full_queue(f"{num_waiting} {what} are waiting", served_by="local")
        self._open[added.ask.id] = added
        return added

    @property
    def sent_at_s(self) -> float | None:
        """When the worker got its current quick query; None if it has none."""
        sent = (query.sent_at_s for query in self._open.values() if query.kind is Kind.QUICK)
        return next((sent_at_s for sent_at_s in sent if sent_at_s is not None), None)

    @property
    def is_embedding(self) -> bool:
        return any(query.kind is Kind.EMBED and query.sent_at_s is not None for query in self._open.values())

    def sendable(self) -> list[Query]:
        """Return the queries to send now: the oldest of each kind, if the worker has none of that kind.

        The worker gets only one query of each kind at a time, so that the query's time can be measured.
        """
        first = {query.kind: query for query in reversed(self._open.values())}
        sent = {query.kind for query in self._open.values() if query.sent_at_s is not None}
        return [query for kind, query in first.items() if kind not in sent]

    def discard(self, query: Query) -> bool:
        """Drop a query. Return True if the caller must send the worker a Cancel, because the worker has the query."""
        return self._open.pop(query.ask.id, None) is not None and query.sent_at_s is not None

    def on_answer(self, answer: AnswerPart) -> None:
        """Add a part of an answer. Ignore it if the query was dropped. Raise ProtocolError for too many parts."""
        query = self._open.get(answer.id)
        if query is None:
            return
        query.parts.append(answer.part)
        if len(query.parts) > _MAX_ANSWER_PARTS:
            raise ProtocolError(f"an answer in more than {_MAX_ANSWER_PARTS} parts")
        if answer.is_last:
            self._settle(query, _joined(query.parts))

    def on_failed(self, failed: Failed) -> None:
        """End a query with the worker's error. Ignore the error if the query was dropped."""
        query = self._open.get(failed.id)
        if query is not None:
            self._settle(query, from_code(failed.code, failed.message, param=failed.param))

    def fail_sent(self, error: EdgeAgentError) -> None:
        for query in [query for query in self._open.values() if query.sent_at_s is not None]:
            self._settle(query, error)

    def fail_all(self, make_error: Callable[[], EdgeAgentError]) -> None:
        """End every query, each with a new error."""
        for query in list(self._open.values()):
            self._settle(query, make_error())

    def _settle(self, query: Query, outcome: QueryAnswer | EdgeAgentError) -> None:
        del self._open[query.ask.id]
        if query.future.done():
            return  # its client has just disconnected
        if isinstance(outcome, QueryAnswer):
            query.future.set_result(outcome)
        else:
            query.future.set_exception(outcome)


def _joined(parts: list[QueryAnswer]) -> QueryAnswer:
    return QueryAnswer(
        "".join(part.text for part in parts),
        tuple(chain.from_iterable(part.tokens for part in parts)),
        tuple(chain.from_iterable(part.pieces for part in parts)),
        tuple(chain.from_iterable(part.embeddings for part in parts)),
        tuple(chain.from_iterable(part.scores for part in parts)),
    )
