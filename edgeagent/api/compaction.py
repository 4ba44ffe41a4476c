"""POST /v1/responses/compact and /v1/responses/input_tokens: a conversation made shorter, and how long it is.

The model itself writes the summary, after the conversation as it stands, whose prompt is cached more often than not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from edgeagent.api import sse
from edgeagent.api.access import client_of
from edgeagent.api.context import context_of
from edgeagent.api.events import new_id
from edgeagent.api.item_bodies import item_body
from edgeagent.api.items import CallItem, CallOutputItem, Item, MessageItem, compaction_item, to_messages
from edgeagent.api.limits import read_json_object
from edgeagent.api.responses import open_turn
from edgeagent.api.schemas_responses import read_create
from edgeagent.api.service import Service
from edgeagent.api.turn import Turn
from edgeagent.api.usage import responses_usage
from edgeagent.errors import ContextLengthExceeded, InvalidRequest
from edgeagent.types import (
    ChatPrompt,
    Finished,
    GenerateRequest,
    Message,
    RenderPrompt,
    SamplingParams,
    TextDelta,
    Usage,
)

MAX_SUMMARY_TOKENS = 1024
INSTRUCTION = (
    "Summarize our conversation so far, so that it can go on from your summary alone: what I asked and want, what was "
    "found and decided, names, numbers and results of tools. Write the summary and nothing else."
)
INTRODUCTION = "What was said before, in short:"

router = APIRouter()


@router.post("/v1/responses/compact")
async def compact(request: Request) -> Response:
    """Return items that stand for a conversation, as the input of a new one."""
    fields = await read_json_object(request)
    if not isinstance(fields.get("model"), str):
        raise InvalidRequest("model is missing: name the model that is to write the summary", param="model")
    context = context_of(request)
    turn = await open_turn(read_create(fields), context, client_of(request))
    summary, usage = await sse.unless_disconnected(request.receive, summarize(turn, context.service))
    items = compacted(turn.conversation.items, summary)
    return JSONResponse(
        {
            "id": turn.request.id,
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [item_body(item) for item in items],
            "usage": responses_usage(usage),
        }
    )


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(request: Request) -> Response:
    """Return how many tokens a create's prompt has, with its tools and all that it continues."""
    fields = await read_json_object(request)
    context = context_of(request)
    turn = await open_turn(read_create(fields), context, client_of(request))
    num_tokens = 0 if turn.is_empty else await num_input_tokens(turn.request, context.service)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": num_tokens})


async def num_input_tokens(request: GenerateRequest, service: Service) -> int:
    """Return how many tokens the model's template makes of a conversation."""
    assert isinstance(request.prompt, ChatPrompt)
    answer = await service.ask(request.model, RenderPrompt(request.prompt))
    return len(answer.tokens)


async def summarize(turn: Turn, service: Service) -> tuple[str, Usage]:
    """Return a summary of what a turn was to answer, written by its model, and what that took.

    Of a conversation that leaves no room for it, the later half has to do, and the later half of that.
    """
    messages = to_messages(turn.create.body.instructions, turn.conversation.items)
    while True:
        try:
            return await _summarize(turn.request, messages, service)
        except ContextLengthExceeded:
            if len(messages) < 4:
                raise
            messages = messages[len(messages) // 2 :]


async def _summarize(template: GenerateRequest, messages: Sequence[Message], service: Service) -> tuple[str, Usage]:
    request = GenerateRequest(
        id=new_id("resp"),
        model=template.model,
        prompt=ChatPrompt((*messages, Message("user", INSTRUCTION))),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=MAX_SUMMARY_TOKENS,
        tier=template.tier,
        cache=template.cache,
    )
    parts: list[str] = []
    usage = Usage()
    async with aclosing(service.generate(request)) as steps:
        async for step in steps:
            parts += [delta.text for delta in step.deltas if isinstance(delta, TextDelta)]
            if step.deltas and isinstance(last := step.deltas[-1], Finished):
                usage = last.usage
    return "".join(parts).strip(), usage


def compacted(items: Sequence[Item], summary: str) -> tuple[Item, ...]:
    """Return what stands for a conversation: its system messages' words and the summary, and the calls left open."""
    system = [item.text for item in items if isinstance(item, MessageItem) and item.role == "system"]
    answered = {item.call_id for item in items if isinstance(item, CallOutputItem)}
    calls = (item for item in items if isinstance(item, CallItem) and item.call_id not in answered)
    return (compaction_item(new_id("cmp"), "\n\n".join((*system, f"{INTRODUCTION}\n{summary}"))), *calls)
