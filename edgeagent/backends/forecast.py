"""Predicts when a request on this machine gets its first token: a model of the engine's queue, with learned rates.

The engine computes one prompt after another, in the order of `serving_order`, and beside them the streams, each of
which holds a slot. So the prediction plays this queue forward until the request has its first token. It needs the
seconds of a prompt, without streams and beside them, and the seconds per token of the streams, without prompts and
beside them. All four follow what was seen last.

A request that would miss its target is due at its own limit, or has no due time, so it delays none that can be in time.
Newer ones that can be in time go before it. By how much they delay those without a limit is learned too.

The prediction that clients see is a mean, so nearly half of the requests are later. LocalBackend compares a quantile
with a request's limit: `Prediction.latest_s`, which 95 % keep.

It stores no content but the latest prompt before its acceptance: prefixes are remembered by their digests.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, islice, takewhile
from operator import itemgetter

from edgeagent.backends.prompts import digests, message_bytes, prompt_bytes, tools_bytes
from edgeagent.serving_order import by_share
from edgeagent.types import TIER_RANKS, ChatPrompt, Finished, FinishReason, GenerateRequest, Prompt, Started, Tier
from edgeagent.worker.parent.pool.known_prefixes import KnownPrefixes

MOST_BYTES_PER_TOKEN = 16.0
_FIRST_TOKENS_PER_BYTE = 0.25
_FIRST_OUTPUT_TOKENS = 128  # until an answer has ended
_NUM_LENGTHS = 64
_GOLDEN = 0.6180339887  # its multiples are spread evenly between 0 and 1, however many there are
_SMOOTHING = 0.1  # how much of an estimate the latest observation is
_GUESS_WEIGHT = 0.1  # of a first guess, in observations
# The relative variance of sizes from which on their parts can be told apart. With less, the errors of similar sizes
# would become a slope, which is far off for other sizes.
_LEAST_SPREAD = 0.05
_LEAST_EACH = 1e-9
_MAX_SURPRISE = 2.0  # what is seen counts as more or less than expected by this factor at most
_MAX_GAP = 10.0  # a stream's tokens count as later than usual by this factor at most: it may have been preempted
# A prefix of more bytes has more tokens than a block, so it is restored from disk. If less than the share _LOST of its
# tokens was cached, the disk has lost it: those may be the template's.
_MANY_BYTES, _LOST = 4096, 0.25
_MOST_DIGESTED_BYTES = 4 << 20  # the usual text of a million tokens
# Rendering, tokenizing and the transfer through pipes. What they take beyond it is part of the prompt's seconds.
_OVERHEAD_S = 0.005
# As many as 64 prompts, the usual length of the queue, with 4,096 tokens each.
MAX_WAITING_TOKENS = 1 << 18
# The clients of OpenAI's API give up after this time.
MAX_WAIT_S = 600.0
# 95 % must keep what LocalBackend compares with a limit. The estimate follows a rising load late, so it aims higher.
_PROMISED, _MAX_LATENESS = 0.97, 2.0
_MOST_OVERTAKEN = 10.0  # a request without a due time comes later than the play says by this factor at most


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

    `first_token_s`: in seconds from now, a mean; None if no rates are known. `latest_s`: after how many seconds
    95 % of such requests have their first token. `place`: how many requests without a token are served before it.
    `waits`: no slot is free for it. `is_late`: behind those that are due earlier, it would miss its target. So it
    is due at its limit, or at no time if it has none, and is served behind all of its tier that are due earlier.
    """

    first_token_s: float | None
    latest_s: float | None
    place: int
    waits: bool
    is_late: bool = False


NOTHING_KNOWN = Prediction(None, None, 0, waits=False)


@dataclass(slots=True, eq=False)
class _Live:
    """A request from its acceptance to its end.

    `num_bytes`: those of its prompt behind the prefix that is probably cached.
    `num_tokens`: its uncached prompt tokens, estimated until it `has_slot`, and those of its choices. `waits`: no slot
    was free for it.
    `began_s`: since when no other prompt is computed before its own, as far as is known. `is_overtaken`: a later
    request got its first token before, so a part of this one's prompt may have been computed before `began_s`.
    `advanced_s`: when its latest token came.
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
    advanced_s: float = 0.0
    num_output: int = 0
    overtaken: float = 0.0  # `Forecast._overtaken` in its prediction, if it has no due time since it would be late
    beginnings: tuple[bytes, ...] = ()

    @property
    def order(self) -> float:
        return self.accepted_s


@dataclass(frozen=True, slots=True)
class _Measured:
    """A prompt, and what `_beginnings` yields for it."""

    prompt: Prompt
    whose: tuple[str, str]  # the partition of the cache, and the adapter
    num_bytes: int
    beginnings: list[tuple[bytes, int]]


class _Line:
    """What a request of some size takes: a fixed part, and `each` for every unit, fitted to the latest observations.

    The fit minimizes the squares of the errors, relative to what the first guess says of each size. The guess counts as
    two observations of little weight.
    """

    def __init__(self, fixed: float, each: float) -> None:
        self.each = each
        self._fixed = fixed
        self._guess = fixed, each
        self._sums = [0.0] * 5
        for size in (100.0, 1000.0):
            self._add(size, self(size), _GUESS_WEIGHT)

    def __call__(self, size: float) -> float:
        return self._fixed + self.each * size

    def learn(self, size: float, seen: float) -> None:
        """Add an observation. Earlier ones count less from now on."""
        usual = self(size)
        self._sums = [(1 - _SMOOTHING) * old for old in self._sums]
        self._add(size, min(_MAX_SURPRISE * usual, max(usual / _MAX_SURPRISE, seen)), 1.0)
        num, x, xx, y, xy = self._sums
        spread = num * xx - x * x
        if spread > _LEAST_SPREAD * num * xx:
            self.each = (num * xy - x * y) / spread
        else:  # all are of about one size, so both parts change alike
            self.each *= y / (num * self._fixed + x * self.each)
        self.each = min(xy / xx, max(_LEAST_EACH, self.each))  # no part is negative
        self._fixed = max(0.0, (y - self.each * x) / num)

    def _add(self, size: float, seen: float, weight: float) -> None:
        fixed, each = self._guess
        weight /= (fixed + each * size) ** 2
        terms = 1.0, size, size * size, seen, size * seen
        self._sums = [old + weight * term for old, term in zip(self._sums, terms, strict=True)]


def _num_choice_tokens(request: GenerateRequest) -> float:
    """Return about how many tokens a request's choices have, which are computed behind its prompt."""
    return _FIRST_TOKENS_PER_BYTE * sum(map(len, request.choices))


def _bucket(size: float) -> int:
    return round(2 * math.log2(1 + size))


class Forecast:
    """The live requests of one model, and what earlier ones took."""

    def __init__(self, prefixes: KnownPrefixes | None = None) -> None:
        """`prefixes`: those of the model's cache. None: none are known yet."""
        self._prefixes = KnownPrefixes() if prefixes is None else prefixes
        self._pid: int | None = None
        # Those without a token, and the streams.
        self._prompts: dict[str, _Live] = {}
        self._streams: dict[str, _Live] = {}
        # The latest prompt, until it is accepted: it is asked for several times.
        self._measured: _Measured | None = None
        self.context_length: float = math.inf
        """The most tokens that a prompt can have. A longer one is refused by the worker, or shortened."""
        # A prompt's tokens by its bytes: all, and those that are computed. Most of the template's are cached.
        self._tokens, self._uncached = _Line(1.0, _FIRST_TOKENS_PER_BYTE), _Line(1.0, _FIRST_TOKENS_PER_BYTE)
        # A prompt's seconds by its computed tokens: without streams, and beside them. None until a rate is known.
        self._prompt_s: tuple[_Line, _Line] | None = None
        # The seconds per token of a stream: while no prompt is computed, and beside prompts.
        self._token_s = [0.0, 0.0]
        self._lengths: dict[int, deque[int]] = {}  # of the latest answers, by the request's limit
        self._lateness = 1.0  # _PROMISED of the first tokens come at most so many times later than predicted
        self._overtaken = 1.0  # how many times later those without a due time come, since newer ones go before them
        # The requests whose first tokens came in the latest step with one; when that was, and whether streams ran.
        self._step: list[_Live] = []
        self._step_s, self._is_beside = 0.0, False

    def num_tokens(self, request: GenerateRequest) -> float:
        """Return the estimated number of tokens in a request's prompt."""
        return self._tokens(self.num_bytes(request))

    def num_bytes(self, request: GenerateRequest) -> int:
        """Return the size of a request's prompt in bytes; see `prompt_bytes`."""
        return self._measure(request).num_bytes

    def _measure(self, request: GenerateRequest) -> _Measured:
        measured, whose = self._measured, (request.cache.partition, _adapter(request))
        if measured is None or measured.prompt is not request.prompt or measured.whose != whose:
            beginnings = list(self._beginnings(request))
            is_whole = beginnings and len(beginnings) == len(_are_answers(request))
            num_bytes = beginnings[-1][1] if is_whole else prompt_bytes(request)
            measured = self._measured = _Measured(request.prompt, whose, num_bytes, beginnings)
        return measured

    def note_worker(self, pid: int | None) -> None:
        """Record the id of the model's process; None if there is none. What only an earlier one had is gone."""
        if self._pid not in (None, pid):
            self._prefixes.forget_memory()
        self._pid = pid

    def note_rates(self, rates: Rates) -> None:
        """Begin with the rates that the worker measured first. Later ones are ignored.

        They change with what the worker computed last, beside streams by a factor of two within seconds.
        """
        # Beside streams, the steps may always have been too small for the rate without them to be known.
        alone = rates.prefill_tokens_per_s or rates.prefill_tokens_per_s_beside
        beside = rates.prefill_tokens_per_s_beside or alone
        if self._prompt_s is None and alone:
            token_s = rates.token_s or 1 / alone
            self._prompt_s = _Line(token_s, 1 / alone), _Line(token_s, 1 / beside)
            self._token_s = [token_s, token_s]

    def accept(self, request: GenerateRequest, now_s: float, prediction: Prediction = NOTHING_KNOWN) -> None:
        """Record that a request was submitted to the worker. If it may write to the cache, remember its prefixes."""
        live = self._prompts[request.id] = self._new(request, now_s)
        live.predicted_s, live.waits = prediction.first_token_s, prediction.waits
        if prediction.is_late and live.due_s == math.inf:
            live.overtaken = self._overtaken
        if request.cache.write:
            live.beginnings = tuple(beginning for beginning, _ in self._measure(request).beginnings)
            self._prefixes.expect(request.id, live.beginnings, persists=request.cache.persist)
        self._measured = None

    def start(self, request: GenerateRequest, started: Started, now_s: float) -> None:
        """Record that a request has a slot, and its numbers of prompt tokens and cached tokens."""
        live = self._prompts.get(request.id)
        if live is not None and not live.has_slot:
            live.has_slot = True
            num_computed = float(max(1, started.num_prompt_tokens - started.num_cached_tokens))
            live.num_tokens = num_computed + _num_choice_tokens(request)
            if live.waits:
                live.began_s = now_s
            if not started.num_dropped_items:
                num_known = live.prompt_bytes - live.num_bytes
                expected = num_known / max(1, live.prompt_bytes) * started.num_prompt_tokens
                if num_known > _MANY_BYTES and started.num_cached_tokens < _LOST * expected:
                    self._prefixes.note_lost(live.beginnings)
                self._uncached.learn(max(1, live.num_bytes), num_computed)
        if started.num_prompt_tokens and not started.num_dropped_items:
            num_bytes = prompt_bytes(request) if live is None else live.prompt_bytes
            self._tokens.learn(max(1, num_bytes), started.num_prompt_tokens)

    def add_tokens(self, request_id: str, num_tokens: int, at_s: float) -> None:
        """Record the number of tokens that a step of the engine gave a request. `at_s`: when they were drawn."""
        if (live := self._streams.get(request_id)) is not None:
            is_beside = any(prompt.has_slot for prompt in self._prompts.values())
            usual_s = self._token_s[is_beside]
            token_s = min(_MAX_GAP * usual_s, (at_s - live.advanced_s) / num_tokens)
            # Each token counts as one observation: a step with many accepted drafts gives as many of its short times.
            self._token_s[is_beside] += (1 - (1 - _SMOOTHING) ** num_tokens) * (token_s - usual_s)
        elif (live := self._prompts.pop(request_id, None)) is not None:
            self._prefixes.note_computed(live.beginnings)
            if at_s != self._step_s:
                self._learn()
                self._step_s, self._is_beside = at_s, bool(self._streams)
            self._step.append(live)
            self._pass_on(live, at_s)
            self._streams[request_id] = live
            if live.predicted_s is not None:
                self._learn_lateness(live, live.predicted_s, at_s - live.accepted_s)
        else:
            return
        live.num_output += num_tokens
        live.advanced_s = at_s

    def end(self, request_id: str, now_s: float, finished: Finished | None = None) -> None:
        """Record that a request has ended. `finished`: its terminal delta, if it has one."""
        if (live := self._prompts.pop(request_id, None)) is not None:
            self._pass_on(live, now_s)
            if finished is not None and finished.reason is not FinishReason.CANCELLED:
                self._prefixes.note_computed(live.beginnings)
            self._prefixes.withdraw(request_id, live.beginnings)
        elif (live := self._streams.pop(request_id, None)) is not None and finished is not None:
            lengths = self._lengths.setdefault(_bucket(live.max_tokens or 0), deque(maxlen=_NUM_LENGTHS))
            lengths.append(live.num_output)

    def predict(self, request: GenerateRequest, num_parallel: int, now_s: float) -> Prediction:
        """Return when a request that comes now gets its first token, if `num_parallel` requests run at a time."""
        self._learn()
        new = self._new(request, now_s)
        found = self._predicted(new, num_parallel, now_s)
        if found.first_token_s is None or now_s + found.first_token_s <= new.due_s:
            return found
        # It makes way for those that can be in time, but only until its own limit, if it has one.
        limit_s = request.latest_first_token_s
        new.due_s = math.inf if limit_s is None else now_s + limit_s
        last = self._predicted(new, num_parallel, now_s)
        assert last.first_token_s is not None
        first_token_s = last.first_token_s * (self._overtaken if limit_s is None else 1.0)
        return Prediction(first_token_s, self.latest_s(first_token_s), last.place, last.waits, is_late=True)

    def _predicted(self, new: _Live, num_parallel: int, now_s: float) -> Prediction:
        streams = self._streams.values()
        prompts = by_share([*self._prompts.values(), new], streams)
        place = prompts.index(new)
        ahead = [*prompts[:place], *streams, *(live for live in prompts[place + 1 :] if live.has_slot)]
        waits = sum(live.rank <= new.rank for live in ahead) >= num_parallel
        if self._prompt_s is None:
            return Prediction(None, None, place, waits)
        first_token_s = _OVERHEAD_S + self._play(new, streams, prompts, num_parallel, now_s)
        return Prediction(first_token_s, self.latest_s(first_token_s), place, waits)

    def latest_s(self, first_token_s: float) -> float:
        """Return the seconds after which 95 % of the requests with this prediction have their first token."""
        return first_token_s * self._lateness

    def is_full(self, request: GenerateRequest, max_live: int) -> bool:
        """Whether a request is one too many for its tier, where `max_live` requests may run or wait.

        So that no client can fill the queue for the others, a client may always have its share of it: of three clients,
        a third. The prompts that wait are limited in the same way: to MAX_WAITING_TOKENS, or to what is computed in
        MAX_WAIT_S if that is more.
        """
        lives = (*self._prompts.values(), *self._streams.values())
        tier = [live for live in lives if live.tier is request.tier]
        client = request.cache.partition
        own = [live for live in tier if live.client == client]
        num_clients = len({client, *(live.client for live in tier)})
        if len(tier) >= max_live and len(own) >= max(1, max_live // num_clients):
            return True
        waiting = sum(live.num_tokens for live in tier if not live.has_slot)
        own_waiting = sum(live.num_tokens for live in own if not live.has_slot)
        max_tokens = max(MAX_WAITING_TOKENS, MAX_WAIT_S / self._prompt_s[False].each if self._prompt_s else 0)
        num_tokens = self._num_uncached(self.num_bytes(request) - self._num_known_bytes(request))
        return bool(own_waiting) and waiting + num_tokens > max_tokens < num_clients * (own_waiting + num_tokens)

    def _play(
        self, new: _Live, streams: Collection[_Live], prompts: list[_Live], num_parallel: int, now_s: float
    ) -> float:
        """Return the seconds until `new` has its first token."""
        token_s, beside_s = self._token_s
        # When the streams end, in tokens that each of them gets from now on; and their ranks.
        ends = [(float(self._num_left(live, number)), live.rank) for number, live in enumerate(streams)]
        heapq.heapify(ends)
        running = [place for place, live in enumerate(prompts) if live.has_slot]
        waiting = [place for place, live in enumerate(prompts) if not live.has_slot]
        done = dict[int, float]()  # the parts of prompts that were computed
        if running:
            first = prompts[running[0]]
            done[running[0]] = (now_s - first.began_s) / self._seconds(first, is_beside=bool(ends))
        at_s = num_tokens = 0.0
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
                end = max(num_tokens, heapq.heappop(ends)[0])
                at_s += token_s * (end - num_tokens)
                num_tokens = end
                continue
            prompt, part = prompts[running[0]], done.get(running[0], 0.0)
            needed_s = max(0.0, (1 - part) * self._seconds(prompt, is_beside=bool(ends)))
            if ends and (until_s := beside_s * max(0.0, ends[0][0] - num_tokens)) < needed_s:
                num_tokens = max(num_tokens, heapq.heappop(ends)[0])
                done[running[0]] = part + until_s / self._seconds(prompt, is_beside=True)
                at_s += until_s
                continue
            at_s += needed_s
            num_tokens += needed_s / beside_s
            if prompt is new:
                return at_s
            running_place = heapq.heappop(running)
            number = len(streams) + running_place
            heapq.heappush(ends, (num_tokens + self._num_left(prompt, number), prompt.rank))

    def _seconds(self, live: _Live, *, is_beside: bool) -> float:
        """Return the seconds in which a prompt is computed. `is_beside`: streams are computed beside it.

        Streams make no prompt faster. One of a group whose first is a stream by then may seem so: their steps were
        shared.
        """
        lines = (self._prompt_s or ())[: 1 + is_beside]
        return max((line(live.num_tokens) for line in lines), default=0.0)

    def _num_left(self, live: _Live, number: int) -> float:
        """Return how many tokens an answer still gets, if it is as long as one of the latest answers that are longer.

        `number`: the answer's place among all that run. Each gets the length of another one, so that the ends of many
        answers are as far apart as usual.
        """
        limit, num_output = live.max_tokens, live.num_output
        length = num_output + _FIRST_OUTPUT_TOKENS
        if self._lengths:
            wanted = _bucket(limit or 0)
            latest = sorted(self._lengths[min(self._lengths, key=lambda known: abs(known - wanted))])
            longer = [length for length in latest if length > num_output]
            # If none is so long, it gets as many tokens again as half of the others have.
            typical = num_output + latest[len(latest) // 2]
            length = longer[int(_GOLDEN * (number + 1) % 1 * len(longer))] if longer else typical
        return max(1, (length if limit is None else min(length, limit)) - num_output)

    def _learn(self) -> None:
        """Learn the seconds of a prompt from the latest step with first tokens, which all its prompts share."""
        step, self._step = self._step, []
        if self._prompt_s is None or not step or any(live.is_overtaken for live in step):
            return
        began_s = min(live.began_s for live in step)
        took_s = self._step_s - began_s - _OVERHEAD_S * any(live.accepted_s == began_s for live in step)
        alone, line = self._prompt_s[False], self._prompt_s[self._is_beside]
        usual_s = [line(live.num_tokens) for live in step]
        if took_s > 0:
            for live, each_s in zip(step, usual_s, strict=True):
                seen_s = took_s * each_s / sum(usual_s)
                line.learn(live.num_tokens, seen_s)
                # Streams make no prompt faster, so it takes no longer alone. Prompts alone may have been seen last
                # while the machine was slower. The steps of a prompt behind or among others were shared: it shows
                # nothing.
                is_alone = len(step) == 1 and live.began_s == live.accepted_s
                if self._is_beside and is_alone and seen_s < alone(live.num_tokens):
                    alone.learn(live.num_tokens, seen_s)

    def _learn_lateness(self, live: _Live, predicted_s: float, took_s: float) -> None:
        if live.overtaken:
            seen = min(_MOST_OVERTAKEN, max(1.0, live.overtaken * took_s / predicted_s))
            self._overtaken += _SMOOTHING * (seen - self._overtaken)
        else:
            is_late = took_s > self.latest_s(predicted_s)
            self._lateness *= 1 + _SMOOTHING * (is_late - 1 + _PROMISED)
            self._lateness = min(_MAX_LATENESS, max(1.0, self._lateness))

    def _pass_on(self, gone: _Live, at_s: float) -> None:
        """Record that the requests behind one that leaves the queue of prompts are no longer delayed by it."""
        order = by_share([gone, *self._prompts.values()])
        for live in order[order.index(gone) + 1 :]:
            live.began_s = at_s
            live.is_overtaken |= gone.accepted_s > live.accepted_s

    def _new(self, request: GenerateRequest, now_s: float) -> _Live:
        target = None if request.is_ahead else request.target
        due_s = now_s + (math.inf if target is None else target.first_token_s)
        num_bytes = self.num_bytes(request) - self._num_known_bytes(request)
        return _Live(
            request.tier,
            len(TIER_RANKS) if request.is_ahead else TIER_RANKS[request.tier],  # what is computed ahead comes last
            request.cache.partition,
            now_s,
            due_s,
            self.num_bytes(request),
            num_bytes,
            self._num_uncached(num_bytes) + _num_choice_tokens(request),
            1 if request.prefill_only or request.choices else request.max_tokens,
            now_s,
        )

    def _num_uncached(self, num_bytes: int) -> float:
        return max(1.0, min(self._uncached(num_bytes), self.context_length))

    def _num_known_bytes(self, request: GenerateRequest) -> int:
        num_known, is_answer_known = 0, False
        if request.cache.read:
            for (beginning, num_bytes), is_answer in zip(
                self._measure(request).beginnings, _are_answers(request), strict=False
            ):
                # The model's own answer to a known prompt is cached too.
                if beginning not in self._prefixes and not (is_answer and is_answer_known):
                    break
                num_known, is_answer_known = num_bytes, self._prefixes.is_end(beginning)
        return num_known

    def _beginnings(self, request: GenerateRequest) -> Iterator[tuple[bytes, int]]:
        """Yield the digest and the length in bytes of each prefix of a conversation, the shortest first.

        If the prompt is no conversation, yield only those of the whole prompt. Prefixes that cannot fit into the
        context are not cached, and digests take 1.5 ms of the event loop for a megabyte, so they are left out, and so
        are prefixes of more than _MOST_DIGESTED_BYTES.
        """
        most = min(self.context_length * MOST_BYTES_PER_TOKEN, _MOST_DIGESTED_BYTES)
        prompt, client, adapter = request.prompt, request.cache.partition, _adapter(request)
        lengths: Iterable[int]
        parts: Iterable[object]
        if isinstance(prompt, ChatPrompt):
            lengths = accumulate(map(message_bytes, prompt.messages), initial=tools_bytes(prompt))
            said = ((each.role, each.content, each.reasoning, digests(prompt, each)) for each in prompt.messages)
            parts = chain([(adapter, prompt.tools)], said)
        else:
            lengths, parts = (0, prompt_bytes(request)), (adapter, prompt)
        prefixes = zip(takewhile(most.__ge__, lengths), self._prefixes.digests(client, parts), strict=False)
        yield from ((digest, num_bytes) for num_bytes, digest in islice(prefixes, 1, None))


def _adapter(request: GenerateRequest) -> str:
    """Return the adapter of MODEL+ADAPTER; "" if none. What is cached with it is not found without it."""
    return request.model.partition("+")[2]


def _are_answers(request: GenerateRequest) -> list[bool]:
    """Return for each prefix of a conversation whether its last message is the model's."""
    if not isinstance(request.prompt, ChatPrompt):
        return [False]
    return [message.role == "assistant" for message in request.prompt.messages]
