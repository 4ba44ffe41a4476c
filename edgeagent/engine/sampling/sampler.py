"""Draws the next token of a sequence from its logits.

The steps and their order are those of llama.cpp's default sampler chain: logit bias, penalties, top-k, top-p, min-p,
temperature. The result is as if the logits of tokens that a grammar refuses were -inf before all of these steps.
Computing the grammar's mask of all tokens is slow, so shortcuts avoid it where the distribution stays the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.truncation import (
    Floats,
    Indices,
    ahead_of,
    around_nucleus,
    block_sums,
    few_at_least,
    index_at,
    is_sparse,
    largest,
    nucleus,
    ranked,
    ranked_rows,
    total_of,
    total_within,
)
from edgeagent.errors import InternalError, InvalidRequest


class TokenConstraint(Protocol):
    """The state of a grammar after the tokens accepted so far. Each request has its own."""

    def allows(self, token: int) -> bool:
        """Whether `token`, which may be an end-of-generation token, may come next. No side effect."""
        ...

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:
        """Return which tokens may come next, shape (num_vocab,); None if all tokens may.

        The array is valid until the next call. `likeliest`: the likeliest token without the grammar, as a hint that
        the grammar may use.
        """
        ...

    def instead_of(self, token: int) -> int | None:
        """Return the token to use instead of `token`, which is the likeliest one but not allowed.

        None means to draw one of the allowed tokens as usual.
        """
        ...

    def accept(self, token: int) -> None:
        """Advance the grammar by a generated token. The token must be allowed."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the next tokens up to the place where the grammar leaves a choice; empty if that is the next place."""
        ...


class Penalties:
    """Counts the last `window` tokens of a sequence, and lowers their logits. A window of -1 means all tokens.

    `repeat`, `presence`, `frequency`: the strengths of the penalties. `history`: the sequence's tokens so far.
    """

    def __init__(self, window: int, repeat: float, presence: float, frequency: float, history: Sequence[int]) -> None:
        self._window = window
        self._repeat = np.float32(repeat)
        self._presence = np.float32(presence)
        self._frequency = np.float32(frequency)
        self._recent: deque[int] = deque()
        self._slots: dict[int, int] = {}
        self._tokens = np.zeros(64, np.intp)
        self._counts = np.zeros(64, np.float32)
        self.extend(history[-window:] if window > 0 else history)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens as the most recent ones, in order."""
        if self._window == 0:
            return
        for token in tokens:
            self._add(token)
            if self._window > 0:
                self._recent.append(token)
                if len(self._recent) > self._window:
                    self._remove(self._recent.popleft())

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Lower the logits of the recent tokens, in place."""
        num = len(self._slots)
        tokens = self._tokens[:num]
        before = logits[tokens]
        after = np.where(before <= 0, before * self._repeat, before / self._repeat)
        logits[tokens] = after - (self._counts[:num] * self._frequency + self._presence)

    def _add(self, token: int) -> None:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._tokens[slot] = token
        self._counts[slot] += 1

    def _remove(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] == 0:
            # Fill the gap with the last slot.
            del self._slots[token]
            last = len(self._slots)
            if slot != last:
                moved = int(self._tokens[last])
                self._slots[moved] = slot
                self._tokens[slot] = moved
                self._counts[slot] = self._counts[last]
                self._counts[last] = 0


# Up to this many of the likeliest tokens are sorted. A cut of sorted tokens only shortens the array.
MAX_RANKED = 256
# Float32 holds the weights of a row whose largest logit lies between the negative and the positive one, without loss.
_MAX_DIRECT = 40.0


@dataclass(frozen=True, slots=True)
class Candidates:
    """A set of tokens and their logits (`values`), with the cuts that are still to be made: mask, min-p and top-p.

    - `ids`: the tokens; None means the whole vocabulary, in order.
    - `peak`: the largest logit of an allowed token.
    - `mask`: which of the tokens are allowed; None if all are.
    - `lowest`: the cut of min-p. Tokens with smaller logits may not be drawn.
    - `weights`, `target`, `rest`: the cut of top-p; `weights` is None if there is none. The weights are those at
      temperature 1, 0 outside the mask. The nucleus is the likeliest tokens whose weights together reach `target`;
      `rest` is the sum of all weights, minus `target`.
    - `shifted`: the logits minus the peak, if they were computed for `weights`.
    - `sums`: the `block_sums` of `weights`, if these are also the weights to draw with.
    """

    ids: Indices | None
    values: Floats
    peak: np.float32
    mask: NDArray[np.bool_] | None = None
    lowest: float = -math.inf
    shifted: Floats | None = None
    weights: Floats | None = None
    target: float = 0.0
    rest: float = 0.0
    sums: NDArray[np.float64] | None = None

    def select(self, found: Indices) -> Candidates:
        """Return the candidates at the indices `found`, without those that the mask excludes. Other cuts remain."""
        if self.mask is not None:
            found = found.compress(self.mask.take(found))
        ids = found if self.ids is None else self.ids.take(found)
        weights = None if self.weights is None else self.weights.take(found)
        values = self.values.take(found)
        return Candidates(ids, values, self.peak, None, self.lowest, None, weights, self.target, self.rest)

    @property
    def is_cut(self) -> bool:
        """Whether all cuts are made, so that each of the candidates may be drawn."""
        return self.mask is None and self.weights is None and self.lowest == -math.inf

    def truncated_to(self, length: int) -> Candidates:
        """Return the first `length` candidates, with no cuts left to make."""
        assert self.ids is not None and self.mask is None
        return Candidates(self.ids[:length], self.values[:length], self.peak)


def all_of(values: Floats, mask: NDArray[np.bool_] | None = None) -> Candidates:
    """Return all tokens as candidates. If there is a mask, it must allow the likeliest token.

    Raise InternalError if the largest logit is not finite.
    """
    return Candidates(None, values, peak_of(values), mask)


def ranked_of(values: Floats, k: int) -> Candidates:
    """Return the `k` likeliest tokens, the likeliest one first; raise InternalError if the largest is not finite."""
    ids = ranked(values, k)
    if not len(ids):
        raise no_maximum(values)
    few = values.take(ids)
    return Candidates(ids, few, few[0])


def likeliest(candidates: Candidates, k: int) -> Candidates:
    """Return the `k` likeliest tokens that the mask allows, or all allowed tokens if they are fewer.

    If `k` is at most MAX_RANKED, the likeliest token comes first. Otherwise the order is that of `candidates`.
    """
    values, mask = candidates.values, candidates.mask
    first = ranked if k <= MAX_RANKED else largest
    if mask is None:
        return candidates.select(first(values, k))
    few = candidates.select(first(values, 2 * k)) if 2 * k < len(values) else None
    if few is None or len(few.values) < k:
        few = candidates.select(np.flatnonzero(mask))
        return few.select(first(few.values, min(k, len(few.values))))
    return few if len(few.values) <= k else few.select(first(few.values, k))


def peak_of(values: Floats) -> np.float32:
    """Return the largest logit; raise InternalError if it is not finite."""
    peak: np.float32 = values[values.argmax()]  # for a vocabulary of 152,000, `max` takes 38 µs and `argmax` 15
    if not math.isfinite(peak):
        raise no_maximum(values)
    return peak


def no_maximum(values: Floats) -> InternalError:
    return InternalError(f"no token can be drawn: the largest logit is {values[values.argmax()]}")


_SEED_BITS = 64
# How many random numbers are reserved for each token. A token uses only one or a few of them, so its first one depends
# only on the token's position in the output. So a seeded output continues identically after an interruption. The number
# is 2^64 divided by the golden ratio; numpy's `jumped` uses 2^128 divided by it. It must be odd, since the low bits of
# PCG64's state repeat after a power of two.
_RANDOM_PER_TOKEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token, and the natural log of its probability.

    The probability comes from the model's logits, before bias, penalties, top-k and similar limits, and temperature.
    `top`: the log probabilities of the likeliest tokens, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token, and its log probability if that was requested."""

    token: int
    logprob: Logprob | None = None


def score(logits: Floats, token: int, num_top: int) -> Logprob:
    """Return the log probability of `token` and of the `num_top` likeliest tokens, without drawing anything.

    Raise InternalError if the largest logit is not finite.
    """
    total = log_total(logits)
    top: tuple[Logprob, ...] = ()
    if num_top > 0:
        ids = ranked(logits, min(num_top, len(logits)))
        top = tuple(Logprob(int(i), float(logits[i]) - total) for i in ids)
    return Logprob(token, float(logits[token]) - total, top)


def log_total(logits: Floats, room: Floats | None = None) -> float:
    """Return the log of the sum of the exponentials of logits; raise InternalError if the largest is not finite.

    `room`: an array of the same shape, which is overwritten. With it, many rows take a third of the time.
    """
    peak = peak_of(logits)
    shifted = np.subtract(logits, peak, out=room)
    return float(peak) + math.log(total_of(np.exp(shifted, out=shifted)))


class Sampler:
    """The sampler of one sequence, with its state: random numbers, penalized tokens and the grammar.

    For each row of logits, call `sample`. If the drawn token is kept, call `accept` before the next `sample`. The
    logits are never changed.
    """

    def __init__(
        self,
        params: ResolvedSampling,
        num_vocab: int,
        *,
        constraint: TokenConstraint | None = None,
        num_logprobs: int | None = None,
        history: Sequence[int] = (),
    ) -> None:
        """`num_logprobs`: how many of the likeliest tokens to report with each drawn one; None: no log probabilities.

        `history`: the tokens before the first drawn one, for the penalties. Raise InvalidRequest if the logit bias
        names a token outside of the vocabulary.
        """
        self._params = params
        self._is_greedy = params.is_greedy
        self._num_vocab = num_vocab
        self._constraint = constraint
        self._num_logprobs = num_logprobs
        seed = None if params.seed is None else params.seed % 2**_SEED_BITS
        self._bits = np.random.PCG64(seed)
        self._random = np.random.Generator(self._bits)
        self._num_drawn = 0
        self._bias = _bias_of(params, num_vocab)
        self._penalties = _penalties_of(params, history) if params.has_penalties else None
        self._floor = np.float32(math.log(params.min_p)) if params.min_p > 0 else None
        # In float32, smaller temperatures give the same result.
        self._sharpness = np.float32(1.0 / max(params.temperature, 1e-20))
        has_own_logits = constraint is not None or self._bias is not None or self._penalties is not None
        is_ranked = 0 < params.top_k < min(MAX_RANKED + 1, num_vocab) and not self._is_greedy and not has_own_logits
        self.num_ranked = params.top_k if is_ranked else 0
        """How many of the likeliest tokens `draw_rows` needs; 0 if it cannot draw. A greedy sampler is faster alone."""
        floor = -math.inf if self._floor is None else float(self._floor)
        self.cuts = (params.top_k, params.top_p if params.top_p < 1 else math.inf, floor, float(self._sharpness))
        """For `draw_rows`: top-k, top-p, min-p as a difference of logits, and the factor of the temperature."""

    @property
    def is_repeatable(self) -> bool:
        """Whether the same logits give the same tokens every time."""
        return self._is_greedy or self._params.seed is not None

    @property
    def kind(self) -> str:
        """The temperature and constraint in words, such as "temperature 0.5, constrained".

        Samplers of one kind accept about the same share of draft tokens. The temperature is rounded up to a multiple of
        0.5.
        """
        freedom = "greedy" if self._is_greedy else f"temperature {math.ceil(2 * self._params.temperature) / 2:g}"
        return freedom if self._constraint is None else f"{freedom}, constrained"

    def sample(self, logits: Floats, drawn: int | None = None) -> Sampled:
        """Draw the next token, or take the one that `draw_rows` has drawn. Only the random state changes.

        Raise InternalError if no token can be drawn.
        """
        token = self._draw(self._modified(logits)) if drawn is None else drawn
        return Sampled(token, None if self._num_logprobs is None else score(logits, token, self._num_logprobs))

    def accept(self, token: int) -> None:
        """Record a token as the next one of the sequence."""
        if not self._is_greedy:
            self._bits.advance(_RANDOM_PER_TOKEN - self._num_drawn)
            self._num_drawn = 0
        if self._penalties is not None:
            self._penalties.extend((token,))
        if self._constraint is not None:
            self._constraint.accept(token)

    def constrain(self, make: Callable[[TokenConstraint | None], TokenConstraint]) -> None:
        """Replace the constraint by `make(constraint)`, for example to wrap it. `make` gets None if there is none."""
        self.num_ranked = 0
        self._constraint = make(self._constraint)

    def forced(self) -> Sequence[int]:
        """Return the tokens that the grammar forces to come next, whatever the logits are; empty if there are none."""
        return () if self._constraint is None else self._constraint.forced()

    def distribution(self, logits: Floats) -> tuple[Indices, NDArray[np.float64]]:
        """Return the tokens that can be drawn next, ascending, and the probability of each."""
        values = self._modified(logits)
        if self._constraint is not None and not self._constraint.allows(best := _greedy(values)):
            token = self._constraint.instead_of(best)
            if token is not None:
                return np.array([token]), np.ones(1)
        candidates = self._cut(self._allowed(values))
        if candidates.weights is not None:
            candidates = candidates.select(nucleus(candidates.weights, candidates.target))
        candidates = candidates.select(np.flatnonzero(candidates.values >= candidates.lowest))
        weights = self._temper(candidates)
        drawn = np.flatnonzero(weights)
        ids = drawn if candidates.ids is None else candidates.ids[drawn]
        probs = weights[drawn].astype(np.float64)
        order = np.argsort(ids)
        return ids[order], probs[order] / probs.sum()

    def _draw(self, values: Floats) -> int:
        """Draw a token from the same distribution as `distribution` returns.

        Shortcuts check single tokens instead of computing the grammar's mask of all tokens. Why they are exact: let q
        be the distribution without the grammar, and r the one with it.
        1. If q has a single token, and it is allowed, then r has the same single token.
        2. Let there be no top-k and no top-p, and let the likeliest token be allowed. Then min-p cuts at the same logit
           with the grammar, so r is q restricted to the allowed tokens. Draw a token from q. If it is refused, draw
           again from r. The probability of an allowed token t is then q(t) + q(refused) r(t) = r(t).
        If the likeliest token is refused, the grammar may name a token to draw instead.
        """
        if self._constraint is None:
            if self._is_greedy:
                return _greedy(values)
            if self.num_ranked:
                return self._pick(self._cut_ranked(ranked_of(values, self.num_ranked)))
            return self._pick(self._cut(all_of(values)))
        best = _greedy(values)
        if self._constraint.allows(best):
            if self._is_greedy:
                return best
            candidates = self._cut(all_of(values))
            if len(candidates.values) == 1:
                return best
            if not self._cuts_by_rank:
                token = self._pick(candidates)
                if token == best or self._constraint.allows(token):
                    return token
        elif (other := self._constraint.instead_of(best)) is not None:
            return other
        return self._pick(self._cut(self._allowed(values)))

    @property
    def _cuts_by_rank(self) -> bool:
        return 0 < self._params.top_k < self._num_vocab or self._params.top_p < 1

    def _pick(self, candidates: Candidates) -> int:
        """Draw one of the candidates, within the cuts that are still to be made.

        Making these cuts first would be slow. Instead, a token is drawn from all candidates and checked against the
        cuts. If a cut excludes the token, all candidates that are now known to be excluded get the weight 0, and a
        token is drawn again.
        """
        weights, values = candidates.weights, candidates.values
        if candidates.is_cut and len(values) <= MAX_RANKED:
            index = self._pick_few(values.tolist(), float(candidates.peak))
            return index if candidates.ids is None else int(candidates.ids[index])
        tempered, sums = self._temper(candidates), candidates.sums
        while True:
            index = index_at(tempered, self.next_random(), sums)
            sums = None
            if candidates.mask is not None and not candidates.mask[index]:
                tempered = np.multiply(tempered, candidates.mask)
                continue
            if values[index] < candidates.lowest:
                tempered = np.multiply(tempered, values >= candidates.lowest)
                continue
            if weights is None or weights[index] > candidates.rest:  # even all other weights miss the target
                break
            ahead = ahead_of(weights, index)
            if total_within(weights, ahead) < candidates.target:
                break
            tempered = np.multiply(tempered, ahead)
        return index if candidates.ids is None else int(candidates.ids[index])

    def next_random(self) -> float:
        """Return a random number in [0, 1), with which one token is drawn; 0 if the sampler is greedy."""
        if self._is_greedy:
            return 0.0
        self._num_drawn += 1
        return self._random.random()

    def _pick_few(self, values: list[float], peak: float) -> int:
        """Draw one of a few candidates by their logits `values`, and return its index. `peak`: the largest logit.

        A Python loop is faster here than calls of numpy, since the processor's caches are cold after a step.
        """
        sharpness = float(self._sharpness)
        running = list(accumulate(math.exp((value - peak) * sharpness) for value in values))
        index = bisect_right(running, self.next_random() * running[-1])
        return min(index, bisect_left(running, running[-1]))  # never a candidate of weight 0 at the end

    def _modified(self, logits: Floats) -> Floats:
        """Return the logits after bias and penalties. If there are none, return `logits` itself, else a buffer."""
        if len(logits) != self._num_vocab:
            raise InternalError(f"{len(logits)} logits came for a vocabulary of {self._num_vocab}")
        if self._bias is None and self._penalties is None:
            return logits
        values = _row(0, self._num_vocab)
        np.copyto(values, logits)
        if self._bias is not None:
            tokens, biases = self._bias
            values[tokens] += biases
        if self._penalties is not None:
            self._penalties.apply(values)
        return values

    def _allowed(self, values: Floats) -> Candidates:
        """Return the tokens that the grammar allows, as candidates. Raise InternalError if there are none."""
        mask = None if self._constraint is None else self._constraint.mask(_greedy(values))
        if mask is None:
            return all_of(values)
        if not is_sparse(mask) and mask[values.argmax()]:
            return all_of(values, mask)
        ids = np.flatnonzero(mask)
        if not len(ids):
            raise InternalError("the grammar allows no token at all, not even the end")
        values = values.take(ids)
        return Candidates(ids, values, peak_of(values))

    def _cut(self, candidates: Candidates) -> Candidates:
        """Apply top-k, then top-p and min-p.

        If top-k removes tokens and leaves at most MAX_RANKED, or if only one token is possible, all cuts are made here.
        Otherwise the limits of top-p and min-p are stored in the candidates, and `_pick` applies them. Top-k comes
        first, because the probabilities that top-p adds up are those among the tokens that top-k keeps.
        """
        params, peak = self._params, candidates.peak
        if self._is_greedy:
            return candidates.select(np.array([candidates.values.argmax()]))
        if 0 < params.top_k < len(candidates.values):
            candidates = likeliest(candidates, params.top_k)
            if params.top_k <= MAX_RANKED:
                return self._cut_ranked(candidates)
        ids, values, mask, found = candidates.ids, candidates.values, candidates.mask, None
        lowest = -math.inf if self._floor is None else float(peak + self._floor)
        if self._floor is not None:
            found = few_at_least(values, lowest)
        if params.top_p < 1:
            # Without the subtraction, the weights are as exact, unless they overflow or vanish.
            is_direct = params.temperature == 1.0 and abs(peak) < _MAX_DIRECT
            shifted = values if is_direct else np.subtract(values, peak, out=_row(2, len(values)))
            weights = np.exp(shifted, out=_row(1, len(values)))
            if mask is not None:
                np.multiply(weights, mask, out=weights)
            sums = block_sums(weights)
            total = float(sums.sum())
            target = params.top_p * total
            if target <= (math.exp(peak) if is_direct else 1.0):  # the peak alone reaches the target
                return candidates.select(np.array([values.argmax()]))
            is_final = params.temperature == 1.0
            if not is_final and found is None:
                found = around_nucleus(weights, total, params.top_p)
            own_sums = sums if is_final else None
            candidates = Candidates(ids, values, peak, mask, lowest, shifted, weights, target, total - target, own_sums)
        elif self._floor is not None:
            candidates = Candidates(ids, values, peak, mask, lowest)
        return candidates if found is None else candidates.select(found)

    def _cut_ranked(self, candidates: Candidates) -> Candidates:
        """Return the candidates after the cuts of top-p and min-p. The likeliest candidate must come first."""
        values: list[float] = candidates.values.tolist()
        peak, length = values[0], len(values)
        if self._floor is not None:
            lowest = float(candidates.peak + self._floor)  # rounded as llama.cpp does
            length = sum(value >= lowest for value in values)
        if self._params.top_p < 1:
            running = list(accumulate(math.exp(value - peak) for value in values))
            length = min(length, bisect_left(running, self._params.top_p * running[-1]) + 1)
        return candidates.truncated_to(length)

    def _temper(self, candidates: Candidates) -> Floats:
        """Return the candidates' weights at the temperature. They may overwrite the buffer of `candidates.shifted`."""
        if self._params.temperature == 1.0 and candidates.weights is not None:
            return candidates.weights
        tempered = candidates.shifted
        if tempered is None:
            tempered = np.subtract(candidates.values, candidates.peak, out=_row(2, len(candidates.values)))
        np.multiply(tempered, self._sharpness, out=tempered)
        return np.exp(tempered, out=tempered)


# Rows that all samplers use in turn, so that they take memory once and stay in the processor's caches. Only one thread
# samples. 0: modified logits. 1: their weights. 2: logits minus the peak, and later the weights at the temperature.
# 3: several rows of logits, one behind the other (`taken_rows`).
_ROWS: dict[int, Floats] = {}


def _row(index: int, length: int) -> Floats:
    """Return a row of this length. What it had before is lost."""
    row = _ROWS.get(index)
    if row is None or len(row) < length:
        row = _ROWS[index] = np.empty(length, np.float32)
    return row[:length]


def taken_rows(rows: Floats, places: Sequence[int]) -> Floats:
    """Return the rows of logits at these places, in memory that the next call uses again.

    With new memory, which the system clears first, 16 rows of 262,144 logits took 5.1 ms instead of 2.4.
    """
    taken = _row(3, len(places) * rows.shape[1]).reshape(len(places), -1)
    return np.take(rows, places, axis=0, out=taken, mode="clip")  # the default mode copies twice


def draw_rows(samplers: Sequence[Sampler], rows: Floats) -> list[int | None]:
    """Draw the next token of each sampler from its row of logits, with one call of numpy for all rows.

    The token is the one that `Sampler.sample` would draw; None if it was not drawn here. That is so if a sampler is
    greedy, or has a grammar, bias, penalties or no small top-k, and for all samplers if only one is left, or if the
    largest logit of a row is not finite. `rows` has the shape (num_rows, num_vocab).
    """
    own = [place for place, sampler in enumerate(samplers) if sampler.num_ranked]
    tokens: list[int | None] = [None] * len(samplers)
    if len(own) < 2:
        return tokens
    k = max(samplers[place].num_ranked for place in own)
    found = ranked_rows(rows if len(own) == len(samplers) else rows[own], k)
    if found is None:
        return tokens
    ids, values = found
    drawing, columns, peaks = [samplers[place] for place in own], np.arange(k), values[:, :1]
    top_k, top_p, floor, sharpness = np.array([sampler.cuts for sampler in drawing]).T[:, :, np.newaxis]
    above = values.astype(np.float64) - peaks
    running = np.where(columns < top_k, np.exp(above), 0.0).cumsum(axis=1)
    kept = (columns < top_k) & (values >= peaks + floor.astype(np.float32))
    kept[:, 1:] &= running[:, :-1] < top_p * running[:, -1:]
    running = np.where(kept, np.exp(above * sharpness), 0.0).cumsum(axis=1)
    targets = np.array([[sampler.next_random()] for sampler in drawing]) * running[:, -1:]
    chosen = np.minimum((running <= targets).sum(axis=1), (running < running[:, -1:]).sum(axis=1))
    for place, token in zip(own, ids[np.arange(len(own)), chosen].tolist(), strict=True):
        tokens[place] = token
    return tokens


def _greedy(values: Floats) -> int:
    best = int(values.argmax())  # the index of a NaN, if there is one
    if not math.isfinite(values[best]):
        raise no_maximum(values)
    return best


def _bias_of(params: ResolvedSampling, num_vocab: int) -> tuple[Indices, Floats] | None:
    biases: dict[int, float] = {}
    for token, bias in params.logit_bias:
        if not 0 <= token < num_vocab:
            raise InvalidRequest(
                f"logit_bias names token {token}; the vocabulary ends at {num_vocab - 1}", param="logit_bias"
            )
        biases[token] = biases.get(token, 0.0) + bias
    if not any(biases.values()):
        return None
    return np.fromiter(biases.keys(), np.intp), np.fromiter(biases.values(), np.float32)


def _penalties_of(params: ResolvedSampling, history: Sequence[int]) -> Penalties:
    return Penalties(
        params.repeat_last_n, params.repeat_penalty, params.presence_penalty, params.frequency_penalty, history
    )
