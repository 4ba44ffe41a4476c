"""The recipe's three splits stay apart: training, development, and the sealed test set."""

from __future__ import annotations

import re

import numpy as np
import pytest

from models.builtin.recipe.corpus import EVALUATION, evaluation_set, prompt_key, question_key, stream
from models.builtin.recipe.met import is_met
from models.builtin.recipe.respelling import Respelling
from models.builtin.recipe.samples import Draw, Pool, is_held_out, is_sealed, lines
from models.builtin.recipe.sealed import check_sealed, named_pools, sealed_wordings
from models.builtin.recipe.texts import HELD_OUT

SLOT = re.compile(r"\{(\w+)\}")


def slots(wordings: tuple[str, ...]) -> set[str]:
    return {slot for wording in wordings for slot in SLOT.findall(wording)}


def test_no_pool_holds_a_sealed_wording() -> None:
    check_sealed()


def test_sealed_wordings_have_the_slots_of_their_pool() -> None:
    for name, wordings in HELD_OUT.items():
        known = named_pools()[name].train
        assert slots(wordings) <= slots(known), name
        if all(SLOT.search(w) for w in known) and name != "talk.alien_frames":
            assert all(SLOT.search(w) for w in wordings), name
        if name.endswith(".asks"):
            assert all(slots((w,)) == slots(known) for w in wordings), name


def test_the_test_set_leaves_out_what_training_met_before_it_was_sealed() -> None:
    asked = [wording for wordings in sealed_wordings().values() for wording in wordings]
    assert len(asked) > 500 and not any(is_met(wording) for wording in asked)


def test_there_are_enough_sealed_wordings_and_none_comes_twice() -> None:
    for name, wordings in HELD_OUT.items():
        assert len({w.lower() for w in wordings}) == len(wordings) >= 5, name
    foreign = HELD_OUT["talk.alien_frames"] + HELD_OUT["talk.alien_whole"]
    assert len(set(foreign)) == len(foreign) >= 90


def test_a_sealed_wording_drops_out_of_a_pool() -> None:
    sealed = HELD_OUT["sums.ask"][0].replace("{sum}", "{other}").upper() + "?"
    pool = lines("\n".join((sealed, *(f"wording {i}" for i in range(20)))))
    assert is_sealed(sealed) and sealed not in (*pool.train, *pool.eval) and len(pool.train) + len(pool.eval) == 20


def test_the_test_split_draws_sealed_wordings_and_each_before_any_again() -> None:
    pool = named_pools()["talk.greet"]
    draw = Draw(1, "test", sealed_wordings())
    wordings = sealed_wordings()[pool]
    for _ in range(2):
        assert {draw.pick(pool) for _ in wordings} == set(wordings)


def test_the_test_split_refuses_a_pool_without_sealed_wordings() -> None:
    with pytest.raises(LookupError, match="only training"):
        Draw(1, "test", sealed_wordings()).pick(lines("one\ntwo\nthree"))


def test_the_test_split_takes_words_and_open_values_of_the_evaluation() -> None:
    draw = Draw(1, "test", sealed_wordings())
    words = Pool(("train",), ("eval",))
    assert draw.pick(words) == "eval"
    assert is_held_out(draw.open(lambda source: str(source.random())))


def test_the_sets_share_nothing_with_each_other_or_with_training() -> None:
    keys = {}
    for split in ("eval", "test"):
        samples = evaluation_set(split=split)
        assert len(samples) == sum(count for _, count in EVALUATION)
        assert [s.messages for s in samples] == [s.messages for s in evaluation_set(split=split)], "not repeatable"
        keys[split] = {prompt_key(s) for s in samples}, {question_key(s) for s in samples}
    trained = [sample for sample, _ in zip(stream("tests", "train"), range(2000), strict=False)]
    keys["train"] = {prompt_key(s) for s in trained}, {question_key(s) for s in trained}
    for one, other in (("eval", "test"), ("train", "eval"), ("train", "test")):
        for left, right in zip(keys[one], keys[other], strict=True):
            assert not left & right


def test_a_spelling_lesson_quotes_the_words_as_they_were_said() -> None:
    respelling, rng = Respelling(["ba", "lo", "mir", "tes"]), np.random.default_rng(1)
    for _ in range(3000):
        said, quoted, _ = respelling.drill(rng)
        words = quoted.removesuffix('"')
        assert words in said or words[:1].upper() + words[1:] in said, (said, quoted)
