"""Predicts when a local model's requests get their first token, from the worker's speed and earlier requests.

It stores no content: prompt prefixes are remembered by their hashes, to predict prefix cache hits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from edgeagent.backends.prompt_size import message_bytes, prompt_bytes, tools_bytes
from edgeagent.types import ChatPrompt, GenerateRequest, Started, Tier

_FIRST_BYTES_PER_TOKEN = 4.0
_SMOOTHING = 0.1
_MAX_BEGINNINGS = 8192
_RANK = {tier: rank for rank, tier in enumerate(Tier)}
# Rendering, tokenizing and the transfer through pipes.
_OVERHEAD_S = 0.005
# An idle worker measures nothing. Its assumed speed doubles every _DOUBT_S seconds of idling, at most _MOST_DOUBLINGS
# times.
_DOUBT_S = 30.0
_MOST_DOUBLINGS = 5.0


@dataclass(frozen=True, slots=True)
class Rates:
    """A worker's measured speeds: prompt tokens per second, and seconds per token of one stream. 0 if unknown."""

    prefill_tokens_per_s: float
    token_s: float

    def better(self, other: Rates) -> Rates:
        """Return the faster of the two values for each rate. A value of 0 is unknown and does not count."""
        times = [time_s for time_s in (self.token_s, other.token_s) if time_s > 0]
        return Rates(max(self.prefill_tokens_per_s, other.prefill_tokens_per_s), min(times, default=0.0))


@dataclass(slots=True)
class _Pending:
    """A live request before its first token. `num_tokens`: its uncached prompt tokens, at first estimated."""

    tier: Tier
    num_tokens: float


class Forecast:
    """Predicts how long a request waits for its first token.

    It knows the requests that wait for theirs, the worker's best rates, the average number of bytes per prompt token,
    and which prefixes are probably cached.
    """

    def __init__(self) -> None:
        self._bytes_per_token, self._num_seen = _FIRST_BYTES_PER_TOKEN, 0
        self._pending: dict[str, _Pending] = {}
        self._best = Rates(0.0, 0.0)
        self._beginnings: OrderedDict[int, None] = OrderedDict()

    def num_tokens(self, request: GenerateRequest) -> float:
        """Return the estimated number of tokens in a request's prompt."""
        return prompt_bytes(request) / self._bytes_per_token

    def accept(self, request: GenerateRequest) -> None:
        """Note that a request was submitted to the worker."""
        self._pending[request.id] = _Pending(request.tier, self._num_uncached(request))

    def start(self, request: GenerateRequest, started: Started) -> None:
        """Note a started request's numbers of prompt tokens and cached tokens.

        If the request may write to the cache, remember its prefixes as cached.
        """
        if request.id in self._pending:
            self._pending[request.id].num_tokens = started.num_prompt_tokens - started.num_cached_tokens
        num_bytes = prompt_bytes(request)
        if started.num_prompt_tokens >= 32 and not started.num_dropped_items:
            seen = num_bytes / started.num_prompt_tokens
            self._num_seen += 1
            weight = max(_SMOOTHING, 1 / self._num_seen)
            self._bytes_per_token += weight * (max(0.5, min(16.0, seen)) - self._bytes_per_token)
        if request.cache.write:
            for beginning, _ in _beginnings(request):
                self._beginnings[beginning] = None
                self._beginnings.move_to_end(beginning)
            while len(self._beginnings) > _MAX_BEGINNINGS:
                self._beginnings.popitem(last=False)

    def end(self, request_id: str) -> None:
        """Note that a request has its first token, or has ended."""
        self._pending.pop(request_id, None)

    def known(self, rates: Rates, *, is_proven: bool, is_busy: bool, idle_s: float) -> Rates:
        """Return the rates for a prediction: a busy worker's current rates, or else the best rates measured so far.

        `rates` are the worker's last measurements. They are used only after a request has run (`is_proven`). Before
        that they come from the trial run at loading, which other programs may have slowed down. An idle worker measures
        nothing, so the best rates are assumed to improve further, the longer it has been idle (`idle_s`).
        """
        if is_proven and rates.prefill_tokens_per_s > 0:
            self._best = self._best.better(rates)
            if is_busy:
                return rates
        hope = 2.0 ** min(idle_s / _DOUBT_S, _MOST_DOUBLINGS)
        return Rates(self._best.prefill_tokens_per_s * hope, self._best.token_s / hope)

    def first_token_s(self, request: GenerateRequest, rates: Rates) -> float | None:
        """Return the predicted seconds to the first token if the worker gets a request now; None if unknown.

        They include the prefill of waiting requests of the same or a higher tier.
        """
        if rates.prefill_tokens_per_s <= 0:
            return None
        rank = _RANK[request.tier]
        ahead = sum(pending.num_tokens for pending in self._pending.values() if _RANK[pending.tier] <= rank)
        prefill_s = (ahead + self._num_uncached(request)) / rates.prefill_tokens_per_s
        return _OVERHEAD_S + prefill_s + rates.token_s

    def _num_uncached(self, request: GenerateRequest) -> float:
        num_known = 0
        if request.cache.read:
            for beginning, num_bytes in _beginnings(request):
                if beginning not in self._beginnings:
                    break
                num_known = num_bytes
        return max(1.0, (prompt_bytes(request) - num_known) / self._bytes_per_token)


def _beginnings(request: GenerateRequest) -> Iterator[tuple[int, int]]:
    """Yield the hash and the length in bytes of each prefix of a conversation, the shortest first.

    If the prompt is no conversation, yield only those of the whole prompt.
    """
    prompt = request.prompt
    if not isinstance(prompt, ChatPrompt):
        yield hash((request.cache.partition, prompt)), prompt_bytes(request)
        return
    key: object = (request.cache.partition, prompt.tools)
    num_bytes = tools_bytes(prompt)
    for message in prompt.messages:
        key = hash((key, message.role, message.content, message.reasoning))
        num_bytes += message_bytes(message)
        yield hash(key), num_bytes
