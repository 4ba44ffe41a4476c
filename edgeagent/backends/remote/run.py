"""Runs one request at a remote: tries endpoints until an answer has begun, then reads that answer to its end."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field

from edgeagent.backends.prompts import num_prompt_tokens
from edgeagent.backends.remote.access import KEY_IS_MENDED, Headers, quotes_key
from edgeagent.backends.remote.answer import NO_TOKEN, ChatReader
from edgeagent.backends.remote.body import Body, Target, offered, tokens_left, write_body
from edgeagent.backends.remote.cluster import Cluster
from edgeagent.backends.remote.dialect import EDGEAGENT
from edgeagent.backends.remote.endpoint import Endpoint
from edgeagent.backends.remote.failures import (
    MAY_GO_ELSEWHERE,
    WAS_NOT_SENT,
    Failure,
    Kind,
    failure_of_body,
    retry_after_s,
)
from edgeagent.backends.remote.probe import identify, is_too_long, told_context
from edgeagent.backends.remote.transport import Call, CallStages, Exchange
from edgeagent.egress.spending import settled
from edgeagent.errors import (
    ConfigError,
    ContextLengthExceeded,
    DeadlineUnreachable,
    EdgeAgentError,
    InvalidRequest,
    ModelNotFound,
    NotSupported,
    Overloaded,
    PayloadTooLarge,
    RemoteUnavailable,
    RequestTimeout,
)
from edgeagent.types import (
    HOPS_HEADER,
    AnswerSoFar,
    ChatPrompt,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Permit,
    Placement,
    ProbePermit,
    Sink,
    Started,
    Step,
    Tier,
    Timings,
    Usage,
    replace,
)

logger = logging.getLogger(__name__)

MAX_TRIES = 2
# The most tokens that are reserved for an answer without a limit, if the model's context is not known.
_MAX_UNKNOWN_TOKENS = 16_384
# On average, a token of any text has fewer characters.
_MAX_CHARS_PER_TOKEN = 8
# A request that is refused before its answer begins costs nothing.
_REFUSALS = frozenset({Kind.OVERLOADED, Kind.REFUSED_KEY, Kind.REJECTED, Kind.NO_MODEL, Kind.REDIRECT})
_MAX_DELAY_S = 0.2
_MAX_ERROR_BYTES = 64 * 1024
_EVENT_STREAM = "text/event-stream"


@dataclass(slots=True)
class _Attempt:
    """An attempt to run the request at one endpoint.

    `row` is the open row in the ledger. `began_s`, `first_s` (of the first content) and
    `heard_s` (of the last event, or of the beginning) are times of the backend's clock; 0 if not reached.
    """

    endpoint: Endpoint
    began_s: float
    heard_s: float
    first_s: float = 0.0
    row: int | None = None
    answer: ChatReader = field(default_factory=ChatReader)
    stages: CallStages = field(default_factory=CallStages)
    exchange: Exchange | None = None
    is_over: bool = False
    is_settled: bool = False


class Run:
    """One request at a remote. `end` ends it from outside."""

    def __init__(
        self, cluster: Cluster, request: GenerateRequest, permit: Permit, so_far: AnswerSoFar | None = None
    ) -> None:
        self._cluster = cluster
        self._remote = cluster.remote
        self._request = request
        self._permit = permit
        self._so_far = so_far
        self._model = cluster.model_there(request.model)
        self._num_prompt_tokens = num_prompt_tokens(request) + (0 if so_far is None else so_far.num_tokens)
        self._session = cluster.pseudonyms.session(request, time.time())
        self._attempt: _Attempt | None = None
        self._key_headers: Headers = ()
        self._num_delivered_tokens = 0
        self._began_s = cluster.clock()
        self._loop = asyncio.get_running_loop()
        limits = [self._remote.limits.total_s, *([request.timeout_s] if request.timeout_s is not None else [])]
        self._ends_at_s = self._loop.time() + min(limits)
        self._scope = asyncio.timeout_at(self._ends_at_s)
        self._ended: str | None = None
        self._is_over = False

    def end(self, reason: str = "") -> None:
        """End the request as withdrawn for a reason, or as cancelled without one. Later calls do nothing."""
        if self._ended is None and not self._is_over and not self._scope.expired():
            self._ended = reason
            self._scope.reschedule(0)

    async def run(self, sink: Sink) -> None:
        """Put the answer's steps into the sink, the first with content and the last with Finished.

        Raise an EdgeAgentError if the answer fails. While the sink has no room, nothing is read from the remote.
        """
        try:
            async with self._scope:
                sink.put(await self._begin())
                while not self._is_over:
                    await sink.room()
                    assert self._attempt is not None
                    sink.put(self._step(self._attempt, await self._more(self._attempt)))
        except TimeoutError:
            if self._ended is None:
                raise self._failed(Failure(Kind.TIMEOUT, "its answer did not end within the time limit")) from None
            if self._ended:
                self._settle("withdrawn")
                raise self._unavailable(self._ended) from None
            sink.put(self._finish(FinishReason.CANCELLED))
        except Failure as failure:
            raise self._failed(failure) from None
        except ConfigError as error:
            raise self._unavailable(f"{self._cluster.name}: {error.message}") from None
        finally:
            self._is_over = True
            self._settle("cancelled")
            self._close()

    async def _begin(self) -> Step:
        """Try the endpoints in their order, until one answers. At most MAX_TRIES attempts may reach one.

        Return the step with the first content. It ends with Finished if the answer is complete by then.
        """
        if self._so_far is not None and tokens_left(self._request, self._so_far) == 0:
            return self._finish(FinishReason.LENGTH)
        num_sent, before = 0, None
        last = Failure(Kind.UNREACHABLE, "none of its endpoints may get requests now")
        for endpoint in self._cluster.order(self._model, self._num_prompt_tokens, self._session):
            if before is endpoint and last.kind is Kind.LATE:
                continue
            if before is endpoint and num_sent:
                # Requests that failed at the same time do not retry at the same time.
                await asyncio.sleep(random.random() * _MAX_DELAY_S)  # noqa: S311 - jitter
            if before is not None and not endpoint.breaker.accepts_last_resort(self._cluster.clock()):
                continue
            if before is not None and _is_too_long(last) and not self._is_longer(endpoint, before):
                continue
            self._key_headers, now_s = self._cluster.access.headers(), self._cluster.clock()
            attempt = self._attempt = _Attempt(endpoint, now_s, now_s)
            endpoint.begin(now_s)
            try:
                return await self._try(attempt)
            except Failure as failure:
                num_sent += failure.kind not in WAS_NOT_SENT
                may_go_on = failure.kind in MAY_GO_ELSEWHERE or _is_too_long(failure)
                if not may_go_on or num_sent >= MAX_TRIES:
                    raise
                self._blame(attempt, failure)
                self._close()
                last, before = failure, endpoint
        raise last

    def _is_longer(self, endpoint: Endpoint, other: Endpoint) -> bool:
        """Whether an endpoint is known to have a longer context than another."""
        return endpoint.context(self._model) > other.context(self._model)

    def _blame(self, attempt: _Attempt, failure: Failure) -> None:
        """Record the failure of an attempt: in the ledger, and as the endpoint's, unless the whole time is over.

        If the endpoint refused the prompt as too long, also record the context length that the refusal names.
        """
        if _is_too_long(failure):
            attempt.endpoint.note_context(self._model, told_context(failure.detail))
        if not self._scope.expired():
            self._cluster.note_failure(attempt.endpoint, failure, self._key_headers, attempt.heard_s)
        self._settle(failure.kind.value)

    async def _try(self, attempt: _Attempt) -> Step:
        """Send the request to one endpoint; return the step with the first content."""
        cluster, endpoint = self._cluster, attempt.endpoint
        if self._so_far is not None and not endpoint.is_identified:
            # Only some servers can continue an answer.
            leave = ProbePermit(self._remote.name, self._permit.mode)
            await identify(endpoint, cluster.ledger, leave, self._key_headers)
        body, max_tokens = self._limited_body(endpoint)
        attempt.answer = self._reader(max_tokens)
        attempt.row = cluster.ledger.begin(
            self._permit,
            endpoint.transport.host,
            self._model,
            len(body.content),
            self._num_prompt_tokens,
            max_tokens or 0,
        )
        deltas = await self._first_content(attempt, body)
        self._check_model(endpoint, attempt.answer)
        now_s = attempt.first_s = attempt.heard_s = cluster.clock()
        endpoint.note_content(self._num_prompt_tokens, now_s - attempt.began_s, now_s)
        usage = attempt.answer.usage or Usage()
        placement = Placement(
            cluster.name,
            attempt.answer.model or self._model,
            self._permit.reason,
            endpoint.transport.host,
            endpoint.region,
        )
        started = Started(usage.num_prompt_tokens, usage.num_cached_tokens, placement=placement)
        return self._step(attempt, [started, *deltas])

    async def _first_content(self, attempt: _Attempt, body: Body) -> list[Delta]:
        """Send the body; return the first content, or an empty list if the answer is complete and empty."""
        limit_s, transport = self._remote.limits.first_token_s, attempt.endpoint.transport
        call = Call(body.path, body.content, self._headers(), self._request.id)
        deltas: list[Delta] = []
        try:
            async with asyncio.timeout(limit_s):
                exchange = attempt.exchange = await transport.open(self._permit, call, attempt.stages)
                await self._check_head(exchange)
                while not (deltas or attempt.is_over):
                    deltas = await self._read(attempt, exchange)
        except TimeoutError:
            raise Failure(Kind.TIMEOUT, f"no content within {limit_s:g} s") from None
        return deltas

    async def _more(self, attempt: _Attempt) -> list[Delta]:
        """Return more content, or an empty list at the end of the answer. Any event restarts the idle timeout."""
        assert attempt.exchange is not None
        answer, deltas, limit_s = attempt.answer, list[Delta](), self._remote.limits.idle_s
        try:
            async with asyncio.timeout(limit_s) as idle:
                while not (deltas or attempt.is_over):
                    num_events = answer.num_events
                    deltas = await self._read(attempt, attempt.exchange)
                    if answer.num_events > num_events:
                        idle.reschedule(self._loop.time() + limit_s)
        except TimeoutError:
            raise Failure(Kind.TIMEOUT, f"no more events within {limit_s:g} s") from None
        attempt.heard_s = self._cluster.clock()
        attempt.endpoint.breaker.hear(attempt.heard_s)
        return deltas

    async def _read(self, attempt: _Attempt, exchange: Exchange) -> list[Delta]:
        """Read the next bytes, and return their content, if any. At the end of the answer, set `is_over`."""
        answer = attempt.answer
        if answer.fault is not None:
            raise answer.fault
        if not answer.has_end_marker and (chunk := await exchange.read()):
            deltas = answer.feed(chunk)
            if deltas or not answer.has_end_marker:
                return deltas
        last = answer.end()
        attempt.is_over = True
        return last

    async def _check_head(self, exchange: Exchange) -> None:
        """Raise a Failure unless the response has status 200 and is an event stream."""
        if exchange.status == 200 and exchange.content_type == _EVENT_STREAM:
            return
        try:
            body = await exchange.read_all(_MAX_ERROR_BYTES)
        except Failure:
            body = b""
        if exchange.status != 200:
            raise failure_of_body(exchange.status, body, retry_after_s(exchange.headers, time.time()))
        if exchange.content_type == "application/json" and b'"error"' in body:
            raise failure_of_body(0, body, None)
        what = "a web page (a network's sign-in page?)" if b"<html" in body[:1024].lower() else "no event stream"
        raise Failure(Kind.GARBLED, f"it answered with {what} ({exchange.content_type[:64] or 'of no type'})")

    def _limited_body(self, endpoint: Endpoint) -> tuple[Body, int | None]:
        """Return the body, and the most tokens that the answer may have; None if there is no limit.

        Under a budget, a request without a limit gets what is left, but at most what fits the model's context.
        """
        body, most = self._body(endpoint, self._request), tokens_left(self._request, self._so_far)
        if most is not None:
            return body, most
        left = self._cluster.ledger.tokens_left(self._remote.name, self._permit.client, self._num_prompt_tokens)
        if left is None:
            return body, None
        room = endpoint.context(self._model) or self._remote.context_length or _MAX_UNKNOWN_TOKENS
        if left > room:
            return body, room
        num_before = self._so_far.num_tokens if self._so_far is not None else 0
        return self._body(endpoint, replace(self._request, max_tokens=num_before + max(1, left))), max(1, left)

    def _reader(self, max_tokens: int | None) -> ChatReader:
        prompt, num_alternatives = self._request.prompt, self._request.logprobs
        tools = offered(prompt.tools, prompt.tool_choice) if isinstance(prompt, ChatPrompt) else ()
        before = self._so_far.text if self._so_far is not None else ""
        return ChatReader(num_alternatives, max_tokens, frozenset(tool.name for tool in tools), before)

    def _body(self, endpoint: Endpoint, request: GenerateRequest) -> Body:
        can_go_on = self._remote.continues
        if self._so_far is not None and can_go_on == "no":
            raise NotSupported(
                f"{self._cluster.name} may not continue an answer that began elsewhere", served_by=self._cluster.name
            )
        salt = self._cluster.pseudonyms.cache_salt(self._request)
        target = Target(self._model, endpoint.dialect, salt, in_words=can_go_on == "inexact")
        return write_body(request, target, self._so_far)

    def _headers(self) -> Headers:
        num_hops = (HOPS_HEADER, str(self._request.num_hops + 1))
        own = (("Accept", _EVENT_STREAM), ("X-Session-ID", self._session), num_hops)
        return (*self._key_headers, *own, *_latency_headers(self._request))

    def _check_model(self, endpoint: Endpoint, answer: ChatReader) -> None:
        """Raise a Failure if another of the endpoint's listed models answered. Accept a name that is not listed."""
        if answer.model != self._model and answer.model in endpoint.models and self._model in endpoint.models:
            raise Failure(Kind.WRONG_MODEL, "it answered with another model than the requested one")

    def _step(self, attempt: _Attempt, deltas: list[Delta]) -> Step:
        if attempt.is_over:
            assert attempt.answer.finish is not None
            return self._finish(attempt.answer.finish, deltas)
        return Step(tuple(deltas), self._new_tokens(), time.monotonic(), is_estimated=attempt.answer.is_estimated)

    def _new_tokens(self) -> tuple[int, ...]:
        num_before, self._num_delivered_tokens = self._num_delivered_tokens, self._num_tokens
        return (NO_TOKEN,) * (self._num_delivered_tokens - num_before)

    @property
    def _num_tokens(self) -> int:
        return self._attempt.answer.num_tokens if self._attempt is not None else 0

    def _finish(self, reason: FinishReason, deltas: list[Delta] | None = None) -> Step:
        """End the request and return its last step."""
        self._is_over = True
        now_s, attempt = self._cluster.clock(), self._attempt
        usage = Usage(num_output_tokens=self._num_tokens)
        timings = Timings(route=self._cluster.name, reason=self._permit.reason)
        if attempt is not None:
            usage = attempt.answer.usage or usage
            if attempt.first_s:
                first_ms, decode_s = 1000 * (attempt.first_s - self._began_s), now_s - attempt.first_s
                timings = replace(timings, first_token_ms=first_ms, decode_ms=1000 * decode_s)
                attempt.endpoint.note_tokens(self._num_tokens - 1, decode_s, now_s)
        self._settle("cancelled" if reason is FinishReason.CANCELLED else "completed")
        finished = Finished(reason, self._total(usage), timings)
        return Step((*(deltas or ()), finished), self._new_tokens(), time.monotonic())

    def _total(self, usage: Usage) -> Usage:
        """Return the token counts of the whole answer."""
        if self._so_far is None:
            return usage
        num_prompt = max(0, usage.num_prompt_tokens - self._num_before_in_prompt)
        return Usage(
            num_prompt,
            min(num_prompt, usage.num_cached_tokens),
            usage.num_output_tokens + self._so_far.num_tokens,
            usage.num_reasoning_tokens,
        )

    @property
    def _num_before_in_prompt(self) -> int:
        """How many tokens of the earlier part of the answer the remote counts as prompt: all, but edgeagent none."""
        is_counted = self._attempt is None or self._attempt.endpoint.dialect is not EDGEAGENT
        return self._so_far.num_tokens if self._so_far is not None and is_counted else 0

    def _settle(self, outcome: str) -> None:
        """Close the current attempt's row in the ledger, if it is open, and count the attempt as ended."""
        attempt = self._attempt
        if attempt is None or attempt.is_settled:
            return
        attempt.is_settled = True
        attempt.endpoint.end()
        if attempt.row is None:
            return
        num_prompt, num_output, differs = 0, 0, False
        if attempt.stages.sent_s and (attempt.first_s or outcome not in _REFUSALS):
            answer = attempt.answer
            num_here = num_prompt_tokens(self._request) + self._num_before_in_prompt
            num_there = max(answer.num_tokens, answer.num_chars // _MAX_CHARS_PER_TOKEN)
            num_prompt, num_output, differs = settled(answer.usage, num_here, num_there)
        if differs:
            logger.warning("%s states fewer tokens than were counted here", self._cluster.name)
        self._cluster.ledger.end(attempt.row, outcome, num_prompt, num_output, differs=differs)

    def _close(self) -> None:
        """Stop the remote, if the answer of the current attempt is not complete."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None and attempt.exchange is not None:
            attempt.exchange.close(is_done=attempt.is_over and not attempt.answer.is_cut)

    def _unavailable(self, message: str, retry_after_s: float | None = None) -> RemoteUnavailable:
        return RemoteUnavailable(
            message,
            retry_after_s=retry_after_s,
            served_by=self._cluster.name,
            num_delivered_tokens=self._num_delivered_tokens,
        )

    def _failed(self, failure: Failure) -> EdgeAgentError:
        """Record the failure that ends the request, and return the error for the router and the client.

        Only a rejection shows the remote's own text.
        """
        if self._attempt is not None:
            self._blame(self._attempt, failure)
        name, num_delivered_tokens = self._cluster.name, self._num_delivered_tokens
        message = f"{name}: {failure.message}"
        if failure.kind is Kind.TIMEOUT and self._is_own_timeout():
            limit_s = self._request.timeout_s
            return RequestTimeout.passed(limit_s, served_by=name, num_delivered_tokens=num_delivered_tokens)
        if failure.kind is Kind.REJECTED and not num_delivered_tokens:
            is_detail_shown = failure.detail and not quotes_key(failure.detail, self._key_headers)
            detailed = f"{message}: {failure.detail}" if is_detail_shown else message
            if failure.status == 413:
                return PayloadTooLarge(message, served_by=name)
            kind = ContextLengthExceeded if _is_too_long(failure) else InvalidRequest
            return kind(detailed, served_by=name)
        if failure.kind is Kind.LATE and not num_delivered_tokens:
            return DeadlineUnreachable(message, retry_after_s=failure.retry_after_s, served_by=name)
        if failure.status == 429 and not num_delivered_tokens:
            return Overloaded(message, retry_after_s=self._retry_after_s(failure), served_by=name)
        if failure.kind is Kind.NO_MODEL and not num_delivered_tokens:
            return ModelNotFound(message, served_by=name)
        if failure.kind is Kind.REFUSED_KEY:
            message += f"; it gets no requests until {KEY_IS_MENDED}"
        return self._unavailable(message, self._retry_after_s(failure))

    def _retry_after_s(self, failure: Failure) -> float | None:
        if failure.retry_after_s is None and failure.kind in (Kind.OVERLOADED, Kind.UNREACHABLE):
            return self._cluster.seconds_until_next() or None
        return failure.retry_after_s

    def _is_own_timeout(self) -> bool:
        timeout_s = self._request.timeout_s
        return self._scope.expired() and timeout_s is not None and timeout_s <= self._remote.limits.total_s


def _is_too_long(failure: Failure) -> bool:
    return failure.kind is Kind.REJECTED and failure.status != 413 and is_too_long(failure.detail)


def _latency_headers(request: GenerateRequest) -> Headers:
    """Return the headers in which another edgeagent reads the tier and the times that a request asks for."""
    need = request.need
    asked = {
        "X-EdgeAgent-Tier": None if request.tier is Tier.INTERACTIVE else request.tier.value,
        "X-EdgeAgent-TTFT-Ms": None if need.first_token_s is None else f"{1000 * need.first_token_s:g}",
        "X-EdgeAgent-ITL-Ms": None if need.token_s is None else f"{1000 * need.token_s:g}",
    }
    return tuple((name, value) for name, value in asked.items() if value is not None)
