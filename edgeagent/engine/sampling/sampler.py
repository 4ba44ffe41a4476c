"""Draws one sequence's next token from its logits, as llama.cpp's default sampler chain would: logit bias, penalties,
top-k, top-p, min-p, temperature. It does not know where logits come from or what a token means.

Tokens that a grammar refuses have logits of -inf before all of these steps. Shortcuts avoid computing its mask where
that cannot change the distribution.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.sampling.candidates import MAX_RANKED, Candidates, all_of, likeliest, peak_of
from edgeagent.engine.sampling.constraint import TokenConstraint
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.penalties import Penalties
from edgeagent.engine.sampling.truncation import (
    Floats,
    Indices,
    ahead_of,
    around_nucleus,
    few_at_least,
    index_at,
    is_sparse,
    nucleus,
    ranked,
    total_of,
)
from edgeagent.errors import InternalError, InvalidRequest

_SEED_BITS = 64
# Random numbers reserved for each token, which uses one or a few. So the first one depends only on the token's position
# in the output, and a seeded output continues identically after an interruption. Odd, since the low bits of PCG64's
# state would not change over a power of two (the golden ratio, as in numpy's `jumped`).
_RANDOM_PER_TOKEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's natural-log probability under the unmodified logits. `top`: those of the likeliest tokens, in order."""

    token: int
    logprob: float
    top: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token; `logprob` if requested."""

    token: int
    logprob: Logprob | None = None


def score(logits: Floats, token: int, num_top: int) -> Logprob:
    """Return the log probability of `token` and of the `num_top` likeliest tokens, without drawing anything."""
    peak = peak_of(logits)
    log_total = float(peak) + math.log(total_of(np.exp(logits - peak)))
    top: tuple[Logprob, ...] = ()
    if num_top > 0:
        ids = ranked(logits, min(num_top, len(logits)))
        top = tuple(Logprob(int(i), float(logits[i]) - log_total) for i in ids)
    return Logprob(token, float(logits[token]) - log_total, top)


class Sampler:
    """One sequence's sampling state: its random numbers, the tokens that are penalized, its grammar.

    Call `sample` for each row of logits in order and `accept` with each token that is kept before the next one. The
    logits passed in are never written to.
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
        # temperatures below this are all the same to float32
        self._sharpness = np.float32(1.0 / max(params.temperature, 1e-20))
        # buffers: 0 modified logits, 1 their weights, 2 logits minus the peak, later the weights under the temperature
        self._rows: dict[int, Floats] = {}

    @property
    def is_repeatable(self) -> bool:
        """Whether the same logits give the same tokens every time."""
        return self._is_greedy or self._params.seed is not None

    @property
    def kind(self) -> str:
        """A description of how freely it draws. Sequences of one kind accept drafts about equally often."""
        freedom = "greedy" if self._is_greedy else f"temperature {math.ceil(2 * self._params.temperature) / 2:g}"
        return freedom if self._constraint is None else f"{freedom}, constrained"

    def sample(self, logits: Floats) -> Sampled:
        """Draw the next token; only the random numbers' state changes. Raise InternalError on NaN."""
        token = self._draw(self._modified(logits))
        return Sampled(token, None if self._num_logprobs is None else score(logits, token, self._num_logprobs))

    def accept(self, token: int) -> None:
        """Take a token as the sequence's next one."""
        if not self._is_greedy:
            self._bits.advance(_RANDOM_PER_TOKEN - self._num_drawn)
            self._num_drawn = 0
        if self._penalties is not None:
            self._penalties.extend((token,))
        if self._constraint is not None:
            self._constraint.accept(token)

    def constrain(self, make: Callable[[TokenConstraint | None], TokenConstraint]) -> None:
        """Wrap the constraint in another one."""
        self._constraint = make(self._constraint)

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next for any logits; the caller accepts each, without computing logits."""
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
            candidates = candidates.taken(nucleus(candidates.weights, candidates.target))
        candidates = candidates.taken(np.flatnonzero(candidates.values >= candidates.lowest))
        weights = self._temper(candidates)
        drawn = np.flatnonzero(weights)
        ids = drawn if candidates.ids is None else candidates.ids[drawn]
        probs = weights[drawn].astype(np.float64)
        order = np.argsort(ids)
        return ids[order], probs[order] / probs.sum()

    def _draw(self, values: Floats) -> int:
        """Draw from `distribution`, computing the grammar's whole mask only if checking single tokens is not enough.

        Why the shortcuts are exact: let q be the distribution without the grammar, r with it.
        1. If q is one token and it is allowed, its share only grows without the refused tokens, so r is the same token.
        2. If there is no top-k and no top-p, and the likeliest token (by which min-p measures) is allowed, r is q
           restricted to the allowed tokens. A token that is drawn from q and, if refused, drawn again from r has the
           probability q(t) + q(refused) r(t) = r(t).
        If the likeliest token is refused, the grammar may name its replacement.
        """
        if self._constraint is None:
            return _greedy(values) if self._is_greedy else self._pick(self._cut(all_of(values)))
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
        """Draw one of the candidates.

        If there are many, the cuts are not made first. A token is drawn from all candidates, and accepted if it lies
        within the cuts. If not, all less likely tokens lie outside too, and the next draw is from the likelier ones.
        """
        weights, values = candidates.weights, candidates.values
        if candidates.is_cut and len(values) <= MAX_RANKED:
            index = self._pick_few(values.tolist(), float(candidates.peak))
            return index if candidates.ids is None else int(candidates.ids[index])
        tempered = self._temper(candidates)
        while True:
            index = index_at(tempered, self._random.random())
            self._num_drawn += 1
            if candidates.mask is not None and not candidates.mask[index]:
                tempered = np.multiply(tempered, candidates.mask)
                continue
            if values[index] < candidates.lowest:
                tempered = np.multiply(tempered, values >= candidates.lowest)
                continue
            if weights is None:
                break
            ahead = ahead_of(weights, index)
            if total_of(np.multiply(weights, ahead)) < candidates.target:
                break
            tempered = np.multiply(tempered, ahead)
        return index if candidates.ids is None else int(candidates.ids[index])

    def _pick_few(self, values: list[float], peak: float) -> int:
        """Draw one of a few logits and return its index. A Python loop is faster than numpy calls with cold caches."""
        self._num_drawn += 1
        sharpness = float(self._sharpness)
        running = list(accumulate(math.exp((value - peak) * sharpness) for value in values))
        index = bisect_right(running, self._random.random() * running[-1])
        return min(index, bisect_left(running, running[-1]))  # never a trailing one of weight 0

    def _modified(self, logits: Floats) -> Floats:
        """Return the logits with bias and penalties. If there are any, the result is a buffer of this sampler."""
        if len(logits) != self._num_vocab:
            raise InternalError(f"{len(logits)} logits came for a vocabulary of {self._num_vocab}")
        if self._bias is None and self._penalties is None:
            return logits
        values = self._row(0, self._num_vocab)
        np.copyto(values, logits)
        if self._bias is not None:
            tokens, biases = self._bias
            values[tokens] += biases
        if self._penalties is not None:
            self._penalties.apply(values)
        return values

    def _allowed(self, values: Floats) -> Candidates:
        """Return the tokens that the grammar allows."""
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
        """Return the candidates after top-k, and after the other cuts if those leave few tokens.

        If only one token is possible, return that one. All three cuts keep the likeliest tokens down to some rank, so
        they may be made in any order, as long as top-p takes its share of the sum over top-k's tokens.
        """
        params, peak = self._params, candidates.peak
        if self._is_greedy:
            return candidates.taken(np.array([candidates.values.argmax()]))
        if 0 < params.top_k < len(candidates.values):
            candidates = likeliest(candidates, params.top_k)
            if params.top_k <= MAX_RANKED:
                return self._cut_ranked(candidates)
        found = None
        if self._floor is not None:
            lowest = float(peak + self._floor)
            candidates = dataclasses.replace(candidates, lowest=lowest)
            found = few_at_least(candidates.values, lowest)
        if params.top_p < 1:
            num = len(candidates.values)
            shifted = np.subtract(candidates.values, peak, out=self._row(2, num))
            weights = np.exp(shifted, out=self._row(1, num))
            if candidates.mask is not None:
                np.multiply(weights, candidates.mask, out=weights)
            total = total_of(weights)
            target = params.top_p * total
            if target <= 1.0:  # the peak's own weight
                return candidates.taken(np.array([candidates.values.argmax()]))
            candidates = dataclasses.replace(candidates, shifted=shifted, weights=weights, target=target)
            if found is None:
                found = around_nucleus(weights, total, params.top_p)
        return candidates if found is None else candidates.taken(found)

    def _cut_ranked(self, candidates: Candidates) -> Candidates:
        """Return the result of `_cut` for candidates that are already cut by top-k, likeliest first."""
        values: list[float] = candidates.values.tolist()
        peak, length = values[0], len(values)
        if self._floor is not None:
            lowest = float(candidates.peak + self._floor)  # rounded as llama.cpp does
            length = sum(value >= lowest for value in values)
        if self._params.top_p < 1:
            running = list(accumulate(math.exp(value - peak) for value in values))
            length = min(length, bisect_left(running, self._params.top_p * running[-1]) + 1)
        return candidates.first(length)

    def _temper(self, candidates: Candidates) -> Floats:
        """Return the candidates' weights under the temperature, in the buffer of the logits minus the peak."""
        if self._params.temperature == 1.0 and candidates.weights is not None:
            return candidates.weights
        tempered = candidates.shifted
        if tempered is None:
            tempered = np.subtract(candidates.values, candidates.peak, out=self._row(2, len(candidates.values)))
        np.multiply(tempered, self._sharpness, out=tempered)
        return np.exp(tempered, out=tempered)

    def _row(self, index: int, length: int) -> Floats:
        row = self._rows.get(index)
        if row is None:
            row = self._rows[index] = np.empty(self._num_vocab, np.float32)
        return row[:length]


def _greedy(values: Floats) -> int:
    best = int(values.argmax())  # the index of a NaN, if there is one
    if not math.isfinite(values[best]):
        raise InternalError(f"no token can be drawn: the largest logit is {values[best]}")
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
