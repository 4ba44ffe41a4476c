"""Answers a request with one or more generations: they run concurrently, and become one body or one stream.

The module does not depend on the form of the body or of the chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.openai.answer import Answer, Chunks
from edgeagent.api.wire.errors import error_body, to_client_error
from edgeagent.api.wire.placement import PlacementHeaders
from edgeagent.api.wire.sse import EventStream, event, unless_disconnected
from edgeagent.errors import EdgeAgentError
from edgeagent.service.fan_out import NumberedSteps, run_all
from edgeagent.service.first_step import wait_for_first_step
from edgeagent.types import GenerateRequest, PromptText, Step, TextDelta

# The log probabilities of a long prompt, with the alternatives, take tens of milliseconds to write.
_MAX_INLINE_LOGPROBS = 256


async def respond(
    request: Request,
    requests: Sequence[GenerateRequest],
    answer: Answer,
    chunks: Chunks | None,
    ping_interval_s: float | None,
    params: Mapping[str, str],
) -> Response:
    """Run the requests, and answer with a stream of `chunks`. If `chunks` is None, answer with `answer` as one body.

    If the client disconnects, the requests are cancelled. While a stream has nothing to send, it sends a comment every
    `ping_interval_s` seconds; None means the default interval. Errors of the worker name fields of the Responses API,
    such as `input`; `params` maps these names to the fields of this route.
    """

    def reworded(error: EdgeAgentError) -> EdgeAgentError:
        error.param = params.get(error.param or "", error.param)
        return error

    placement = PlacementHeaders()
    steps = placement.noting(run_all(context_of(request).service, requests))
    try:
        response: Response
        if chunks is None:
            body = await unless_disconnected(request.receive, _collect(steps, answer))
            response = Response(body, media_type="application/json")
        else:
            steps = await unless_disconnected(request.receive, wait_for_first_step(steps))
            written = _events(steps, answer, chunks, reworded)
            response = EventStream(written) if ping_interval_s is None else EventStream(written, ping_interval_s)
        placement.put(response)
        return response
    except EdgeAgentError as error:
        raise reworded(error) from None


async def _collect(steps: NumberedSteps, answer: Answer) -> bytes:
    """Read the steps to the end, and return the whole answer as JSON."""
    num_logprobs = 0
    async with aclosing(steps):
        async for index, step in steps:
            answer.take(index, step)
            answer.delivered(step)
            num_logprobs += _num_logprobs(step)
    return await _made(num_logprobs, lambda: bytes(JSONResponse(answer.body()).body))


def _num_logprobs(step: Step) -> int:
    return sum(len(delta.logprobs) for delta in step.deltas if isinstance(delta, TextDelta | PromptText))


async def _made(num_logprobs: int, make: Callable[[], bytes]) -> bytes:
    """Return `make()`. If it writes many log probabilities, run it in a thread, so that other streams go on."""
    return make() if num_logprobs <= _MAX_INLINE_LOGPROBS else await asyncio.to_thread(make)


async def _events(
    steps: NumberedSteps, answer: Answer, chunks: Chunks, reworded: Callable[[EdgeAgentError], EdgeAgentError]
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream as bytes: the events of each step together, then the closing chunk or one error.

    A step without events yields nothing. The usage chunk, if the client asked for it, is yielded with the end mark.
    """
    try:
        async with aclosing(steps):
            async for index, step in steps:
                write = partial(_write, chunks, index, step)
                written = await _made(_num_logprobs(step), write)
                if written:
                    yield written
                answer.delivered(step)
        if closing := b"".join(map(event, chunks.closing())) + chunks.end_mark:
            yield closing
    except Exception as error:
        yield _error_event(reworded(to_client_error(answer.id, error)))


def _write(chunks: Chunks, index: int, step: Step) -> bytes:
    return b"".join(map(event, chunks.of(index, step)))


def _error_event(error: EdgeAgentError) -> bytes:
    detail = {"served_by": error.served_by, "num_delivered_tokens": error.num_delivered_tokens}
    return event({"error": error_body(error), "edgeagent": detail})
