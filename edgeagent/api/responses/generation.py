"""How a turn is generated, over HTTP or WebSocket: a compaction if it is needed, then the steps of an engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from edgeagent.api.responses.events import Compacted, Compacting, CompactionStep, new_id
from edgeagent.api.responses.turn import Turn, unrun
from edgeagent.conversation.compaction import SummaryCancelled, compacted, num_input_tokens, num_to_summarize, summarize
from edgeagent.conversation.items import CompactionItem
from edgeagent.errors import InternalError
from edgeagent.service.service import Service
from edgeagent.types import FinishReason, Step

TurnSteps = AsyncGenerator[Step | CompactionStep, None]


async def steps_of(turn: Turn, service: Service) -> TurnSteps:
    """Yield a turn's steps. Either the last step ends the turn, or an EdgeAgentError is raised.

    The caller must give each step to `turn.events` before it takes the next step. InternalError is raised if
    `turn.events` is not over after the last step.
    """
    if turn.is_empty:
        yield Step((unrun(FinishReason.STOP, "empty prompt"),))
        return
    if await _is_too_long(turn, service):
        item_id = new_id("cmp")
        yield CompactionStep((Compacting(item_id),))
        try:
            item = await _compact(turn, service, item_id)
        except SummaryCancelled as cancelled:
            yield Step((cancelled.end,))
            return
        yield CompactionStep((Compacted(item),))
    async with aclosing(service.generate(turn.request)) as steps:
        async for step in steps:
            yield step
    if not turn.events.is_over:
        raise InternalError("the backend ended without finishing")


async def _is_too_long(turn: Turn, service: Service) -> bool:
    threshold = turn.create.compact_threshold
    if threshold is None or not num_to_summarize(turn.conversation.items):
        return False
    return await num_input_tokens(turn.request, service) > threshold


async def _compact(turn: Turn, service: Service, item_id: str) -> CompactionItem:
    items = turn.conversation.items
    num_old = num_to_summarize(items)
    summary, _ = await summarize(turn.request, turn.create.body.instructions, items[:num_old], service)
    item, *calls = compacted(items[:num_old], summary, item_id)
    turn.shorten((item, *calls, *items[num_old:]))
    return item
