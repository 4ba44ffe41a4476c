"""What is asked of a server and when its answer arrived; the same for every transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """What was said earlier in a conversation: `role` is system, user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt, and how long an answer is wanted. Greedy: what is measured must not depend on chance.

    `earlier` is what was said before. Unless it `is_stored`, the server is asked to keep nothing of it on disk.
    `draft_tokens` are drafted at each step, None: as the server chooses.
    """

    prompt: str
    max_tokens: int
    earlier: tuple[Turn, ...] = ()
    is_stored: bool = False
    draft_tokens: int | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The whole conversation, as both APIs take it."""
        return [{"role": turn.role, "content": turn.text} for turn in (*self.earlier, Turn("user", self.prompt))]


@dataclass(frozen=True, slots=True)
class Counts:
    """The server's own token counts; `num_cached` is 0 where it does not tell."""

    num_prompt: int
    num_cached: int
    num_output: int


@dataclass(slots=True)
class Trace:
    """When the events of one answer arrived, in seconds of the monotonic clock.

    `texts` are the arrivals of events with text (reasoning counts), and `num_chars` how much came with each: an event
    may carry several tokens, and only the characters tell which carried more. `counts` comes with the end, and with it
    what the server measured itself, if it tells. `on_text` is called at each arrival.
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
        """Start the clock."""
        self.sent_s = time.perf_counter()

    def event(self, arrived_s: float, num_chars: int) -> None:
        """Note an event and how much text it brought."""
        if self.first_event_s is None:
            self.first_event_s = arrived_s
        if num_chars:
            self.texts.append(arrived_s)
            self.num_chars.append(num_chars)
            if self.on_text is not None:
                self.on_text()

    @property
    def first_event_ms(self) -> list[float]:
        """The time to the first event, as a list of one, or of none."""
        return [] if self.first_event_s is None else [1000 * (self.first_event_s - self.sent_s)]

    @property
    def first_text_s(self) -> float | None:
        """When the first text arrived."""
        return self.texts[0] if self.texts else None

    @property
    def ttft_ms(self) -> list[float]:
        """The time to the first text, as a list of one, or of none where the answer has no text."""
        return [1000 * (self.texts[0] - self.sent_s)] if self.texts else []

    @property
    def beyond_prefill_ms(self) -> list[float]:
        """The time to the first text without that of the prompt, as a list of one, or of none."""
        return [ttft_ms - self.prefill_ms for ttft_ms in self.ttft_ms] if self.prefill_ms is not None else []

    def measured(self, event: Mapping[str, Any]) -> None:
        """Take what a server says of its own times: `timings` in llama-server's words, and edgeagent's stages."""
        timings, ours = event.get("timings"), event.get("edgeagent")
        if isinstance(timings, dict) and "prompt_ms" in timings:
            self.prefill_ms = float(timings["prompt_ms"])
        if isinstance(ours, dict) and "delivery" in (ours.get("stages_ms") or {}):
            self.delivery_ms = float(ours["stages_ms"]["delivery"])

    @property
    def gaps_ms(self) -> list[float]:
        """The times between consecutive texts."""
        return [1000 * (later - earlier) for earlier, later in pairwise(self.texts)]

    @property
    def tokens_per_event(self) -> float | None:
        """How many tokens came with each text, on average."""
        return self.counts.num_output / len(self.texts) if self.counts and self.texts else None

    @property
    def tokens_per_s(self) -> list[float]:
        """The rate from the first text to the last, as a list of one, or of none where there are not two.

        The tokens that came with the first text took no time after it, and so do not count.
        """
        if not self.texts or self.texts[-1] <= self.texts[0]:
            return []
        tokens = self.tokens_between(self.texts[0], self.texts[-1])
        return [tokens / (self.texts[-1] - self.texts[0])] if tokens else []

    def tokens_between(self, after_s: float, until_s: float) -> float:
        """Return how many tokens came after one moment and until another: the server's count, shared by characters."""
        if self.counts is None or not self.texts:
            return 0.0
        arrived = zip(self.texts, self.num_chars, strict=True)
        chars = sum(num_chars for at_s, num_chars in arrived if after_s < at_s <= until_s)
        return self.counts.num_output * chars / sum(self.num_chars)


class Connection(Protocol):
    """An open connection to a server; one answer runs on it at a time."""

    @property
    def opening_ms(self) -> float:
        """How long it took to open; 0 over HTTP, where the first request opens it."""
        ...

    async def open(self) -> None:
        """Open the connection now, so that the next answer's times do not include it."""
        ...

    async def ask(self, ask: Ask, trace: Trace) -> None:
        """Ask, and note into `trace` what arrives until the answer has ended.

        When this is cancelled the connection cannot be used any further. Raises EdgeAgentError for what the server
        refuses or fails with.
        """
        ...


def counts_of(usage: Mapping[str, Any] | None) -> Counts | None:
    """Return the counts of a usage object in the words of chat completions or of the Responses API."""
    if not usage:
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    output = usage.get("completion_tokens", usage.get("output_tokens"))
    if prompt is None or output is None:
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return Counts(int(prompt), int(details.get("cached_tokens") or 0), int(output))
