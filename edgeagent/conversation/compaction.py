"""Shortens a conversation: counts its tokens, asks the model for a summary, and replaces older items by the summary.

One more message at the end of the conversation asks for the summary, so most of the prompt is already cached. A
conversation that will soon be too long is summarized before that, in idle time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from edgeagent.backends.media import new_kinds, readable
from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    CompactionItem,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
    compaction_item,
    media_of,
    to_messages,
)
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, ModelNotFound, NotSupported, TokenBudgetExceeded
from edgeagent.service.client_sink import Ending
from edgeagent.service.service import Service
from edgeagent.types import (
    ChatPrompt,
    Finished,
    FinishReason,
    GenerateRequest,
    Media,
    Message,
    Need,
    RenderPrompt,
    RouteMode,
    SamplingParams,
    Step,
    TextDelta,
    Tier,
    Usage,
    WorkerState,
    replace,
)

INSTRUCTION = (
    "Summarize our conversation so far, so that it can go on from your summary alone: what I asked and want, what was "
    "found and decided, names, numbers and results of tools. Write the summary and nothing else."
)
INTRODUCTION = "What was said before, in short:"
EARLY_SHARE = 0.75
"""A conversation that has this share of the tokens from which on it is summarized is summarized in idle time."""
_MAX_EARLY = 64


class SummaryCancelled(Exception):
    """The request was cancelled while its summary was written; `end` is its terminal delta."""

    def __init__(self, end: Finished) -> None:
        super().__init__("cancelled")
        self.end = end


async def num_input_tokens(request: GenerateRequest, service: Service) -> int:
    """Return the number of tokens of a request's prompt, rendered by the model's template; raise errors of Models.ask.

    One is ContextLengthExceeded, if the prompt is too long to be counted and does not fit into the context. The prompt
    must be a ChatPrompt. Notes stand for earlier images and sounds if the model reads only text, as in a
    generation.
    """
    assert isinstance(request.prompt, ChatPrompt)
    try:
        answer = await service.models.ask(request.model, RenderPrompt(request.prompt))
    except NotSupported:
        shown, _ = readable(request, ())
        if shown is request or new_kinds(request):
            raise
        assert isinstance(shown.prompt, ChatPrompt)
        answer = await service.models.ask(request.model, RenderPrompt(shown.prompt))
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

    `template`: the request whose id, model, tier, limits of time, cache policy and `is_part` are used. `instructions`:
    the system message, or None. As long as the conversation does not fit the context, or the budget of the tier, the
    older half of its messages is left out. Raise ContextLengthExceeded or TokenBudgetExceeded if fewer than four
    messages are left and do not fit, SummaryCancelled if the request was cancelled, or the service's errors.
    """
    messages, media = to_messages(instructions, items), media_of(items)
    while True:
        try:
            return await _summarize(template, messages, media, service)
        except (ContextLengthExceeded, TokenBudgetExceeded):
            if len(messages) < 4:
                raise
            messages = messages[len(messages) // 2 :]


async def _summarize(
    template: GenerateRequest, messages: Sequence[Message], media: tuple[Media, ...], service: Service
) -> tuple[str, Usage]:
    request = GenerateRequest(
        id=template.id,
        model=template.model,
        prompt=ChatPrompt((*messages, Message("user", INSTRUCTION)), media=media),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=1024,
        tier=template.tier,
        # It is a part of the request that it is for, and must itself come in time.
        is_part=template.is_part,
        timeout_s=template.timeout_s,
        waited_s=template.waited_s,
        need=Need(first_token_s=template.need.first_token_s),
        cache=template.cache,
        is_ahead=template.is_ahead,
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


@dataclass(slots=True, eq=False)
class _Early:
    """The summary of a conversation's first `num_items` items. It is empty while `task` writes it.

    `owner`: see `EarlySummaries.write`.
    """

    partition: str
    num_items: int
    beginning: int  # see `_beginnings`
    task: asyncio.Task[object] | None
    owner: object | None
    text: str = ""


class EarlySummaries:
    """Summaries that are written before they are needed. They stay in this process, and only the latest are kept.

    One of a conversation with `store: false` over HTTP stays too, as the cached prefix of its prompt does: the client
    sends the conversation again, and nothing tells that it will not.
    """

    def __init__(self) -> None:
        self._made: list[_Early] = []  # the latest one comes last

    async def write(
        self,
        template: GenerateRequest,
        instructions: str | None,
        items: Sequence[Item],
        service: Service,
        new_id: str,
        owner: object | None = None,
    ) -> None:
        """Summarize a conversation in idle time on this machine, unless its beginning is summarized already.

        `template` is the conversation's latest request, and `new_id` the id of the summary's. Do nothing if the model
        is not loaded. A failure leaves no summary. `owner`: the connection with which the conversation ends, if it is
        stored nowhere else; see `disconnected`.
        """
        try:
            model = service.models.find(template.model)
        except ModelNotFound:  # it was removed meanwhile
            return
        is_loaded = any(each.name == model and each.state is WorkerState.READY for each in service.models.statuses())
        if not is_loaded:
            return
        beginnings = _beginnings(template, instructions, items)
        if self._find(beginnings) is not None:
            return
        early = _Early(template.cache.partition, len(items), beginnings[-1], asyncio.current_task(), owner)
        self._made = [*self._made[1 - _MAX_EARLY :], early]
        cache = replace(template.cache, lane="")  # the lane's prefix is that of its next turn
        unlimited = replace(template, timeout_s=None, waited_s=0.0, need=Need())
        quiet = replace(unlimited, id=new_id, tier=Tier.BATCH, is_ahead=True, cache=cache)
        try:
            early.text, _ = await summarize(quiet, instructions, items, service)
        except (EdgeAgentError, SummaryCancelled):
            pass
        finally:
            early.task = None
            if not early.text and early in self._made:
                self._made.remove(early)

    def take(
        self, template: GenerateRequest, instructions: str | None, items: Sequence[Item]
    ) -> tuple[str, int] | None:
        """Return the summary of a conversation's beginning, and how many items that has; None if there is none.

        The summary is not kept: the conversation continues without these items. One that is being written is dropped.
        """
        early = self._find(_beginnings(template, instructions, items))
        if early is None:
            return None
        self._made.remove(early)
        if early.task is not None:
            early.task.cancel()
        return (early.text, early.num_items) if early.text else None

    def forget(self, partition: str | None) -> None:
        """Drop the summaries of a client; those of all clients if `partition` is None."""
        self._drop([each for each in self._made if partition in (None, each.partition)])

    def disconnected(self, owner: object) -> None:
        """Drop the summaries of conversations that have ended with their connection."""
        self._drop([each for each in self._made if each.owner is owner])

    def _drop(self, gone: Sequence[_Early]) -> None:
        self._made = [each for each in self._made if each not in gone]
        for early in gone:
            if early.task is not None:
                early.task.cancel()

    def _find(self, beginnings: Sequence[int]) -> _Early | None:
        kept = (each for each in reversed(self._made) if each.num_items < len(beginnings))
        return next((each for each in kept if each.beginning == beginnings[each.num_items]), None)


def _beginnings(template: GenerateRequest, instructions: str | None, items: Sequence[Item]) -> list[int]:
    """Return a hash of each beginning of a client's conversation with a model: of no item, of one, and so on."""
    start = hash((template.cache.partition, template.model, instructions or ""))
    return [*accumulate(items, lambda before, item: hash((before, _said(item))), initial=start)]


def _said(item: Item) -> tuple[object, ...]:
    """Return what the model sees of an item, which may have another id if the client sends it again."""
    match item:
        case MessageItem():
            return item.role, item.text, *_places(item)
        case ReasoningItem():
            return "reasoning", item.text
        case CallItem():
            return "call", item.call_id, item.full_name, item.arguments
        case CallOutputItem():
            return "tool", item.call_id, item.output, *_places(item)
        case CompactionItem():
            return "system", item.summary
        case ReferenceItem():
            raise AssertionError(f"unresolved reference {item.id}")


def _places(item: MessageItem | CallOutputItem) -> list[tuple[int, bytes]]:
    return [(offset, medium.digest) for offset, medium in item.media]


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
