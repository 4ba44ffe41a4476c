"""Shortens a conversation: counts its tokens, asks the model for a summary, and replaces older items by the summary.

One more message at the end of the conversation asks for the summary, so most of the prompt is already cached.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    CompactionItem,
    Item,
    MessageItem,
    compaction_item,
    to_messages,
)
from edgeagent.errors import ContextLengthExceeded, TokenBudgetExceeded
from edgeagent.service.client_sink import Ending
from edgeagent.service.service import Service
from edgeagent.types import (
    ChatPrompt,
    Finished,
    FinishReason,
    GenerateRequest,
    Message,
    RenderPrompt,
    RouteMode,
    SamplingParams,
    Step,
    TextDelta,
    Usage,
)

MAX_SUMMARY_TOKENS = 1024
INSTRUCTION = (
    "Summarize our conversation so far, so that it can go on from your summary alone: what I asked and want, what was "
    "found and decided, names, numbers and results of tools. Write the summary and nothing else."
)
INTRODUCTION = "What was said before, in short:"


class SummaryCancelled(Exception):
    """The request was cancelled while its summary was written; `end` is its terminal delta."""

    def __init__(self, end: Finished) -> None:
        super().__init__("cancelled")
        self.end = end


async def num_input_tokens(request: GenerateRequest, service: Service) -> int:
    """Return the number of tokens of a request's prompt, rendered by the model's template; raise errors of Models.ask.

    The prompt must be a ChatPrompt.
    """
    assert isinstance(request.prompt, ChatPrompt)
    answer = await service.models.ask(request.model, RenderPrompt(request.prompt))
    return len(answer.tokens)


def num_to_summarize(items: Sequence[Item]) -> int:
    """Return how many items, counted from the first, to summarize: all items before the user's last message.

    Return 0 if there are no such items, or if all of them are already summaries.
    """
    said = [index for index, item in enumerate(items) if isinstance(item, MessageItem) and item.role == "user"]
    num_old = said[-1] if said else 0
    return 0 if all(isinstance(item, CompactionItem) for item in items[:num_old]) else num_old


async def summarize(
    template: GenerateRequest, instructions: str | None, items: Sequence[Item], service: Service
) -> tuple[str, Usage]:
    """Return a model's summary of a conversation, and the token counts of the summary's generation.

    `template`: the request whose id, model, tier and cache policy are used. `instructions`: the system message, or
    None. As long as the conversation does not fit the context, or the budget of the tier, the older half of its
    messages is left out. Raise ContextLengthExceeded or TokenBudgetExceeded if fewer than four messages are left and do
    not fit, SummaryCancelled if the request was cancelled, or the service's errors.
    """
    messages = to_messages(instructions, items)
    while True:
        try:
            return await _summarize(template, messages, service)
        except (ContextLengthExceeded, TokenBudgetExceeded):
            if len(messages) < 4:
                raise
            messages = messages[len(messages) // 2 :]


async def _summarize(template: GenerateRequest, messages: Sequence[Message], service: Service) -> tuple[str, Usage]:
    request = GenerateRequest(
        id=template.id,
        model=template.model,
        prompt=ChatPrompt((*messages, Message("user", INSTRUCTION))),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=MAX_SUMMARY_TOKENS,
        tier=template.tier,
        cache=template.cache,
        # Only a local model knows the exact number of tokens, and so whether the conversation fits its context.
        route=RouteMode.LOCAL_ONLY,
        is_whole=True,
    )
    summary = _Summary()
    await service.generate(request, summary)
    end = summary.finished
    if end is not None and end.reason is FinishReason.CANCELLED:
        raise SummaryCancelled(end)
    return "".join(summary.parts).strip(), Usage() if end is None else end.usage


class _Summary(Ending):
    """The sink of a summary's text."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def put(self, step: Step) -> None:
        super().put(step)
        self.parts += (delta.text for delta in step.deltas if isinstance(delta, TextDelta))


def compacted(items: Sequence[Item], summary: str, item_id: str) -> tuple[CompactionItem, *tuple[Item, ...]]:
    """Return the items that replace a conversation.

    The first is a CompactionItem with the id `item_id`. It has the text of the system messages and the summary. The
    others are the calls that have no result yet.
    """
    system = [item.text for item in items if isinstance(item, MessageItem) and item.role == "system"]
    answered = {item.call_id for item in items if isinstance(item, CallOutputItem)}
    calls = (item for item in items if isinstance(item, CallItem) and item.call_id not in answered)
    return (compaction_item(item_id, "\n\n".join((*system, f"{INTRODUCTION}\n{summary}"))), *calls)
