"""Drafts from a sequence's own text."""

from __future__ import annotations

import random
from array import array

from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.ngram import NgramDrafter, NgramIndex


def sequence(tokens: list[int]) -> Sequence:
    spec = SequenceSpec("a", tokens[:-1], Sampler(ResolvedSampling(), 50))
    return Sequence(spec, array("i", tokens), len(tokens) - 1, 10_000, 0, seq_id=0, num_computed=len(tokens) - 1)


def test_what_followed_the_same_tokens_is_proposed() -> None:
    assert NgramDrafter().find(sequence([1, 2, 3, 4, 5, 6, 9, 2, 3, 4]), 2) == ((5, 6), 3)


def test_the_longest_match_wins_and_the_latest_of_equals() -> None:
    drafter = NgramDrafter()
    assert drafter.find(sequence([7, 1, 2, 3, 40, 8, 1, 2, 3, 41, 7, 1, 2, 3]), 1) == ((40,), 4)
    drafter = NgramDrafter()
    assert drafter.find(sequence([7, 1, 2, 3, 40, 8, 1, 2, 3, 41, 9, 1, 2, 3]), 1) == ((41,), 3)


def test_a_copy_goes_on_behind_replaced_tokens() -> None:
    text = list(range(1, 40))
    drafter, copy = NgramDrafter(), [*text, *text[:10]]
    assert drafter.find(sequence(copy), 2) == ((11, 12), 10)
    for replaced in ([70], [70, 12], [70, 71], [70, 71, 13, 14]):
        end = 10 + len(replaced)
        assert drafter.find(sequence([*copy, *replaced]), 2) == ((text[end], text[end + 1]), 0)
    assert drafter.find(sequence([*copy, 70, 71, 72, 73, 74]), 2) == ((), 0), "this is not a copy any longer"
    assert drafter.find(sequence([*copy, 70, 12, 13, 14]), 2) == ((15, 16), 3), "the tokens match again"


def test_a_text_without_a_match_is_not_taken_for_a_copy() -> None:
    assert NgramDrafter().find(sequence([*range(1, 40), *range(1, 11), 70]), 2) == ((), 0)


def test_nothing_repeated_suggests_nothing() -> None:
    drafter = NgramDrafter()
    assert drafter.find(sequence([1, 2, 3, 4, 5, 6, 7]), 4) == ((), 0)
    assert NgramDrafter().find(sequence([1, 2]), 4) == ((), 0)


def test_a_loop_goes_on() -> None:
    assert NgramDrafter().find(sequence([9, 1, 2, 1, 2, 1, 2, 1]), 5)[0] == (2, 1, 2, 1, 2)


def test_a_growing_sequence_is_indexed_as_if_it_had_been_whole() -> None:
    chance = random.Random(5)
    tokens = [chance.randrange(4) for _ in range(400)]
    growing = NgramIndex()
    end = 0
    while end < len(tokens):
        end = min(len(tokens), end + chance.randrange(1, 20))
        assert growing.extend(tokens[:end])
        whole = NgramIndex()
        whole.extend(tokens[:end])
        found = growing.find(tokens[:end])
        assert found == whole.find(tokens[:end])
        place, length = found
        if length:
            assert tokens[place - length : place] == tokens[end - length : end]
            assert place < end


def test_a_long_prompt_is_indexed_over_several_steps() -> None:
    drafter, long = NgramDrafter(), sequence([*range(20_000), 1, 2, 3])
    found = [drafter.find(long, 1) for _ in range(3)]
    assert found == [((), 0), ((), 0), ((4,), 3)]
