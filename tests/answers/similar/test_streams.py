"""Streams of questions whose answers are known."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from edgeagent.answers.key import KEY_BYTES
from edgeagent.answers.similar import memory as memory_module
from edgeagent.answers.similar.events import Compared
from edgeagent.answers.similar.index import Near, Vector
from edgeagent.answers.similar.memory import MAX_BOUNDARIES, Lookup, Memory
from edgeagent.answers.similar.place import GROUP_BYTES
from tests.answers.similar.paraphrases import Asked, negatives, stream
from tests.answers.similar.streams import PLACE, Result, best_threshold, run, without_repeats

_WIDTH = 64
_LENGTH = 300


def scripted_vectors(asked: list[Asked], seed: int, *, likeness: float) -> Mapping[str, Vector]:
    """Return a vector for each text: near to its meaning's, and that near to those of the same intent.

    `likeness`: how similar two meanings of one intent are, as other numbers or names in one wording.
    """
    random = np.random.default_rng(seed)

    def unit(row: Vector) -> Vector:
        return np.asarray(row / np.linalg.norm(row), np.float32)

    centres: dict[str, Vector] = {}
    vectors = {}
    for each in asked:
        for name in (each.meaning.partition("/")[0], each.meaning):
            if name not in centres:
                centres[name] = unit(random.standard_normal(_WIDTH, np.float32))
        intent, own = centres[each.meaning.partition("/")[0]], centres[each.meaning]
        middle = unit(np.sqrt(likeness) * intent + np.sqrt(1 - likeness) * own)
        vectors[each.text] = unit(middle + random.uniform(0.1, 0.5) * unit(random.standard_normal(_WIDTH, np.float32)))
    return vectors


def answered(asked: list[Asked], max_error: float, seed: int) -> tuple[Result, Result]:
    """Return what the cache did, and what the best fixed threshold would have done."""
    vectors = scripted_vectors(asked, seed, likeness=0.6)
    return run(asked, vectors, max_error, seed=seed), best_threshold(asked, vectors, max_error)


@pytest.mark.parametrize("seed", range(2))
def test_the_bound_holds_and_most_questions_are_answered(seed: int) -> None:
    asked = without_repeats(stream(("museum", "bank")[seed % 2], seed, _LENGTH))
    result, best = answered(asked, 0.03, seed)
    assert result.error <= 0.03 and not result.is_off
    assert result.num_hits >= 0.7 * best.num_hits > 0


def test_where_no_answer_fits_none_is_given() -> None:
    """Each question has another meaning. The vectors are so similar that any threshold would give wrong answers."""
    asked = without_repeats([*negatives("museum", 0, _LENGTH), *negatives("bank", 0, _LENGTH)])
    result = run(asked, scripted_vectors(asked, 0, likeness=0.97), 0.03)
    assert result.num_hits == 0


def test_when_the_answers_change_few_wrong_ones_are_given() -> None:
    """All kept answers become wrong at once, as if the world had changed. Only checks can notice that."""
    asked = without_repeats(stream("museum", 0, _LENGTH))
    known = {each.text for each in asked}
    later = [each for each in without_repeats(stream("museum", 1, _LENGTH)) if each.text not in known]
    vectors = scripted_vectors([*asked, *later], 0, likeness=0.6)
    changed = [Asked(each.text, f"later/{each.meaning}") for each in later]
    result = run([*asked, *changed], vectors, 0.03)
    assert result.num_wrong < 0.2 * len(changed)


def test_what_one_model_taught_says_nothing_of_another_and_few_are_known() -> None:
    """A newer model may give almost equal questions answers of their own. Only comparisons of its answers show that."""
    memory = Memory(0.01)
    vector = np.eye(1, 4, dtype=np.float32)[0]
    text = "Where are the toilets?"
    places = [bytes([number]) * KEY_BYTES for number in range(MAX_BOUNDARIES + 1)]
    sure = []
    for place in places:
        memory.add(place, place, text, vector)
        before = memory.look_up(place, f"Hello, {text}", vector)
        assert before is not None and not before.is_sure
        for _ in range(80):
            memory.learn(Compared(place, 0.98, True))
        for each in places[:2]:  # the first one goes on to learn, and the second does not
            lookup = memory.look_up(each, f"Hello, {text}", vector)
            sure.append(lookup is not None and lookup.is_sure)
        memory.learn(Compared(places[0], 0.98, True))
    assert sure[:4] == [True, False, True, True] and sure[-4:] == [True, True, True, False]
    # A client's other questions have another place, but are answered in the same way.
    group = places[0][:GROUP_BYTES]
    memory.add(group.ljust(KEY_BYTES, b"x"), b"other", text, vector)
    lookup = memory.look_up(group.ljust(KEY_BYTES, b"x"), f"Hello, {text}", vector)
    assert lookup is not None and lookup.is_sure


def test_questions_with_the_same_answer_share_what_is_learned_after_a_restart_too() -> None:
    """What is written of each is what was known when it was observed last."""
    vector = np.eye(1, 4, dtype=np.float32)[0]
    memory, restored = Memory(0.01), Memory(0.01)
    right = Compared(b"one", 0.9, True)
    memory.add(PLACE, b"one", "Where are the toilets?", vector)
    memory.learn(right)
    memory.add(PLACE, b"same", "Hello, where are the toilets?", vector, right)
    memory.add(PLACE, b"another", "Hi, where are the toilets?", vector, Compared(b"same", 0.9, False))
    written = {b"one": memory.boundary(PLACE).observations(b"one")}
    memory.learn(Compared(b"same", 0.95, True))
    written[b"same"] = memory.boundary(PLACE).observations(b"same")
    for key in (b"one", b"same", b"another"):
        known = memory.known(key)
        assert known is not None and known.root == (b"another" if key == b"another" else b"one")
        restored.add(PLACE, key, known.text, vector, root=known.root)
    restored.restore({PLACE[:GROUP_BYTES]: memory.boundary(PLACE).state()}, written)
    boundary = restored.boundary(PLACE)
    assert boundary.observations(b"one") == boundary.observations(b"same") == written[b"same"]
    restored.learn(Compared(b"same", 0.9, False))
    assert len(boundary.observations(b"one")) == 3


def learn_in(memory: Memory, group: int, num: int) -> None:
    place = bytes([group]) * KEY_BYTES
    if memory.known(place) is None:
        memory.add(place, place, "Where are the toilets?", np.eye(1, 4, dtype=np.float32)[0])
    for _ in range(num):
        memory.learn(Compared(place, 0.98, True))


def num_learned(memory: Memory, group: int) -> int:
    return memory.boundary(bytes([group]) * KEY_BYTES).num_observed


def test_a_group_that_learned_much_is_not_dropped_for_a_question_each_of_many_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group whose answers are given learns from the few that are checked. A new one learns from each question."""
    monkeypatch.setattr(memory_module, "_MAX_WORTH", 10)
    memory = Memory(0.01)
    learn_in(memory, 0, 12)
    for other in range(1, 40):
        learn_in(memory, other, 1)
    assert num_learned(memory, 0) == 12 and len(memory.boundaries) == MAX_BOUNDARIES
    for other in range(1, 40):
        learn_in(memory, other, 3)
    assert num_learned(memory, 0) == 0, "it is not kept forever"


def test_groups_of_the_past_do_not_keep_others_from_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "_MAX_WORTH", 10)
    memory = Memory(0.01)
    for past in range(MAX_BOUNDARIES - 1):
        learn_in(memory, past, 12)
    for _ in range(25):
        learn_in(memory, 100, 1)
        learn_in(memory, 101, 1)
    assert min(num_learned(memory, 100), num_learned(memory, 101)) > 10


def test_it_turns_itself_off_and_says_so_until_all_is_forgotten() -> None:
    memory = Memory(0.03)
    vector = np.eye(1, 4, dtype=np.float32)[0]
    text = "Where are the toilets?"
    for number in range(100):
        memory.add(PLACE, b"%d" % number, text, vector)
        memory.learn(Compared(b"%d" % number, 0.98, True))
    lookup = memory.look_up(PLACE, f"Hello, {text}", vector)
    assert lookup is not None and lookup.is_sure
    for _ in range(20):
        memory.learn(Compared(*lookup.near, False, lookup.check_probability))
    status = memory.status()
    assert (status["is_on"], status["num_found_wrong"]) == (False, 20)
    again = memory.look_up(PLACE, f"Hello, {text}", vector)
    assert again is not None and not again.is_sure
    memory.forget(None)
    assert memory.status()["is_on"] and memory.look_up(PLACE, text, vector) is None


def test_an_answer_above_the_bound_is_given_after_surer_ones_only() -> None:
    """The mean of what is expected of the given answers stays within the bound."""
    memory = Memory(0.01)
    vector = np.eye(1, 4, dtype=np.float32)[0]
    text = "Where are the toilets?"
    for number in range(70):
        memory.add(PLACE, b"%d" % number, text, vector)
        memory.learn(Compared(b"%d" % number, 0.98, True))
    expected = []
    near = np.array([0.971, np.sqrt(1 - 0.971**2), 0, 0], np.float32)
    for asked in (near, vector, near, near):
        lookup = memory.look_up(PLACE, f"Hello, {text}", asked)
        assert lookup is not None
        if asked is near:
            assert 0.01 < lookup.error < 0.02 and lookup.check_probability == 1
        if lookup.is_sure:
            assert memory.give(lookup)
            expected.append(lookup.error)
    assert len(expected) == 2 and expected[1] > 0.01 and sum(expected) <= 0.01 * len(expected)
    assert memory.status()["expected_error"] == pytest.approx(sum(expected) / 2)
    for wanted in (True, False):
        for _ in range(20):
            lookup = memory.look_up(PLACE, f"Hello, {text}", vector)
            assert lookup is not None and lookup.is_sure
            memory.give(lookup)
        lookup = memory.look_up(PLACE, f"Hello, {text}", near)
        assert lookup is not None and lookup.is_sure is wanted
        memory.found_wrong()


def test_what_is_saved_up_is_given_once_and_has_a_limit() -> None:
    """Look-ups that run at the same time share it, and many sure answers leave no more than some do."""
    memory = Memory(0.01)
    surer, nearly = (Lookup(Near(b"key", 0.99), error, True, 1.0) for error in (0.0005, 0.0199))
    assert memory.give(surer)
    assert not memory.give(nearly)
    for _ in range(10_000):
        assert memory.give(surer)
    given = [memory.give(nearly) for _ in range(20)]
    assert given == [True] * 10 + [False] * 10
    assert memory.give(Lookup(Near(b"key", 0.9), 0.01, True, 1.0)), "what is within the bound is given all the time"
