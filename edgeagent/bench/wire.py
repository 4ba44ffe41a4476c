"""A request to a server and the arrival times of its answer, the same for every transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier message of a conversation. `role` is system, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A request: a prompt, and the maximum length of the answer. Sampling is greedy, so the answer is not random.

    `earlier` are the messages before the prompt. If `is_stored` is False, a request over the WebSocket asks the server
    to store nothing on disk. Over HTTP, `is_stored` has no effect. `draft_tokens` is the number of tokens to draft in
    each step; if None, the server chooses.
    """

    prompt: str
    max_tokens: int
    earlier: tuple[Turn, ...] = ()
    is_stored: bool = False
    draft_tokens: int | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole conversation, in a form that chat completions and the Responses API accept."""
        return [{"role": turn.role, "content": turn.text} for turn in (*self.earlier, Turn("user", self.prompt))]


@dataclass(frozen=True, slots=True)
class Counts:
    """The server's own token counts for one answer. `num_cached` is 0 if the server does not report it."""

    num_prompt: int
    num_cached: int
    num_output: int


@dataclass(slots=True)
class Trace:
    """The arrival times of one answer's events, in seconds of time.perf_counter.

    `texts` are the arrival times of events with text (reasoning included). `num_chars` has the number of characters in
    each of these events, since events can have different numbers of tokens. `counts`, `prefill_ms` and `delivery_ms`
    are what the server reports, or None. `on_text` is called for each event with text.
    """

    on_text: Callable[[], None] | None = None
    sent_s: float = 0.0
    first_event_s: float | None = None
    texts: list[float] = field(default_factory=list)
    num_chars: list[int] = field(default_factory=list)
    counts: Counts | None = None
    prefill_ms: float | None = None
    delivery_ms: float | None = None

    def send(self) -> None:
        """Record the time at which the request is sent."""
        self.sent_s = time.perf_counter()

    def event(self, arrived_s: float, num_chars: int) -> None:
        """Record an event: its arrival time, and the number of characters of its text (0 if it has none)."""
        if self.first_event_s is None:
            self.first_event_s = arrived_s
        if num_chars:
            self.texts.append(arrived_s)
            self.num_chars.append(num_chars)
            if self.on_text is not None:
                self.on_text()

    @property
    def first_event_ms(self) -> list[float]:
        """The time to the first event, as a list of one value, or empty if there was no event."""
        return [] if self.first_event_s is None else [1000 * (self.first_event_s - self.sent_s)]

    @property
    def first_text_s(self) -> float | None:
        """When the first text arrived; None if there is no text."""
        return self.texts[0] if self.texts else None

    @property
    def ttft_ms(self) -> list[float]:
        """The time to the first text, as a list of one value, or empty if the answer has no text."""
        return [1000 * (self.texts[0] - self.sent_s)] if self.texts else []

    @property
    def ttft_overhead_ms(self) -> list[float]:
        """The time to the first text minus the server's prefill time, as a list of one value, or empty if unknown."""
        return [ttft_ms - self.prefill_ms for ttft_ms in self.ttft_ms] if self.prefill_ms is not None else []

    def record_timings(self, event: Mapping[str, Any]) -> None:
        """Record the prefill time and the delivery time that the server measured.

        The prefill time comes from `timings` (llama-server's format), the delivery time from edgeagent's stages.
        """
        timings, ours = event.get("timings"), event.get("edgeagent")
        if isinstance(timings, dict) and "prompt_ms" in timings:
            self.prefill_ms = float(timings["prompt_ms"])
        if isinstance(ours, dict) and "delivery" in (ours.get("stages_ms") or {}):
            self.delivery_ms = float(ours["stages_ms"]["delivery"])

    @property
    def gaps_ms(self) -> list[float]:
        """The milliseconds between consecutive events with text."""
        return [1000 * (later - earlier) for earlier, later in pairwise(self.texts)]

    @property
    def tokens_per_event(self) -> float | None:
        """The average number of tokens in an event with text; None if unknown."""
        return self.counts.num_output / len(self.texts) if self.counts and self.texts else None

    @property
    def tokens_per_s(self) -> list[float]:
        """The rate from the first text to the last, as a list of one value, or empty if it is unknown.

        The tokens of the first text are not counted, since they were generated before that period.
        """
        if not self.texts or self.texts[-1] <= self.texts[0]:
            return []
        tokens = self.tokens_between(self.texts[0], self.texts[-1])
        return [tokens / (self.texts[-1] - self.texts[0])] if tokens else []

    def tokens_between(self, after_s: float, until_s: float) -> float:
        """Return the estimated number of tokens that arrived after `after_s`, up to and including `until_s`.

        The server's count of all tokens is divided among the events by their number of characters. Without a count,
        return 0.
        """
        if self.counts is None or not self.texts:
            return 0.0
        arrived = zip(self.texts, self.num_chars, strict=True)
        chars = sum(num_chars for at_s, num_chars in arrived if after_s < at_s <= until_s)
        return self.counts.num_output * chars / sum(self.num_chars)


class Connection(Protocol):
    """A connection to a server. It streams one answer at a time."""

    @property
    def opening_ms(self) -> float:
        """The milliseconds that opening the connection took; 0 over HTTP, where the first request opens it."""
        ...

    async def open(self) -> None:
        """Open the connection if it is not open, so that opening it is not part of the next answer's times."""
        ...

    async def ask(self, request: BenchRequest, trace: Trace) -> None:
        """Send a request, and record its events in `trace` until the answer has ended.

        If the call is cancelled, the connection cannot be used any more. Raise EdgeAgentError if the server refuses the
        request or fails.
        """
        ...


def counts_of(usage: Mapping[str, Any] | None) -> Counts | None:
    """Return the counts in a usage object of chat completions or the Responses API; None if they are missing."""
    if not usage:
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    output = usage.get("completion_tokens", usage.get("output_tokens"))
    if prompt is None or output is None:
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return Counts(int(prompt), int(details.get("cached_tokens") or 0), int(output))
