"""The recipe's splits stay apart (training, development, the sealed test set), and its structured answers are right."""

from __future__ import annotations

import json
import re
from typing import Literal

import jsonschema_rs
import numpy as np
import pytest

from models.builtin.recipe.corpus import EVALUATION, evaluation_set, prompt_key, question_key, stream
from models.builtin.recipe.evaluate import is_right
from models.builtin.recipe.met import is_met
from models.builtin.recipe.respelling import Respelling
from models.builtin.recipe.samples import Check, Draw, Pool, Split, is_held_out, is_sealed, lines
from models.builtin.recipe.sealed import check_sealed, named_pools, sealed_wordings
from models.builtin.recipe.structured import declined, forced_spans, structured
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


@pytest.mark.slow(seconds=2)
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


@pytest.mark.parametrize("split", ["train", "eval", "test"])
def test_a_structured_answer_follows_its_schema_and_passes_its_own_check(split: Split) -> None:
    draw = Draw(1, split, sealed_wordings() if split == "test" else None)
    for index in range(300):
        sample = (declined if index % 10 == 0 else structured)(draw)
        text = sample.messages[-1]["content"]
        assert sample.format is not None and is_right(sample.check, text), sample
        jsonschema_rs.validate(sample.format, json.loads(text))


def test_a_schema_determines_keys_and_the_quotes_of_texts_but_not_the_choice_of_null() -> None:
    schema = {
        "type": "object",
        "properties": {
            "minutes": {"type": "integer"},
            "room": {"type": "string"},
            "day": {"type": ["string", "null"]},
            "items": {"type": "array", "items": {"type": "string"}},
        },
    }
    text = '{"minutes": 5, "room": "hall", "day": "Monday", "items": ["a: b", "c"]}'
    forced = [text[first:last] for first, last in forced_spans(text, schema)]
    assert forced == ['{"minutes":', ' "room": "', ' "day":', ' "items":']


@pytest.mark.parametrize(
    ("kind", "text", "is_accepted"),
    [
        ("json", '{"item": "Milk", "n": 2}', True),
        ("json", '{"n": 2, "item": "milk"}', True),
        ("json", '{"n": 2, "item": "milk", "room": null}', True),
        ("json", '{"n": 2, "item": "milk", "room": "hall"}', False),
        ("json", '{"n": 2, "item": null}', False),
        ("json", '{"n": true, "item": "milk"}', False),
        ("json", '{"n": 3, "item": "milk"}', False),
        ("json", '{"n": 2, "item": "milk"', False),
        ("json", '{"count": 2, "what": "milk"}', False),
        ("json_values", '{"count": 2, "what": "milk"}', True),
        ("json_values", '{"count": 2, "what": "milk", "more": 1}', False),
    ],
)
def test_a_structured_reply_is_judged_by_its_values(
    kind: Literal["json", "json_values"], text: str, is_accepted: bool
) -> None:
    assert is_right(Check(kind, ('{"item": "milk", "n": 2}',)), text) is is_accepted
