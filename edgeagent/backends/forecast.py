"""Predicts when a request on this machine gets its first token: a model of the engine's queue, with measured rates.

The engine computes one prompt after another, in the order of tiers, turns of the clients and due times, and beside
them the streams, each of which holds a slot. So the prediction plays this queue forward until the request has its first
token. Sizes and rates are corrected by what earlier requests of about the same size took, and all times by the pace at
which the machine computes at the moment.

It stores no content but the latest prompt before its acceptance: prefixes are remembered by their hashes.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import itemgetter

from edgeagent.backends.prompts import message_bytes, prompt_bytes, tools_bytes
from edgeagent.types import ChatPrompt, Finished, FinishReason, GenerateRequest, Prompt, Started, Tier

_FIRST_BYTES_PER_TOKEN = 4.0
_FEWEST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN = 0.5, 16.0
_FIRST_OUTPUT_TOKENS = 128  # until an answer has ended
_NUM_LENGTHS = 64
_GOLDEN = 0.6180339887  # its multiples are spread evenly between 0 and 1, however many there are
_SMOOTHING, _PACE_SMOOTHING = 0.2, 0.3
_NUM_SURE = 2  # after so many observations of a size, its next one says how fast the machine is
_MAX_SURPRISE = 2.0  # what is seen counts as more or less than expected by this factor at most
_MAX_BEGINNINGS = 8192
_RANK = {tier: rank for rank, tier in enumerate(Tier)}
# Rendering, tokenizing and the transfer through pipes. What they take beyond it is part of the corrections.
_OVERHEAD_S = 0.005
# The pace, and the time of a prompt of some size, count as longer or shorter than the rates say by this factor at most.
_MAX_CORRECTION = 4.0
# As many as 64 prompts, the usual length of the queue, with 4,096 tokens each.
MAX_WAITING_TOKENS = 1 << 18
# The clients of OpenAI's API give up after this time.
MAX_WAIT_S = 600.0
_MAX_LATENESS = 2.0
# Two first tokens within this time come from the same step. Their sinks are called one after the other.
_SAME_STEP_S = 0.0005


@dataclass(frozen=True, slots=True)
class Rates:
    """A worker's measured speeds; 0 if unknown.

    Prompt tokens per second without streams and beside them, and seconds per token of one stream.
    """

    prefill_tokens_per_s: float
    prefill_tokens_per_s_beside: float
    token_s: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """When a request gets its first token, and what it waits for.

    `first_token_s`: in seconds from now; None if no rates are known. `latest_s`: after how many seconds 95 % of such
    requests have their first token. `place`: how many requests without a token are served before it. `waits`: no slot
    is free for it.
    """

    first_token_s: float | None
    latest_s: float | None
    place: int
    waits: bool


NOTHING_KNOWN = Prediction(None, None, 0, waits=False)


@dataclass(slots=True, eq=False)
class _Live:
    """A request from its acceptance to its end.

    `num_bytes`: those of its prompt behind the prefix that is probably cached.
    `num_tokens`: its uncached prompt tokens, estimated until it `has_slot`. `waits`: no slot was free for it.
    `began_s`: since when no other prompt is computed before its own, as far as is known. `first_token_s`: when its
    first token came. `is_overtaken`: a later request got its first token before, so a part of this one's prompt may
    have been computed before `began_s`.
    """

    tier: Tier
    rank: int
    client: str
    accepted_s: float
    due_s: float
    prompt_bytes: int
    num_bytes: int
    num_tokens: float
    max_tokens: int | None
    began_s: float
    predicted_s: float | None = None
    waits: bool = False
    has_slot: bool = False
    is_overtaken: bool = False
    first_token_s: float | None = None
    num_output: int = 0
    beginnings: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Measured:
    """A prompt, and what `_beginnings` yields for it."""

    prompt: Prompt
    partition: str
    num_bytes: int
    beginnings: list[tuple[int, int]]


class _BySize:
    """A value that is learned by size, separately for each half power of two.

    A size of which nothing is known has the value of the nearest known size.
    """

    def __init__(self, first: float, least: float, most: float) -> None:
        self._first, self._least, self._most = first, least, most
        self._known: dict[int, tuple[float, int]] = {}  # the value, and from how many observations

    def __getitem__(self, size: float) -> float:
        if not self._known:
            return self._first
        at = _bucket(size)
        if at not in self._known:
            at = min(self._known, key=lambda known: abs(known - at))
        return self._known[at][0]

    def knows(self, size: float) -> bool:
        """Whether a size was observed at least _NUM_SURE times."""
        return self._known.get(_bucket(size), (0.0, 0))[1] >= _NUM_SURE

    def learn(self, size: float, seen: float) -> None:
        """Move the value of a size towards one that was seen."""
        seen = min(self._most, max(self._least, seen))
        value, num = self._known.get(_bucket(size), (seen, 0))
        # One that is far off changes it little: the machine may have computed something else.
        off = min(_MAX_SURPRISE, max(1 / _MAX_SURPRISE, seen / value))
        value *= off ** max(_SMOOTHING, 1 / (num + 1))
        self._known[_bucket(size)] = min(self._most, max(self._least, value)), num + 1

    def learn_quantile(self, size: float, seen: float) -> None:
        """Move the value of a size so that 95 % of what is seen is below it."""
        off = 1 + _SMOOTHING * 0.95 if seen > self[size] else 1 - _SMOOTHING * 0.05
        self._known[_bucket(size)] = min(self._most, max(self._least, self[size] * off)), 1


class _Lengths:
    """The lengths of the latest answers, in tokens."""

    def __init__(self) -> None:
        self._latest = deque[int]()
        self._sorted: list[int] = []

    def add(self, length: int) -> None:
        """Add the length of an answer, and forget the oldest of more than _NUM_LENGTHS."""
        if len(self._latest) == _NUM_LENGTHS:
            self._sorted.remove(self._latest.popleft())
        self._latest.append(length)
        bisect.insort(self._sorted, length)

    def beyond(self, num_tokens: int, share: float) -> int:
        """Return a length of more than `num_tokens`. The `share` of those that are so long is shorter.

        If none is so long, an answer gets as many tokens again as half of the others have.
        """
        first = bisect.bisect_right(self._sorted, num_tokens)
        if first == len(self._sorted):
            return num_tokens + self._sorted[len(self._sorted) // 2]
        return self._sorted[first + int(share * (len(self._sorted) - first))]


def _bucket(size: float) -> int:
    return round(2 * math.log2(1 + size))


class Forecast:
    """The live requests of one model, and what earlier ones took."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}
        self._measured: _Measured | None = (
            None  # the latest prompt, until it is accepted: it is asked for several times
        )
        self.context_length: float = math.inf
        """The most tokens that a prompt can have. A longer one is refused by the worker, or shortened."""
        self._rates = Rates(0.0, 0.0, 0.0)
        bounds = _FEWEST_BYTES_PER_TOKEN, MOST_BYTES_PER_TOKEN
        self._bytes_per_token = _BySize(_FIRST_BYTES_PER_TOKEN, *bounds)
        # Of the tokens that are computed. Many of those that the template adds are cached.
        self._bytes_per_uncached = _BySize(_FIRST_BYTES_PER_TOKEN, *bounds)
        # How many times longer the prompts take than the rates say: without streams, and beside them.
        self._corrections = [_BySize(1.0, 1 / _MAX_CORRECTION, _MAX_CORRECTION) for _ in range(2)]
        self._pace = 1.0  # how many times longer all prompts take at the moment
        self._lengths: dict[int, _Lengths] = {}  # of the answers, by the request's limit
        # The 95th percentile of how many times later than predicted first tokens come, by the predicted milliseconds.
        self._lateness = _BySize(1.0, 1.0, _MAX_LATENESS)
        self._token_s: float | None = None  # of the streams, with all that interrupted them
        self._step: list[_Live] = []  # the requests whose first tokens came in the latest step with one
        self._step_s = 0.0
        # Whether a prompt ended there, and the id of the request that is to compute it; "" once one has.
        self._beginnings: OrderedDict[int, tuple[bool, str]] = OrderedDict()

    def num_tokens(self, request: GenerateRequest) -> float:
        """Return the estimated number of tokens in a request's prompt."""
        num_bytes = self.num_bytes(request)
        return num_bytes / self._bytes_per_token[num_bytes]

    def num_bytes(self, request: GenerateRequest) -> int:
        """Return the size of a request's prompt in bytes; see `prompt_bytes`."""
        return self._measure(request).num_bytes

    def _measure(self, request: GenerateRequest) -> _Measured:
        measured, partition = self._measured, request.cache.partition
        if measured is None or measured.prompt is not request.prompt or measured.partition != partition:
            beginnings = list(_beginnings(request))
            num_bytes = beginnings[-1][1] if beginnings else prompt_bytes(request)
            measured = self._measured = _Measured(request.prompt, partition, num_bytes, beginnings)
        return measured

    def note_rates(self, rates: Rates) -> None:
        """Record the rates that the worker measured. The first value of each counts, and the pace follows the others.

        The worker's rates change with what it computed last, beside streams by a factor of two within seconds. With the
        latest ones, twice as many predictions were off by more than 20 %.
        """
        known = self._rates
        self._rates = Rates(
            known.prefill_tokens_per_s or rates.prefill_tokens_per_s,
            known.prefill_tokens_per_s_beside or rates.prefill_tokens_per_s_beside,
            known.token_s or rates.token_s,
        )

    def accept(self, request: GenerateRequest, now_s: float, prediction: Prediction = NOTHING_KNOWN) -> None:
        """Record that a request was submitted to the worker. If it may write to the cache, remember its prefixes."""
        live = self._live[request.id] = self._new(request, now_s)
        live.predicted_s, live.waits = prediction.first_token_s, prediction.waits
        if request.cache.write:
            live.beginnings = tuple(beginning for beginning, _ in self._measure(request).beginnings)
            for beginning in live.beginnings:
                is_end, computed_by = self._beginnings.get(beginning, (False, request.id))
                self._beginnings[beginning] = is_end or beginning == live.beginnings[-1], computed_by
                self._beginnings.move_to_end(beginning)
            while len(self._beginnings) > _MAX_BEGINNINGS:
                self._beginnings.popitem(last=False)
        self._measured = None

    def start(self, request: GenerateRequest, started: Started, now_s: float) -> None:
        """Record that a request has a slot, and its numbers of prompt tokens and cached tokens."""
        live = self._live.get(request.id)
        if live is not None and not live.has_slot:
            live.has_slot = True
            live.num_tokens = float(max(1, started.num_prompt_tokens - started.num_cached_tokens))
            if live.waits:
                live.began_s = now_s
            if not started.num_dropped_items:
                self._bytes_per_uncached.learn(live.num_bytes, live.num_bytes / live.num_tokens)
        if started.num_prompt_tokens and not started.num_dropped_items:
            num_bytes = prompt_bytes(request) if live is None else live.prompt_bytes
            self._bytes_per_token.learn(num_bytes, num_bytes / started.num_prompt_tokens)

    def add_tokens(self, request_id: str, num_tokens: int, at_s: float) -> None:
        """Record the number of tokens that a step of the engine gave a request. `at_s`: when they were drawn."""
        live = self._live.get(request_id)
        if live is None:
            return
        live.num_output += num_tokens
        if live.first_token_s is None:
            live.first_token_s = at_s
            self._note_computed(live)
            self._learn(at_s)
            if live.predicted_s is not None:
                late = (at_s - live.accepted_s) / live.predicted_s
                self._lateness.learn_quantile(1000 * live.predicted_s, late)
            self._step.append(live)
            self._step_s = at_s
            self._pass_on(live, at_s)

    def end(self, request_id: str, now_s: float, finished: Finished | None = None) -> None:
        """Record that a request has ended. `finished`: its terminal delta, if it has one."""
        live = self._live.pop(request_id, None)
        if live is None:
            return
        if live.first_token_s is None:
            self._pass_on(live, now_s)
            if finished is not None and finished.reason is not FinishReason.CANCELLED:
                self._note_computed(live)
            for beginning in live.beginnings:
                if self._beginnings.get(beginning, (False, ""))[1] == request_id:
                    del self._beginnings[beginning]
        if finished is not None and live.num_output:
            self._lengths.setdefault(_bucket(live.max_tokens or 0), _Lengths()).add(live.num_output)
            if live.num_output > 1:
                token_s = finished.timings.decode_ms / 1000 / (live.num_output - 1)
                self._token_s = token_s if self._token_s is None else self._token_s
                self._token_s += _SMOOTHING * (token_s - self._token_s)

    def _note_computed(self, live: _Live) -> None:
        for beginning in live.beginnings:
            if (found := self._beginnings.get(beginning)) is not None:
                self._beginnings[beginning] = found[0], ""

    def predict(self, request: GenerateRequest, num_parallel: int, now_s: float) -> Prediction:
        """Return when a request that comes now gets its first token, if `num_parallel` requests run at a time."""
        self._learn(now_s)
        new = self._new(request, now_s)
        streams = [live for live in self._live.values() if live.first_token_s is not None]
        prompts = [live for live in self._live.values() if live.first_token_s is None]
        prompts = self._in_order([*prompts, new], now_s, streams)
        place = prompts.index(new)
        ahead = [*prompts[:place], *streams, *(live for live in prompts[place + 1 :] if live.has_slot)]
        waits = sum(live.rank <= new.rank for live in ahead) >= num_parallel
        if not self._knows_rates:
            return Prediction(None, None, place, waits)
        first_token_s = _OVERHEAD_S + self._play(new, streams, prompts, num_parallel, now_s)
        return Prediction(first_token_s, self.latest_s(first_token_s), place, waits)

    def latest_s(self, first_token_s: float) -> float:
        """Return the seconds after which 95 % of the requests with this prediction have their first token."""
        return first_token_s * self._lateness[1000 * first_token_s]

    def is_full(self, request: GenerateRequest, max_live: int) -> bool:
        """Whether a request is one too many for its tier, where `max_live` requests may run or wait.

        So that no client can fill the queue for the others, a client may always have its share of it: of three clients,
        a third. The prompts that wait are limited in the same way: to MAX_WAITING_TOKENS, or to what is computed in
        MAX_WAIT_S if that is more.
        """
        tier = [live for live in self._live.values() if live.tier is request.tier]
        client = request.cache.partition
        own = [live for live in tier if live.client == client]
        num_clients = len({client, *(live.client for live in tier)})
        if len(tier) >= max_live and len(own) >= max(1, max_live // num_clients):
            return True
        waiting = sum(live.num_tokens for live in tier if not live.has_slot)
        own_waiting = sum(live.num_tokens for live in own if not live.has_slot)
        max_tokens = max(MAX_WAITING_TOKENS, MAX_WAIT_S * self._rates.prefill_tokens_per_s / self._pace)
        num_tokens = self._num_uncached(self.num_bytes(request) - self._num_known_bytes(request))
        return bool(own_waiting) and waiting + num_tokens > max_tokens < num_clients * (own_waiting + num_tokens)

    def _play(
        self, new: _Live, streams: Collection[_Live], prompts: list[_Live], num_parallel: int, now_s: float
    ) -> float:
        """Return the seconds until `new` has its first token."""
        token_s = self._token_s or self._rates.token_s
        ends = [(token_s * self._num_left(live, number), live.rank) for number, live in enumerate(streams)]
        heapq.heapify(ends)
        running = [place for place, live in enumerate(prompts) if live.has_slot]
        waiting = [place for place, live in enumerate(prompts) if not live.has_slot]
        done = dict[int, float]()  # the parts of prompts that were computed
        if running:
            first = prompts[running[0]]
            done[running[0]] = (now_s - first.began_s) / max(1e-9, self._prompt_s(first, is_beside=bool(ends)))
        at_s = 0.0
        while True:
            while waiting:
                if len(running) + len(ends) >= num_parallel:
                    last = max(ends, key=itemgetter(1), default=None)
                    if last is None or last[1] <= prompts[waiting[0]].rank:
                        break
                    ends.remove(last)  # it gives way to the more urgent one
                    heapq.heapify(ends)
                heapq.heappush(running, waiting.pop(0))
            if not running:
                at_s = max(at_s, heapq.heappop(ends)[0])
                continue
            prompt, part = prompts[running[0]], done.get(running[0], 0.0)
            needed_s = max(0.0, (1 - part) * self._prompt_s(prompt, is_beside=bool(ends)))
            if ends and ends[0][0] < at_s + needed_s:
                end_s = heapq.heappop(ends)[0]
                done[running[0]] = part + max(0.0, end_s - at_s) / self._prompt_s(prompt, is_beside=True)
                at_s = max(at_s, end_s)
                continue
            at_s += needed_s
            if prompt is new:
                return at_s
            running_place = heapq.heappop(running)
            number = len(streams) + running_place
            heapq.heappush(ends, (at_s + token_s * self._num_left(prompt, number), prompt.rank))

    def _prompt_s(self, live: _Live, *, is_beside: bool) -> float:
        """Return the seconds in which a prompt is computed. `is_beside`: streams are computed beside it."""
        correction = self._corrections[is_beside][live.num_tokens]
        return self._pace * correction * self._rated_s(live.num_tokens, is_beside=is_beside)

    def _rated_s(self, num_tokens: float, *, is_beside: bool) -> float:
        alone, beside = self._rates.prefill_tokens_per_s, self._rates.prefill_tokens_per_s_beside
        # Beside streams, the steps may always have been too small for the rate without them to be known.
        rate = (beside or alone) if is_beside else (alone or beside)
        return num_tokens / rate + self._rates.token_s if rate else 0.0

    @property
    def _knows_rates(self) -> bool:
        return max(self._rates.prefill_tokens_per_s, self._rates.prefill_tokens_per_s_beside) > 0

    def _num_left(self, live: _Live, number: int) -> float:
        """Return how many tokens an answer still gets, if it is as long as one of the latest answers that are longer.

        `number`: the answer's place among all that run. Each gets the length of another one, so that the ends of many
        answers are as far apart as usual.
        """
        limit, num_output = live.max_tokens, live.num_output
        length = num_output + _FIRST_OUTPUT_TOKENS
        if self._lengths:
            wanted = _bucket(limit or 0)
            lengths = self._lengths[min(self._lengths, key=lambda known: abs(known - wanted))]
            length = lengths.beyond(num_output, _GOLDEN * (number + 1) % 1)
        return max(1, (length if limit is None else min(length, limit)) - num_output)

    def _learn(self, now_s: float) -> None:
        """Correct the rates by the latest step with first tokens, unless another one may still come from it."""
        if not self._step or now_s - self._step_s < _SAME_STEP_S:
            return
        began_s = min(live.began_s for live in self._step)
        took_s = self._step_s - began_s - _OVERHEAD_S * any(live.accepted_s == began_s for live in self._step)
        is_beside = any(
            live.first_token_s is not None and live.first_token_s < self._step_s for live in self._live.values()
        )
        is_clear = not any(live.is_overtaken for live in self._step)
        if is_clear and self._knows_rates and took_s > 0:
            corrections = self._corrections[is_beside]
            rated_s = sum(self._rated_s(live.num_tokens, is_beside=is_beside) for live in self._step)
            expected_s = sum(self._prompt_s(live, is_beside=is_beside) for live in self._step)
            if all(corrections.knows(live.num_tokens) for live in self._step):
                off = min(_MAX_SURPRISE, max(1 / _MAX_SURPRISE, took_s / expected_s))
                self._pace *= off**_PACE_SMOOTHING
                self._pace = min(_MAX_CORRECTION, max(1 / _MAX_CORRECTION, self._pace))
            for live in self._step:
                corrections.learn(live.num_tokens, took_s / rated_s / self._pace)
        self._step = []

    def _pass_on(self, gone: _Live, at_s: float) -> None:
        """Record that the requests behind one that leaves the queue of prompts are no longer delayed by it."""
        others = [live for live in self._live.values() if live.first_token_s is None and live is not gone]
        order = self._in_order([gone, *others], at_s)
        for live in order[order.index(gone) + 1 :]:
            live.began_s = at_s
            live.is_overtaken |= gone.accepted_s > live.accepted_s

    def _in_order(self, lives: Collection[_Live], now_s: float, streams: Collection[_Live] = ()) -> list[_Live]:
        """Return requests in the order in which the engine serves them; see `engine.scheduler`.

        That is by tier, turns of the clients, and due time. Those come last that would be late even if each were alone.
        The `streams` of a client count as its first requests.
        """

        def urgency(live: _Live) -> tuple[int, bool, float, float]:
            is_late = live.due_s < math.inf and now_s + self._prompt_s(live, is_beside=False) > live.due_s
            return live.rank, is_late, live.due_s, live.accepted_s

        turns = Counter(live.client for live in streams)
        ranked = list[tuple[int, int, _Live]]()
        for live in sorted(lives, key=urgency):
            ranked.append((live.rank, turns[live.client], live))
            turns[live.client] += 1
        return [live for *_, live in sorted(ranked, key=itemgetter(0, 1))]

    def _new(self, request: GenerateRequest, now_s: float) -> _Live:
        target = None if request.is_ahead else request.target
        due_s = now_s + (math.inf if target is None else target.first_token_s)
        num_bytes = self.num_bytes(request) - self._num_known_bytes(request)
        return _Live(
            request.tier,
            len(_RANK) if request.is_ahead else _RANK[request.tier],  # what is computed ahead comes last
            request.cache.partition,
            now_s,
            due_s,
            self.num_bytes(request),
            num_bytes,
            self._num_uncached(num_bytes),
            1 if request.prefill_only else request.max_tokens,
            now_s,
        )

    def _num_uncached(self, num_bytes: int) -> float:
        return max(1.0, min(num_bytes / self._bytes_per_uncached[num_bytes], self.context_length))

    def _num_known_bytes(self, request: GenerateRequest) -> int:
        num_known, is_answer_known = 0, False
        if request.cache.read:
            for (beginning, num_bytes), is_answer in zip(
                self._measure(request).beginnings, _are_answers(request), strict=True
            ):
                # The model's own answer to a known prompt is cached too.
                if beginning not in self._beginnings and not (is_answer and is_answer_known):
                    break
                num_known, is_answer_known = num_bytes, self._beginnings.get(beginning, (False, ""))[0]
        return num_known


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


def _are_answers(request: GenerateRequest) -> list[bool]:
    """Return for each prefix of `_beginnings` whether its last message is the model's."""
    if not isinstance(request.prompt, ChatPrompt):
        return [False]
    return [message.role == "assistant" for message in request.prompt.messages]
