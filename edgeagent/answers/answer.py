"""A kept answer: the steps that its clients got, in few pieces, and how it is given again as if it came just now."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Iterator, Sequence

from msgspec import DecodeError, Struct, msgpack

from edgeagent.answers.key import Question
from edgeagent.service.client_sink import merge_steps
from edgeagent.types import (
    AnswerOrigin,
    ChatPrompt,
    Delta,
    Finished,
    Placement,
    PromptProgress,
    Queued,
    Started,
    Step,
    TextDelta,
    TextPrompt,
    Timings,
    ToolCallStarted,
    replace,
)

SERVED_BY = "answers"
"""Where an answer ran that was kept: `Placement.served_by`."""
MAX_ANSWER_BYTES = 1 << 20
"""The largest answer that is kept, before it is compressed."""
ID_CHARS = 16
_MAX_SHOWN_CHARS = 200
# Steps are joined until they have so many tokens, so an answer is a few frames, each far below the limits of clients.
_MAX_TOKENS = 64
_OF_ITS_START = (Started, Queued, PromptProgress)


class Answer(Struct, frozen=True):
    """A kept answer. `question`: the beginning of what was asked last, for the owner's list.

    `steps` are without the start and the end of the answer, which are `started` and `end`. `created_s` is a time of
    time.time().
    """

    question: str
    model: str
    partition: str
    created_s: float
    started: Started
    steps: tuple[Step, ...]
    end: Finished

    @property
    def text(self) -> str:
        """The text of the answer, without reasoning and calls."""
        deltas = (delta for step in self.steps for delta in step.deltas)
        return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))

    @property
    def has_calls(self) -> bool:
        """Whether it calls tools."""
        return any(isinstance(delta, ToolCallStarted) for step in self.steps for delta in step.deltas)

    def again(self, now_s: float, origin: AnswerOrigin) -> Iterator[Step]:
        """Yield the steps of this answer for another client. Calls get new ids. `now_s`: of time.monotonic()."""
        usage = replace(self.end.usage, num_cached_tokens=self.end.usage.num_prompt_tokens)
        placement = Placement(SERVED_BY, self.model, origin.kind)
        num_prompt_tokens = self.started.num_prompt_tokens
        started = replace(
            self.started, num_cached_tokens=num_prompt_tokens, num_dropped_items=0, placement=placement, tier=None
        )
        yield Step((started,), at_s=now_s)
        for step in self.steps:
            yield replace(step, deltas=tuple(map(_with_new_id, step.deltas)), at_s=now_s)
        timings = Timings(route=SERVED_BY, reason=origin.kind, placement=placement, origin=origin)
        yield Step((replace(self.end, usage=usage, timings=timings),), at_s=now_s)


def answer_of(question: Question, steps: Sequence[Step], now_s: float) -> Answer | None:
    """Return what is kept of an answer that has ended; None if it has no start or end. `now_s`: of time.time()."""
    deltas = [delta for step in steps for delta in step.deltas]
    started = next((delta for delta in deltas if isinstance(delta, Started)), None)
    if started is None or not isinstance(end := deltas[-1], Finished):
        return None
    kept = tuple(_joined([_content(step) for step in steps]))
    return Answer(
        question_text(question),
        question.model,
        question.partition,
        now_s,
        replace(started, placement=None, num_cached_tokens=0),
        kept,
        replace(end, timings=Timings(route=end.timings.route)),
    )


def question_text(question: Question) -> str:
    """Return the beginning of the last message of a question, or of its text; "" for token ids."""
    match question.request.prompt:
        case ChatPrompt(messages=messages):
            text = messages[-1].content if messages else ""
        case TextPrompt(text=text):
            pass
        case _:
            text = ""
    return " ".join(text[: 4 * _MAX_SHOWN_CHARS].split())[:_MAX_SHOWN_CHARS]


def encode(answer: Answer) -> bytes | None:
    """Return an answer as bytes; None if it is too large to be kept."""
    content = msgpack.encode(answer)
    return zlib.compress(content, 1) if len(content) <= MAX_ANSWER_BYTES else None


def decode(content: bytes) -> Answer | None:
    """Return the answer that `encode` wrote; None for anything else, such as that of another version."""
    try:
        inflater = zlib.decompressobj()
        return msgpack.decode(inflater.decompress(content, 2 * MAX_ANSWER_BYTES), type=Answer)
    except (zlib.error, DecodeError):
        return None


def _content(step: Step) -> Step:
    """Return a step without the start and the end of the answer. `step` itself if it has neither."""
    kept = tuple(delta for delta in step.deltas if not isinstance(delta, (*_OF_ITS_START, Finished)))
    return replace(step, deltas=kept, at_s=0.0)


def _joined(steps: Sequence[Step]) -> Iterator[Step]:
    held: list[Step] = []
    for step in steps:
        if not (step.deltas or step.tokens):
            continue
        held.append(step)
        if sum(len(each.tokens) for each in held) >= _MAX_TOKENS or len(held) >= _MAX_TOKENS:
            yield merge_steps(held)
            held = []
    if held:
        yield merge_steps(held)


def _with_new_id(delta: Delta) -> Delta:
    return replace(delta, id=f"call_{secrets.token_hex(12)}") if isinstance(delta, ToolCallStarted) else delta
