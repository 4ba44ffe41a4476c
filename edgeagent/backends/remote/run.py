"""Runs one request at a remote: tries endpoints until an answer has begun, then reads that answer to its end."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from functools import partial

from edgeagent.backends.prompts import num_prompt_tokens
from edgeagent.backends.remote.access import KEY_IS_MENDED, Headers, quotes_key
from edgeagent.backends.remote.answer import NO_TOKEN, ChatReader
from edgeagent.backends.remote.attempt import Attempt
from edgeagent.backends.remote.body import Body, Target, offered, tokens_left, write_body
from edgeagent.backends.remote.cluster import Cluster
from edgeagent.backends.remote.control import Cause, Control, OutOfTime, RequestEnded
from edgeagent.backends.remote.dialect import EDGEAGENT
from edgeagent.backends.remote.endpoint import Endpoint
from edgeagent.backends.remote.failures import MAY_GO_ELSEWHERE, WAS_NOT_SENT, Failure, Kind
from edgeagent.backends.remote.probe import identify, is_too_long, told_context
from edgeagent.backends.remote.transport import Call
from edgeagent.egress.spending import settled
from edgeagent.errors import (
    ConfigError,
    ContextLengthExceeded,
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
    Started,
    Step,
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


class Run:
    """One request at a remote. Call `begin`, then `next` until a step ends with Finished. Always call `close`."""

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
        self._attempt: Attempt | None = None
        self._endpoint: Endpoint | None = None
        self._row: int | None = None
        self._num_delivered_tokens = 0
        self._key_headers: Headers = ()
        self._began_s = cluster.clock()
        self._first_s = 0.0
        self._heard_s = self._began_s
        loop = asyncio.get_running_loop()
        limits = [self._remote.limits.total_s, *([request.timeout_s] if request.timeout_s is not None else [])]
        self._ends_at_s = loop.time() + min(limits)
        self.control = Control()
        self.is_over = False

    async def begin(self) -> Step:
        """Try endpoints until one answers, and return the step with the first content.

        The step ends with Finished if the answer is complete by then, if no more tokens are allowed, or if the request
        was cancelled. Raise an EdgeAgentError if no endpoint answers.
        """
        if tokens_left(self._request, self._so_far) == 0 and self._so_far is not None:
            return self._finish(FinishReason.LENGTH)
        try:
            return await self._try_endpoints()
        except RequestEnded:
            return self._end_early()
        except Failure as failure:
            raise self._error(failure) from None
        except ConfigError as error:
            raise RemoteUnavailable(f"{self._cluster.name}: {error.message}", served_by=self._cluster.name) from None

    async def next(self) -> Step:
        """Return the next step; the last one ends with Finished. Raise an EdgeAgentError if the answer fails."""
        assert self._attempt is not None and self._endpoint is not None
        try:
            deltas = await self._attempt.next()
        except RequestEnded:
            return self._end_early()
        except Failure as failure:
            self._blame(self._endpoint, failure)
            self._close_row(failure.kind.value)
            raise self._error(failure) from None
        self._heard_s = self._cluster.clock()
        self._endpoint.breaker.hear(self._heard_s)
        return self._step(deltas)

    async def close(self) -> None:
        """End the request in any state. If its row in the ledger is still open, close it as cancelled."""
        self._close_row("cancelled")
        await self._leave()

    async def _try_endpoints(self) -> Step:
        """Try the endpoints in their order, until one answers. At most MAX_TRIES attempts may reach one."""
        num_sent, before = 0, None
        last = Failure(Kind.UNREACHABLE, "none of its endpoints may get requests now")
        for endpoint in self._cluster.order(self._model, self._num_prompt_tokens, self._session):
            if before is endpoint and num_sent:
                await self._pause()
            if before is not None and not endpoint.breaker.accepts_last_resort(self._cluster.clock()):
                continue
            if before is not None and _is_too_long(last) and not self._is_longer(endpoint, before):
                continue
            try:
                return await self._try(endpoint)
            except Failure as failure:
                self._blame(endpoint, failure)
                self._close_row(failure.kind.value)
                await self._leave()
                last, before = failure, endpoint
                num_sent += failure.kind not in WAS_NOT_SENT
                may_go_on = failure.kind in MAY_GO_ELSEWHERE or _is_too_long(failure)
                if not may_go_on or num_sent >= MAX_TRIES or self._is_out_of_time():
                    break
        raise last

    def _is_longer(self, endpoint: Endpoint, other: Endpoint) -> bool:
        """Whether an endpoint is known to have a longer context than another."""
        return endpoint.context(self._model) > other.context(self._model)

    def _blame(self, endpoint: Endpoint, failure: Failure) -> None:
        """Record an endpoint's failure, unless the whole request timed out.

        If the endpoint refused the prompt as too long, also record the context length that the refusal names.
        """
        if _is_too_long(failure):
            endpoint.note_context(self._model, told_context(failure.detail))
        if not (failure.kind is Kind.TIMEOUT and self._is_out_of_time()):
            self._cluster.note_failure(endpoint, failure, self._key_headers, self._heard_s)

    def _is_out_of_time(self) -> bool:
        return asyncio.get_running_loop().time() >= self._ends_at_s

    async def _try(self, endpoint: Endpoint) -> Step:
        """Send the request to one endpoint; return the step with the first content."""
        cluster = self._cluster
        headers = self._key_headers = cluster.access.headers()
        began_s = self._heard_s = cluster.clock()
        endpoint.begin(began_s)
        self._endpoint = endpoint
        if self._so_far is not None and not endpoint.is_identified:
            # Only some servers can continue an answer.
            leave = ProbePermit(self._remote.name, self._permit.mode)
            await identify(endpoint, cluster.ledger, leave, headers, self.control)
        body, max_tokens = self._limited_body(endpoint)
        reader = self._reader(max_tokens)
        self._attempt = Attempt(endpoint.transport, reader, self.control, self._remote.limits, self._ends_at_s)
        self._row = cluster.ledger.begin(
            self._permit,
            endpoint.transport.host,
            self._model,
            len(body.content),
            self._num_prompt_tokens,
            max_tokens or 0,
        )
        deltas = await self._attempt.begin(self._permit, self._call(body, headers))
        self._check_model(endpoint, reader)
        now_s = self._first_s = self._heard_s = cluster.clock()
        endpoint.note_content(self._num_prompt_tokens, now_s - began_s, now_s)
        usage = reader.usage or Usage()
        placement = Placement(
            cluster.name,
            reader.model or self._model,
            self._permit.reason,
            endpoint.transport.host,
            endpoint.region,
        )
        started = Started(usage.num_prompt_tokens, usage.num_cached_tokens, placement=placement)
        return self._step(deltas, started)

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

    def _call(self, body: Body, headers: Headers) -> Call:
        num_hops = (HOPS_HEADER, str(self._request.num_hops + 1))
        headers = (*headers, ("Accept", "text/event-stream"), ("X-Session-ID", self._session), num_hops)
        return Call(body.path, body.content, headers, self._request.id)

    def _check_model(self, endpoint: Endpoint, answer: ChatReader) -> None:
        """Raise a Failure if another of the endpoint's listed models answered. Accept a name that is not listed."""
        if answer.model != self._model and answer.model in endpoint.models and self._model in endpoint.models:
            raise Failure(Kind.WRONG_MODEL, "it answered with another model than the requested one")

    async def _pause(self) -> None:
        """Wait a random time, so that requests that failed at the same time do not retry at the same time."""
        delay_s = random.random() * _MAX_DELAY_S  # noqa: S311 - jitter
        try:
            await self.control.wait(self._ends_at_s, partial(asyncio.sleep, delay_s))
        except OutOfTime:
            raise Failure(Kind.TIMEOUT, "no time is left for a retry") from None

    def _step(self, deltas: list[Delta], started: Started | None = None) -> Step:
        assert self._attempt is not None
        answer = self._attempt.answer
        all_deltas: list[Delta] = [*([started] if started is not None else []), *deltas]
        if self._attempt.is_over:
            assert answer.finish is not None
            return self._finish(answer.finish, all_deltas)
        return Step(tuple(all_deltas), self._new_tokens(answer), time.monotonic())

    def _new_tokens(self, answer: ChatReader) -> tuple[int, ...]:
        num_new, self._num_delivered_tokens = answer.num_tokens - self._num_delivered_tokens, answer.num_tokens
        return (NO_TOKEN,) * num_new

    def _finish(self, reason: FinishReason, deltas: list[Delta] | None = None) -> Step:
        """End the request and return its last step."""
        self.is_over = True
        now_s = self._cluster.clock()
        answer = self._attempt.answer if self._attempt is not None else ChatReader()
        usage = answer.usage or Usage(num_output_tokens=answer.num_tokens)
        if self._endpoint is not None and self._first_s:
            self._endpoint.note_tokens(answer.num_tokens - 1, now_s - self._first_s, now_s)
        self._close_row("cancelled" if reason is FinishReason.CANCELLED else "completed")
        timings = Timings(
            first_token_ms=1000 * (self._first_s - self._began_s) if self._first_s else 0.0,
            decode_ms=1000 * (now_s - self._first_s) if self._first_s else 0.0,
            route=self._cluster.name,
            reason=self._permit.reason,
        )
        finished = Finished(reason, self._total(usage), timings)
        return Step((*(deltas or ()), finished), self._new_tokens(answer), time.monotonic())

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
        is_counted = self._endpoint is None or self._endpoint.dialect is not EDGEAGENT
        return self._so_far.num_tokens if self._so_far is not None and is_counted else 0

    def _end_early(self) -> Step:
        """Return the last step of a cancelled request; raise RemoteUnavailable if the permit was withdrawn."""
        if self.control.cause is Cause.CANCELLED:
            return self._finish(FinishReason.CANCELLED)
        self._close_row("withdrawn")
        raise RemoteUnavailable(
            self.control.message, served_by=self._cluster.name, num_delivered_tokens=self._num_delivered_tokens
        ) from None

    def _close_row(self, outcome: str) -> None:
        row, self._row = self._row, None
        if row is None:
            return
        num_prompt, num_output, differs = 0, 0, False
        if self._attempt is not None and self._attempt.was_sent and (self._first_s or outcome not in _REFUSALS):
            answer = self._attempt.answer
            num_here = num_prompt_tokens(self._request) + self._num_before_in_prompt
            num_there = max(answer.num_tokens, answer.num_chars // _MAX_CHARS_PER_TOKEN)
            num_prompt, num_output, differs = settled(answer.usage, num_here, num_there)
        if differs:
            logger.warning("%s states fewer tokens than were counted here", self._cluster.name)
        self._cluster.ledger.end(row, outcome, num_prompt, num_output, differs=differs)

    async def _leave(self) -> None:
        attempt, self._attempt = self._attempt, None
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.end()
        if attempt is not None:
            await attempt.close()

    def _error(self, failure: Failure) -> EdgeAgentError:
        """Convert a failure to an error for the router and the client. Only a rejection shows the remote's own text."""
        name, num_delivered_tokens = self._cluster.name, self._num_delivered_tokens
        message = f"{name}: {failure.message}"
        if failure.kind is Kind.TIMEOUT and self._is_own_timeout():
            message = f"the request did not end within its {self._request.timeout_s:g} s"
            return RequestTimeout(message, served_by=name, num_delivered_tokens=num_delivered_tokens)
        if failure.kind is Kind.REJECTED and not num_delivered_tokens:
            is_detail_shown = failure.detail and not quotes_key(failure.detail, self._key_headers)
            detailed = f"{message}: {failure.detail}" if is_detail_shown else message
            if failure.status == 413:
                return PayloadTooLarge(message, served_by=name)
            kind = ContextLengthExceeded if _is_too_long(failure) else InvalidRequest
            return kind(detailed, served_by=name)
        if failure.status == 429 and not num_delivered_tokens:
            return Overloaded(message, retry_after_s=self._retry_after_s(failure), served_by=name)
        if failure.kind is Kind.NO_MODEL and not num_delivered_tokens:
            return ModelNotFound(message, served_by=name)
        if failure.kind is Kind.REFUSED_KEY:
            message += f"; it gets no requests until {KEY_IS_MENDED}"
        return RemoteUnavailable(
            message,
            retry_after_s=self._retry_after_s(failure),
            served_by=name,
            num_delivered_tokens=num_delivered_tokens,
        )

    def _retry_after_s(self, failure: Failure) -> float | None:
        if failure.retry_after_s is None and failure.kind in (Kind.OVERLOADED, Kind.UNREACHABLE):
            return self._cluster.seconds_until_next() or None
        return failure.retry_after_s

    def _is_own_timeout(self) -> bool:
        timeout_s = self._request.timeout_s
        return self._is_out_of_time() and timeout_s is not None and timeout_s <= self._remote.limits.total_s


def _is_too_long(failure: Failure) -> bool:
    return failure.kind is Kind.REJECTED and failure.status != 413 and is_too_long(failure.detail)
