"""What the cache knows of kept questions, and what follows from it for another one. No I/O, no clock.

It joins guards, index, boundary and the test of the measured error. `SimilarAnswers` embeds, judges and stores for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeagent import metrics
from edgeagent.answers.similar.boundary import MIN_SIMILARITY, Boundary, Observation
from edgeagent.answers.similar.events import Compared
from edgeagent.answers.similar.guards import refusal, refusal_alone
from edgeagent.answers.similar.index import Index, Near, Vector
from edgeagent.answers.similar.measured import MIN_CHECKED, ErrorTest
from edgeagent.answers.similar.place import GROUP_BYTES

MAX_QUESTIONS = 100_000
MAX_BOUNDARIES = 8
"""How many groups (see `place_of`) are known by what they taught. Each takes 32 KB."""
_MAX_WORTH = 100
"""A group is worth its comparisons, at most 100, plus the worth of the group that was dropped before it learned last.

The one that is worth least is dropped. A group whose answers are given learns only from checks, which are few, and
eight others that learned once each would drop it if the last that learned were kept. Without the limit, groups of
earlier system prompts would be kept, and two that come by turns would drop each other for as long.
"""
_MAX_TIMES = 2.0
_MOST_OF_ONE = 0.02
"""The largest expected error of one answer, if earlier answers left enough of the bound: twice `max_error`, or 2 %.

Answers above `max_error` are all chosen to be checked. With `max_error` itself, 0.82 of the best threshold's hits were
reached at a bound of 0.5 %, and with twice that, 0.90 (two domains that were tuned on).
"""
_MAX_SAVED = 10.0
"""How much of the bound earlier answers may leave for those above it, as a multiple of `max_error`.

So of any n answers in a row, at most `max_error` times n + 10 are expected to be wrong, however many sure ones came
before. Without a limit, 10,000 sure answers would let 10,000 in a row be wrong with twice `max_error`.
"""
_NUM_NEAREST = 8


@dataclass(frozen=True, slots=True)
class Lookup:
    """The nearest kept question that no guard refuses.

    `error`: the probability that its answer is wrong. `is_sure`: the answer may be given. `check_probability`: with
    which to check it then.
    """

    near: Near
    error: float
    is_sure: bool
    check_probability: float


@dataclass(frozen=True, slots=True)
class Known:
    """A kept question: its place (see `place_of`), its text, and the key of the first question with its answer."""

    place: bytes
    text: str
    root: bytes


class Memory:
    """The kept questions and what was learned from them. `max_error`: the owner's bound on wrong answers."""

    def __init__(self, max_error: float) -> None:
        self.max_error = max_error
        self.refused: Counter[str] = Counter()
        """How often each guard refused the nearest question, or the question alone."""
        self.boundaries: dict[bytes, Boundary] = {}
        """What each group taught, the one that learned last at the end."""
        self.test = ErrorTest(max_error)
        self._index = Index()
        self._known: dict[bytes, Known] = {}
        self._worths: dict[bytes, int] = {}
        self._floor = 0  # the worth of the group that was dropped last
        # What the given answers have left of the bound: by what was expected of them, and by what checks found.
        self._saved = self._proved = 0.0
        self._num_given = 0
        self._expected_wrong = 0.0

    @property
    def is_off(self) -> bool:
        """Whether no answer is given, since the measured error contradicts the bound."""
        return self.test.is_above

    @property
    def expected_error(self) -> float | None:
        """The expected share of wrong ones among the answers that were given; None before the first."""
        return self._expected_wrong / self._num_given if self._num_given else None

    @property
    def num_questions(self) -> int:
        return len(self._known)

    def refusal(self, text: str) -> str:
        """Return the name of the guard by which a question is compared with none; "" if there is none. Count it."""
        rule = refusal_alone(text)
        if rule:
            self._count_refused(rule)
        return rule

    def may_find(self, place: bytes) -> bool:
        """Whether an answer to any question of a place could be given now."""
        return self._index.has(place) and self._may_give(self.boundary(place).least_error)

    def look_up(self, place: bytes, text: str, vector: Vector) -> Lookup | None:
        """Return the nearest question of a place that no guard refuses; None if none is near enough."""
        near = self._allowed(place, text, vector)
        if near is None:
            return None
        error = self.boundary(place).error(*near)
        check = min(1.0, max(MIN_CHECKED, error / self.max_error))
        return Lookup(near, error, self._may_give(error), check)

    def give(self, lookup: Lookup) -> bool:
        """Book an answer, and return whether it may still be given: others may have been since it was looked up."""
        if not self._may_give(lookup.error):
            return False
        self._num_given += 1
        self._expected_wrong += lookup.error
        most = _MAX_SAVED * self.max_error
        self._saved = min(most, self._saved + self.max_error - lookup.error)
        # One wrong answer, after many, leaves what was saved.
        self._proved = min(most + 1.0, self._proved + self.max_error)
        return True

    def found_wrong(self) -> None:
        """Note that an answer that was given is wrong."""
        self._proved -= 1.0

    def add(
        self, place: bytes, key: bytes, text: str, vector: Vector, first: Compared | None = None, root: bytes = b""
    ) -> list[bytes]:
        """Keep a question; see events.Added. Return the keys of those that were forgotten for it, the oldest first.

        `root`: see Known; only given for a question that was kept in an earlier run.
        """
        self._known.pop(key, None)
        other = None if first is None or not first.is_right else self._known.get(first.key)
        self._known[key] = Known(place, text, root or (key if other is None else other.root))
        self._index.add(place, key, vector)
        if first is not None:
            self.boundary(place).begin(key, Observation(first.similarity, first.is_right), first.key)
        surplus = [*self._first(len(self._known) - MAX_QUESTIONS)]
        self.forget(surplus)
        return surplus

    def learn(self, compared: Compared) -> None:
        """Learn whether the answer to a near question was right. If that was forgotten, only the test learns it."""
        is_right, probability = compared.is_right, compared.check_probability
        if probability is not None:
            self.test.observe(is_right=is_right, probability=probability)
        known = self._known.get(compared.key)
        if known is None:
            return
        boundary = self.boundary(known.place)
        boundary.observe(compared.key, compared.similarity, is_right=is_right)
        group = known.place[:GROUP_BYTES]
        self.boundaries.pop(group, None)
        if len(self.boundaries) == MAX_BOUNDARIES:
            dropped = min(self.boundaries, key=self._worths.__getitem__)  # of equal ones, the first
            self._floor = self._worths.pop(dropped)
            del self.boundaries[dropped]
        self._put(group, boundary)

    def boundary(self, place: bytes) -> Boundary:
        """Return what was learned of the group of a place; nothing yet if it is none of those that are kept."""
        return self.boundaries.get(place[:GROUP_BYTES]) or Boundary()

    def restore(
        self, states: Mapping[bytes, dict[str, bytes]], observed: Mapping[bytes, Sequence[Observation]]
    ) -> None:
        """Continue from the `state` of each group's boundary, and from what was observed of kept questions."""
        for group, state in states.items():
            alike: dict[bytes, list[bytes]] = {}
            for key, known in self._known.items():
                if known.place[:GROUP_BYTES] == group:
                    alike.setdefault(known.root, []).append(key)
            # Only the one of them that was observed last has all.
            entries = {tuple(keys): max((observed.get(key, ()) for key in keys), key=len) for keys in alike.values()}
            boundary = Boundary()
            if boundary.restore(state, entries):
                self._put(group, boundary)

    def turn_off(self) -> None:
        """Give no more answers, since a test on another machine says that the error is above the bound."""
        self.test.is_above = True

    def forget(self, keys: Collection[bytes] | None) -> None:
        """Forget questions; with None, all of them and what they taught. What that had turned off is on again."""
        if keys is None:
            self._index, self._known = Index(), {}
            self.boundaries, self.test = {}, ErrorTest(self.max_error)
            self._worths, self._floor = {}, 0
            self._saved = self._proved = self._expected_wrong = 0.0
            self._num_given = 0
            return
        for key in keys:
            known = self._known.pop(key, None)
            if known is not None:
                self._index.remove(key)
                self.boundary(known.place).forget(key)

    def starting_with(self, ids: Collection[str]) -> list[bytes]:
        """Return the keys that begin with one of these hexadecimal ids, all of one length."""
        length = max(map(len, ids), default=0)
        wanted = set(ids)
        return [key for key in self._known if key.hex()[:length] in wanted]

    def known(self, key: bytes) -> Known | None:
        """Return what is known of a kept question."""
        return self._known.get(key)

    def vector(self, key: bytes) -> Vector | None:
        """Return the vector of a kept question, rounded to 16 bits a number."""
        return self._index.vector(key)

    def status(self) -> dict[str, Any]:
        """Return what the owner is to know."""
        return {
            "is_on": not self.is_off,
            "num_questions": self.num_questions,
            "max_error": self.max_error,
            "measured_error": self.test.measured,
            "expected_error": self.expected_error,
            "num_checked": self.test.num_checked,
            "num_found_wrong": self.test.num_wrong,
            "num_compared": sum(each.num_observed for each in self.boundaries.values()),
            "refused": dict(self.refused),
        }

    def _put(self, group: bytes, boundary: Boundary) -> None:
        self.boundaries[group] = boundary
        self._worths[group] = self._floor + min(boundary.num_observed, _MAX_WORTH)

    def _may_give(self, error: float) -> bool:
        left = max(0.0, min(self._saved, self._proved))
        return not self.is_off and error <= min(max(_MAX_TIMES * self.max_error, _MOST_OF_ONE), self.max_error + left)

    def _allowed(self, place: bytes, text: str, vector: Vector) -> Near | None:
        for position, near in enumerate(self._index.nearest(place, vector, _NUM_NEAREST)):
            if near.similarity < MIN_SIMILARITY:
                return None
            rule = refusal(text, self._known[near.key].text)
            if not rule:
                return near
            if position == 0:
                self._count_refused(rule)
        return None

    def _count_refused(self, rule: str) -> None:
        self.refused[rule] += 1
        metrics.answer_similar_refused_total.labels(rule).inc()

    def _first(self, count: int) -> Iterator[bytes]:
        for number, key in enumerate(self._known):
            if number >= count:
                return
            yield key
