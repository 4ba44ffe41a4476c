"""The blocks at the start of a sequence: where each ends, and which are new."""

from __future__ import annotations

from edgeagent.engine.cache.saver import Chain

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32


def test_an_empty_chain_ends_where_it_begins() -> None:
    chain = Chain()
    assert (chain.end, chain.key) == (0, None)
    assert chain.keys_until(100) == []
    assert chain.take_unraised(100) == []


def test_it_ends_with_its_last_block() -> None:
    chain = Chain([(32, A)])
    chain.append(33, B)
    assert (chain.end, chain.key) == (33, B)
    chain.pop()
    assert (chain.end, chain.key) == (32, A)


def test_blocks_up_to_a_length_are_those_that_end_there_or_before() -> None:
    chain = Chain([(32, A), (64, B)])
    assert [chain.keys_until(length) for length in (31, 32, 63, 64)] == [[], [A], [A], [A, B]]


def test_each_block_is_given_out_to_be_kept_once() -> None:
    chain = Chain([(32, A), (64, B)])
    assert chain.take_unraised(63) == [(32, A)]
    assert chain.take_unraised(31) == [], "those that were given out stay so"
    assert chain.take_unraised(64) == [(64, B)]
    assert chain.take_unraised(64) == []


def test_what_takes_the_place_of_a_block_that_was_given_out_is_given_out_too() -> None:
    chain = Chain([(32, A), (64, B)])
    chain.take_unraised(64)
    chain.pop()
    chain.append(96, C)
    assert chain.take_unraised(96) == [(96, C)]


def test_a_block_that_goes_before_it_was_given_out_changes_nothing_else() -> None:
    chain = Chain([(32, A), (64, B)])
    chain.pop()
    assert chain.take_unraised(64) == [(32, A)]
