"""POST /v1/chat/completions and /v1/completions: one or more generations as chunks of a stream, or as one body."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.openai.answer import Answer, ChoiceSoFar, reworded
from edgeagent.api.openai.chat_answer import ChatAnswer, ChatChunks, ChatCompletion
from edgeagent.api.openai.chat_body import ChatBody, read_chat
from edgeagent.api.openai.text_answer import TextAnswer, TextChunks, TextCompletion
from edgeagent.api.openai.text_body import CompletionBody, read_completion
from edgeagent.api.wire.answer_stream import MAX_INLINE_LOGPROBS, AnswerWriter, Generate, num_logprobs, start_stream
from edgeagent.api.wire.body import Body, read_body
from edgeagent.api.wire.generation import put_headers
from edgeagent.api.wire.llama_fields import ReadCompletion
from edgeagent.api.wire.route import SSE, Routes
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.credentials.keys import Scope
from edgeagent.errors import EdgeAgentError
from edgeagent.types import Finished, GenerateRequest, Sink, Step, replace


async def respond(
    request: Request,
    requests: Sequence[GenerateRequest],
    answer: Answer,
    chunks: AnswerWriter | None,
    params: Mapping[str, str],
) -> Response:
    """Run the requests, and answer with a stream of `chunks`. If `chunks` is None, answer with `answer` as one body.

    If the client disconnects, the requests are cancelled. For `params`, see AnswerWriter.
    """
    requests = [replace(each, is_whole=chunks is None) for each in requests]
    run = partial(context_of(request).service.generate_all, requests)
    try:
        if chunks is None:
            body = await unless_disconnected(request.receive, _collect(run, answer))
            response = Response(body, media_type="application/json")
            put_headers(response, answer.choices[0].started)
            return response
        chunks.params, chunks.has_logprobs = params, any(each.logprobs is not None for each in requests)
        return await start_stream(request.receive, chunks, run, len(requests))
    except EdgeAgentError as error:
        raise reworded(error, params) from None


class _Choice(Sink):
    """The sink of a choice of an answer that is sent as one body."""

    def __init__(self, answer: Answer, choice: ChoiceSoFar) -> None:
        self._answer = answer
        self._choice = choice
        self.num_logprobs = 0

    def put(self, step: Step) -> None:
        self._choice.take(step)
        if step.deltas and isinstance(step.deltas[-1], Finished):  # earlier steps may wait in the worker
            self._answer.delivery_time.add(step.at_s)
        self.num_logprobs += num_logprobs(step)


async def _collect(run: Generate, answer: Answer) -> bytes:
    """Run the requests to their ends, and return the whole answer as JSON."""
    choices = [_Choice(answer, choice) for choice in answer.choices]
    await run(choices)
    make: Callable[[], bytes] = lambda: bytes(JSONResponse(answer.body()).body)  # noqa: E731
    # So that other streams go on.
    is_long = sum(choice.num_logprobs for choice in choices) > MAX_INLINE_LOGPROBS
    return await asyncio.to_thread(make) if is_long else make()


CHAT_PARAMS = {"input": "messages", "text.format": "response_format"}
TEXT_PARAMS = {"input": "prompt", "text.format": "json_schema"}

routes = Routes()

T = TypeVar("T")


@routes.add("POST /v1/chat/completions", Scope.INFER, "openai", body=ChatBody, answer=ChatCompletion, streams=SSE)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation, as a stream or as one body. A client that disconnects cancels the request."""
    completion_id = f"chatcmpl-{secrets.token_hex(12)}"
    create = await read_create(request, completion_id, read_chat, ChatBody)
    model, num_choices, delivery = create.requests[0].model, len(create.requests), create.delivery
    answer = ChatAnswer(completion_id, model, num_choices, has_functions=create.has_functions)
    chunks = ChatChunks(answer, delivery) if delivery.is_streamed else None
    return await respond(request, create.requests, answer, chunks, CHAT_PARAMS)


@routes.add("POST /v1/completions", Scope.INFER, "openai", body=CompletionBody, answer=TextCompletion, streams=SSE)
async def create_completion(request: Request) -> Response:
    """Complete one or more texts, as a stream or as one body. A client that disconnects cancels the request."""
    completion_id = f"cmpl-{secrets.token_hex(12)}"
    create = await read_create(request, completion_id, read_completion, CompletionBody)
    answer = TextAnswer(completion_id, create)
    chunks = TextChunks(answer) if create.delivery.is_streamed else None
    return await respond(request, create.requests, answer, chunks, TEXT_PARAMS)


async def read_create(request: Request, completion_id: str, read: ReadCompletion[T], warns_as: type[Body]) -> T:
    """Return a request's body, read by `read`. `warns_as`: the class of the body."""
    default_model = context_of(request).service.models.default()
    reading = partial(read, completion_id=completion_id, default_model=default_model, partition=client_of(request))
    return await read_body(request, reading, warns_as)
