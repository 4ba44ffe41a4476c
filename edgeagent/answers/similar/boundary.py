"""How similar two questions must be so that the answer to one may answer the other: learned, with a bound on errors.

The idea is that of vCache (Schroeder et al., 2025, "vCache: Verified Semantic Prompt Caching"): each kept answer
(entry) has a decision boundary of its own, a logistic function of the similarity. It is learned online from questions
that the model answered too, and an answer is reused only where the uncertainty about that function leaves at most the
owner's share of wrong answers. `Memory` has one Boundary for each group of entries that are answered in the same way.

**Model.** A question has the similarity s, a cosine, to its nearest entry e. The entry's answer is right with

    p(s; e) = (1 - lapse) / (1 + exp(-steepness (x(s) - threshold - shift_e))), x(s) = -ln(1 - s + 0.001)

x is the logarithm of a closeness: 1 - s is half the squared distance of both vectors. So the errors vanish like a power
of the distance. A logistic function of s itself expects errors near s = 1 that are not there.

`threshold`, `steepness` and `lapse` belong to all entries of a group. `lapse` is the share of questions whose vectors
do not show the difference, at any similarity. `shift_e` is the entry's own, one of SHIFTS, drawn with one of the shares
in SPREADS; the largest shift is an entry whose answer is never right for another question. Entries that turned out to
have the same answer have one shift together (see `begin`). vCache estimates each entry alone, so it needs many
questions for each. Here the shares and the three parameters are estimated from all entries together.

**Rule.** All parameters have a prior on a grid, so the posterior is exact on that grid. With c_i = 1 if the answer to
question i was right, and theta for the three parameters and the shares:

    P(theta | D) ~ prior(theta) prod_e sum_k share_k prod_{i of e} p(s_i; theta, k)^c_i (1 - p(s_i; theta, k))^(1 - c_i)
    P(wrong | s, e, D) = sum_theta sum_k P(theta, k | D, e) (1 - p(s; theta, k))

An entry's answer is reused if the mean of P(wrong) over it and all answers that were reused before is at most
`max_error`, and its own at most twice that, or 2 %. If each had to be below the bound by itself, half of it would be
unused: at 0.5 %, the mean was 0.21 %. If checks found more wrong answers than were expected, those count. What surer
answers leave for others has a limit: see memory.py. vCache bounds the same quantity by a confidence limit of the
parameters, plus the probability that the limit is exceeded. It then reuses an answer with the probability that keeps
the wrong ones below the bound among all questions. Here the bound holds among the reused answers, which is the stricter
promise.

**What the bound means.** E[wrong answers reused] <= max_error E[answers reused], if

1. whether an answer is right depends on the past only through similarity and entry: the questions of an entry are
   exchangeable;
2. the true function is near one of the grid, and the prior gives that one enough weight;
3. the judge that said c_i was right. Wrong means: different from what the model would have said.

None of them can be proved for a real stream of questions. So a share of the reused answers is checked, and
`measured.ErrorTest` ends the reuse if what was measured contradicts the bound.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_THRESHOLDS = np.linspace(0.6, 4.0, 18)  # of closeness: similarities of 0.45 to 0.98
_STEEPNESS = np.array([2.0, 3.0, 5.0, 8.0])
_LAPSES = np.array([0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.6])
SHIFTS = np.array([-0.3, 0.0, 0.3, 0.7, 10.0])
SPREADS = np.array(
    [
        [0.0, 0.9995, 0.0, 0.0, 0.0005],
        [0.10, 0.75, 0.10, 0.0495, 0.0005],
        [0.20, 0.55, 0.15, 0.0995, 0.0005],
        [0.05, 0.90, 0.03, 0.01, 0.01],
        [0.20, 0.50, 0.15, 0.10, 0.05],
        [0.20, 0.30, 0.20, 0.15, 0.15],
        [0.05, 0.40, 0.10, 0.05, 0.40],
    ]
)
# Equal entries are likelier. In the second and third row some answers need more similar questions than others, but
# hardly any is never right. Without these two, such differences were ascribed to all entries, as errors that vanish
# slowly with the distance.
_SPREAD_PRIOR = np.array([8.0, 4.0, 2.0, 4.0, 2.0, 1.0, 1.0])
# A model that gives many texts an answer of their own is likelier, until comparisons show that it does not. With equal
# weights, 14 right comparisons in a row were enough for a bound of 3 %, and where one of ten is wrong, 23 % of the
# streams begin with 14 right ones.
_LAPSE_PRIOR = np.where(_LAPSES >= 0.1, 30.0, 1.0)
# An entry was once a question. So if a share of the entries is never right for another question, about the same share
# of questions is answered by no entry: the lapse is at least half of it. Without this, wrong answers were ascribed to
# a few entries, and the others' answers were expected to be right.
_PRIOR = _SPREAD_PRIOR[:, None] * _LAPSE_PRIOR * np.where(SPREADS[:, -1:] / 2 <= _LAPSES, 1.0, 1e-5)
MIN_SIMILARITY = 0.7
"""Below it, two questions are not compared at all: what was learned there would say little about more similar ones."""

MAX_OBSERVATIONS = 32  # of an entry
_MAX_LIKELIHOODS = 64  # that are kept: 0.6 ms each for 32 observations, 23 KB
_MEMORY = 4000
"""After this many observations an earlier one counts 1/e of a new one, so that the boundary follows what changes."""


class Observation(NamedTuple):
    """A question whose nearest entry was compared with the model's own answer."""

    similarity: float
    is_right: bool


class Boundary:
    """What is known of a set of entries. It has no clock and no randomness."""

    def __init__(self) -> None:
        shape = (len(SPREADS), len(_THRESHOLDS), len(_STEEPNESS), len(_LAPSES))
        self._prior = np.broadcast_to(np.log(_PRIOR / _PRIOR.sum())[:, None, None, :], shape)
        self._evidence: Values = np.zeros(shape)
        self._weights: Values | None = None  # of the evidence; None until it is asked for
        self._entries: dict[bytes, deque[Observation]] = {}
        self.num_observed = 0
        self.num_wrong = 0

    def error(self, entry: bytes, similarity: float) -> float:
        """Return the probability that the entry's answer is wrong for a question of this similarity, 0 to 1."""
        likelihood = _likelihood(self.observations(entry))
        # The probability of each shift and the parameters, given the entry's observations and all others'.
        joint = _over(SPREADS.T, self._posterior / _over(SPREADS, likelihood)) * likelihood
        return float(1.0 - (joint * _right(similarity)).sum())

    @property
    def least_error(self) -> float:
        """The probability of a wrong answer that no entry's answer is below, however similar a question is, 0 to 1."""
        # An entry's observations are among those of all, so they move no weight between the lapses.
        return float((self._posterior * _LAPSES).sum())

    def observe(self, entry: bytes, similarity: float, *, is_right: bool) -> None:
        """Learn whether the entry's answer was right for a question of this similarity."""
        known = self._entries.setdefault(entry, deque(maxlen=MAX_OBSERVATIONS))
        before = _marginal(tuple(known))
        made = Observation(similarity, is_right)
        after = _marginal((*known, made))
        self._evidence = (1.0 - 1.0 / _MEMORY) * self._evidence + after - before
        self._weights = None
        known.append(made)
        self.num_observed += 1
        self.num_wrong += not is_right

    def begin(self, entry: bytes, first: Observation, other: bytes) -> None:
        """Record how the question of a new entry compared with another entry. `observe` has counted that already.

        If the other entry's answer was right, both have the same answer, and share their observations from then on.
        """
        known = self._entries.get(other) if first.is_right else None
        self._entries[entry] = deque([first], maxlen=MAX_OBSERVATIONS) if known is None else known

    def forget(self, entry: bytes) -> None:
        """Forget an entry. What its questions taught about all entries stays."""
        self._entries.pop(entry, None)

    def observations(self, entry: bytes) -> tuple[Observation, ...]:
        """Return what was observed of an entry, the earliest first."""
        return tuple(self._entries.get(entry, ()))

    def state(self) -> dict[str, bytes]:
        """Return what all entries taught, for `restore`."""
        counts = np.array([self.num_observed, self.num_wrong], "<f8")
        return {"evidence": self._evidence.astype("<f8").tobytes(), "counts": counts.tobytes()}

    def restore(self, state: dict[str, bytes], entries: Mapping[tuple[bytes, ...], Sequence[Observation]]) -> bool:
        """Continue from a `state` and the observations of entries that have the same answer.

        Return False, without a change, if it does not fit.
        """
        evidence = np.frombuffer(state.get("evidence", b""), "<f8")
        counts = np.frombuffer(state.get("counts", b""), "<f8")
        if evidence.size != self._evidence.size or counts.size != 2 or not np.isfinite(evidence).all():
            return False
        self._evidence = evidence.reshape(self._evidence.shape).astype(np.float64)
        self._weights = None
        self.num_observed, self.num_wrong = map(int, counts)
        self._entries = {}
        for keys, known in entries.items():
            shared = deque(known, maxlen=MAX_OBSERVATIONS)
            self._entries |= {key: shared for key in keys if known}
        return True

    @property
    def _posterior(self) -> Values:
        """The probability of each spread and the parameters. A look-up asks for it twice."""
        if self._weights is None:
            total = self._prior + self._evidence
            weights = np.exp(total - total.max())
            self._weights = np.asarray(weights / weights.sum())
        return self._weights


def _right(similarity: float) -> Values:
    """Return p for each shift, threshold, steepness and lapse."""
    return np.asarray((1.0 - _LAPSES) * _without_lapses(similarity)[..., None])


def _without_lapses(similarity: float) -> Values:
    """Return p for each shift, threshold and steepness, if there were no lapses."""
    distance = _closeness(similarity) - _THRESHOLDS[None, :, None] - SHIFTS[:, None, None]
    return np.asarray(1.0 / (1.0 + np.exp(-_STEEPNESS * distance)))


def _closeness(similarity: float) -> float:
    """Return x of the module's docstring. Rounded numbers of a vector make 0.001 of a similarity meaningless."""
    return -math.log(max(1.0 - similarity, 0.0) + 0.001)


@lru_cache(_MAX_LIKELIHOODS)
def _likelihood(observations: tuple[Observation, ...]) -> Values:
    """Return the probability of an entry's observations for each shift, threshold, steepness and lapse."""
    right = [_without_lapses(each.similarity) for each in observations if each.is_right]
    product = math.prod(right, start=np.ones((len(SHIFTS), len(_THRESHOLDS), len(_STEEPNESS))))
    likelihood = product[..., None] * (1.0 - _LAPSES) ** len(right)
    for each in observations:
        if not each.is_right:
            likelihood *= 1.0 - _right(each.similarity)
    return np.maximum(likelihood, 1e-300)


def _marginal(observations: tuple[Observation, ...]) -> Values:
    """Return the logarithm of the observations' probability, over the shifts, for each spread and the parameters."""
    return np.asarray(np.log(_over(SPREADS, _likelihood(observations))))


def _over(shares: Values, values: Values) -> Values:
    """Return the sums over the first axis of `values`, weighted with each row of `shares`."""
    return np.asarray(np.tensordot(shares, values, axes=1))
