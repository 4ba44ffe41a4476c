"""The base classes of chat and text completions: the answer while it is generated, and the chunks of its stream.

The module does not use sockets, and does not depend on where the deltas come from.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edgeagent.api.wire.answer_stream import AnswerWriter
from edgeagent.api.wire.errors import error_body
from edgeagent.api.wire.generation import (
    ChatUsage,
    DeliveryTime,
    LlamaTimings,
    Run,
    chat_usage,
    edgeagent_body,
    started_body,
    timings_body,
)
from edgeagent.api.wire.llama_fields import AnswerForm
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import DONE, event
from edgeagent.errors import BackendUnavailable, EdgeAgentError
from edgeagent.types import (
    Finished,
    FinishReason,
    PromptProgress,
    Started,
    Step,
    Timings,
    Usage,
)


class GenerationProgress:
    """The progress of one generation, measured from its steps. The exact numbers come with the last step."""

    def __init__(self) -> None:
        self.started = Started(0, 0)
        """The start of the generation: where it runs, and its warnings. Empty if no step has said it yet."""
        self._began_s = time.monotonic()
        self._first_s: float | None = None
        self._last_s = 0.0
        self.num_tokens = 0
        """How many tokens have their text in the steps so far."""
        self.num_before = 0
        """The same without the last step."""

    def add_step(self, step: Step) -> None:
        """Count the tokens of a step, and note where the generation runs."""
        at_s = step.at_s or time.monotonic()
        for delta in step.deltas:
            if isinstance(delta, Started):
                self.started, self._began_s = delta, at_s
        if step.tokens:
            self._first_s = self._first_s or at_s
            self._last_s = at_s
        self.num_before = self.num_tokens
        self.num_tokens += step.num_delivered

    def timings(self) -> LlamaTimings:
        """Return llama-server's `timings`, measured up to the last added step."""
        prompt_s, first_s = self._began_s, self._first_s
        return timings_body(
            Usage(self.started.num_prompt_tokens, self.started.num_cached_tokens, self.num_tokens),
            Timings(
                prefill_ms=0.0 if first_s is None else (first_s - prompt_s) * 1000,
                decode_ms=0.0 if first_s is None else (self._last_s - first_s) * 1000,
            ),
        )

    def prompt_progress(self, delta: PromptProgress) -> Json:
        """Return llama-server's `prompt_progress` for a delta that reports how much of the prompt is computed."""
        return {
            "total": self.started.num_prompt_tokens,
            "cache": self.started.num_cached_tokens,
            "processed": delta.num_tokens,
            "time_ms": round((time.monotonic() - self._began_s) * 1000),
        }


Ending = Literal["stop", "length", "tool_calls"]
"""The finish reasons of OpenAI that edgeagent sends, except `function_call`, which the older form of calls has."""
_ENDINGS: dict[FinishReason, Ending] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


class GenerationMetrics(Shape):
    """The measurements of a generation: llama-server's `timings`, and edgeagent's own object."""

    timings: LlamaTimings
    edgeagent: Run


@dataclass(slots=True)
class ChoiceSoFar(ABC):
    """One choice while it is generated. A subclass adds text and calls. `finished` is None until the choice ends."""

    started: Started | None = None
    finished: Finished | None = None

    @abstractmethod
    def take(self, step: Step) -> object:
        """Add a step to the choice."""

    def end(self) -> Finished:
        """Return the terminal delta. The choice must have ended."""
        assert self.finished is not None, "a backend's steps end with Finished"
        return self.finished


class Answer(ABC):
    """An answer while it is generated: its choices, and the mean time of a step from the engine to the client.

    `choices` has `num_of_a_prompt` choices for the first prompt, then as many for the next prompt, and so on.
    `has_reasoning`: the answer sends reasoning separately from the text, and its usage counts the reasoning tokens.
    """

    has_reasoning = True

    def __init__(self, answer_id: str, model: str, choices: Sequence[ChoiceSoFar], num_of_a_prompt: int) -> None:
        self.id = answer_id
        self.model = model
        self.created = int(time.time())
        self.choices = choices
        self._num_of_a_prompt = num_of_a_prompt
        self.delivery_time = DeliveryTime()

    @abstractmethod
    def body(self) -> object:
        """Return the whole answer; raise BackendUnavailable if it was cancelled."""

    def usage(self) -> ChatUsage:
        """Return the token counts of all choices together, which must have ended. Each prompt is counted once."""
        usages = [choice.end().usage for choice in self.choices]
        firsts = usages[:: self._num_of_a_prompt]
        return chat_usage(
            Usage(
                num_prompt_tokens=sum(usage.num_prompt_tokens for usage in firsts),
                num_cached_tokens=sum(usage.num_cached_tokens for usage in firsts),
                num_output_tokens=sum(usage.num_output_tokens for usage in usages),
                num_reasoning_tokens=sum(usage.num_reasoning_tokens for usage in usages) if self.has_reasoning else 0,
            )
        )

    def generation_metrics(self, choice: ChoiceSoFar) -> GenerationMetrics:
        """Return the fields `timings` and `edgeagent` for a choice, which must have ended."""
        usage, timings = choice.end().usage, choice.end().timings
        return {
            "timings": timings_body(usage, timings),
            "edgeagent": edgeagent_body(timings, self.delivery_time.mean_ms),
        }


class Chunks(AnswerWriter):
    """Converts the steps of an answer into the chunks of a stream. `kind` is the value of each chunk's `object`.

    `end_mark` is written behind the last chunk.
    """

    end_mark = DONE

    def __init__(self, answer: Answer, delivery: AnswerForm, kind: str) -> None:
        self.id = answer.id
        if delivery.ping_interval_s is not None:
            self.ping_interval_s = delivery.ping_interval_s
        self._answer = answer
        self._delivery = delivery
        self._progress = [GenerationProgress() for _ in answer.choices]
        self._opened: set[int] = set()  # choices whose first chunk was sent
        self._head: Json = {"id": answer.id, "object": kind, "created": answer.created, "model": answer.model}
        self._tail: Json = {"usage": None} if delivery.is_usage_streamed else {}

    def timed(self, index: int, chunks: list[Json]) -> list[Json]:
        """Return the chunks of the last step of the choice `index`, with the timings so far if the client wants them.

        Another edgeagent gets the number of tokens so far instead. It stands in the last chunk of the step. The chunks
        before that have the number before the step, since the tokens of a part of a step are not counted.
        """
        progress = self._progress[index]
        if self._delivery.has_timings:
            timings = progress.timings()
            return [{"timings": timings, **chunk} for chunk in chunks]
        if not (self._delivery.counts_tokens and chunks):
            return chunks
        counts = [progress.num_before] * (len(chunks) - 1) + [progress.num_tokens]
        return [{"timings": {"predicted_n": num}, **chunk} for num, chunk in zip(counts, chunks, strict=True)]

    def write(self, index: int, step: Step) -> bytes:
        self._answer.delivery_time.add(step.at_s)
        return b"".join(map(event, self.of(index, step)))

    async def end(self) -> bytes:
        return b"".join(map(event, self.closing())) + self.end_mark

    async def fail(self, error: EdgeAgentError) -> bytes:
        detail = {"served_by": error.served_by, "num_delivered_tokens": error.num_delivered_tokens}
        return event({"error": error_body(reworded(error, self.params)), "edgeagent": detail})

    @abstractmethod
    def of(self, index: int, step: Step) -> list[Json]:
        """Convert a step of the choice `index` into chunks; raise BackendUnavailable if the choice was cancelled."""

    def closing(self) -> list[Json]:
        """Return one last chunk, with the usage, if the client asked for it; otherwise an empty list.

        The chunk has no choices. So a client that always reads choices[0] would fail if the chunk came unasked.
        """
        if not self._delivery.is_usage_streamed:
            return []
        metrics = self._answer.generation_metrics(self._answer.choices[0])
        return [{**self._head, "choices": [], "usage": self._answer.usage(), **metrics}]

    def _with_start(self, index: int, chunks: list[Json]) -> list[Json]:
        """Return `chunks`; the first of a choice says where the choice runs, and which warnings there are."""
        if not chunks or index in self._opened:
            return chunks
        self._opened.add(index)
        first, *rest = chunks
        started = started_body(self._progress[index].started)
        return [{**first, "edgeagent": {**started, **first.get("edgeagent", {})}}, *rest] if started else chunks

    def _ended(self, chunk: Json, choice: ChoiceSoFar) -> Json:
        """Return `chunk`, the last one of a choice, with the choice's measurements.

        If a usage chunk follows, return `chunk` unchanged: the usage chunk has the measurements of the first choice.
        """
        return chunk if self._delivery.is_usage_streamed else {**chunk, **self._answer.generation_metrics(choice)}


def reworded(error: EdgeAgentError, params: Mapping[str, str]) -> EdgeAgentError:
    """Return an error that names the field of a route instead of the field of the Responses API; see AnswerWriter."""
    error.param = params.get(error.param or "", error.param)
    return error


def finish_reason(finished: Finished) -> Ending:
    """Return OpenAI's finish_reason; raise BackendUnavailable for a cancelled answer, which has none."""
    if finished.reason is FinishReason.CANCELLED:
        raise BackendUnavailable(
            "the answer was cut short: the daemon is stopping, or the request was cancelled",
            num_delivered_tokens=finished.usage.num_output_tokens,
        )
    return _ENDINGS[finished.reason]
