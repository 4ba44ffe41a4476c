"""Draws one sequence's next token from its logits, as llama.cpp's default sampler chain would: logit bias, penalties,
top-k, top-p, min-p, temperature. It does not know where logits come from or what a token means.

A grammar's refused tokens count as if their logits were -inf before all of that. Shortcuts save the mask where it cannot
change the distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.constraint import TokenConstraint
from edgeagent.engine.penalties import Penalties
from edgeagent.engine.truncation import Floats, Indices, index_at, largest, nucleus
from edgeagent.errors import InternalError, InvalidRequest
from edgeagent.types import SamplingParams

_SEED_BITS = 64


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling parameters with nothing left to default, in range. top_k 0 and repeat_last_n -1: no limit."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether recent tokens change the logits."""
        factors = (self.repeat_penalty - 1.0, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n != 0 and any(factors)

    @property
    def is_greedy(self) -> bool:
        """Whether only the likeliest token can be drawn."""
        return self.temperature == 0 or self.top_k == 1 or self.top_p == 0


_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_k": (-1, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repeat_penalty": (0.01, 100.0),
    "repeat_last_n": (-1, 2**31 - 1),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
}


def resolve(params: SamplingParams, defaults: SamplingParams) -> ResolvedSampling:
    """Fill what `params` leaves open from `defaults`, then from llama.cpp's own; raise InvalidRequest naming a bad field."""
    values: dict[str, float] = {}
    for field, (low, high) in _RANGES.items():
        asked = getattr(params, field)
        value = getattr(defaults, field) if asked is None else asked
        if value is None:
            continue
        if not low <= value <= high:
            raise InvalidRequest(f"{field} is {value}; it must lie between {low:g} and {high:g}", param=field)
        values[field] = value
    for token, bias in params.logit_bias:
        if not -100.0 <= bias <= 100.0:
            raise InvalidRequest(
                f"logit_bias of token {token} is {bias}; it must lie between -100 and 100", param="logit_bias"
            )
    seed = defaults.seed if params.seed is None else params.seed
    resolved = ResolvedSampling(**values, seed=seed, logit_bias=params.logit_bias or defaults.logit_bias)  # type: ignore[arg-type]
    return resolved


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's natural-log probability under the unmodified logits, and its likeliest rivals', likeliest first."""

    token: int
    logprob: float
    top: tuple[Logprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampled:
    """A drawn token; `logprob` where it was asked for."""

    token: int
    logprob: Logprob | None = None


def score(logits: Floats, token: int, num_top: int) -> Logprob:
    """Return the log probability of `token` and of the `num_top` likeliest tokens, without drawing anything."""
    peak = _peak_of(logits)
    log_total = float(peak) + math.log(float(np.exp(logits - peak).sum()))
    top: tuple[Logprob, ...] = ()
    if num_top > 0:
        ids = largest(logits, num_top) if num_top < len(logits) else np.arange(len(logits))
        ids = ids[np.argsort(-logits[ids], kind="stable")]
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
        self._num_vocab = num_vocab
        self._constraint = constraint
        self._num_logprobs = num_logprobs
        seed = None if params.seed is None else params.seed % 2**_SEED_BITS
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._bias = _bias_of(params, num_vocab)
        self._penalties = _penalties_of(params, history) if params.has_penalties else None
        self._floor = np.float32(math.log(params.min_p)) if params.min_p > 0 else None
        # room for one row each: the modified logits, and their distances from the peak or weights
        self._room: tuple[Floats, Floats] | None = None

    def sample(self, logits: Floats) -> Sampled:
        """Draw the next token; the state stays as it is, but for the random numbers. Raise InternalError on NaN."""
        token = self._draw(self._modified(logits))
        return Sampled(token, None if self._num_logprobs is None else score(logits, token, self._num_logprobs))

    def accept(self, token: int) -> None:
        """Take a token as the sequence's next one."""
        if self._penalties is not None:
            self._penalties.extend((token,))
        if self._constraint is not None:
            self._constraint.accept(token)

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next whatever the logits; accept each one, and no logits are needed."""
        return () if self._constraint is None else self._constraint.forced()

    def distribution(self, logits: Floats) -> tuple[Indices, NDArray[np.float64]]:
        """Return the tokens that can be drawn next, ascending, and the probability of each."""
        modified = self._modified(logits)
        ids, values = self._allowed(modified)
        if self._params.is_greedy:
            best = _greedy(values)
            return np.array([best if ids is None else ids[best]]), np.ones(1)
        ids, weights = self._weigh(ids, values)
        drawn = np.flatnonzero(weights)
        ids = drawn if ids is None else ids[drawn]
        probs = weights[drawn].astype(np.float64)
        order = np.argsort(ids)
        return ids[order], probs[order] / probs.sum()
