"""The blocks at the start of a sequence: where each ends."""

from __future__ import annotations

from edgeagent.engine.cache.saver import Chain

A, B = b"a" * 32, b"b" * 32


def test_an_empty_chain_ends_where_it_begins() -> None:
    chain = Chain()
    assert (chain.end, chain.key) == (0, None)
    assert chain.until(100) == []


def test_it_ends_with_its_last_block() -> None:
    chain = Chain([(32, A)])
    chain.append(33, B)
    assert (chain.end, chain.key) == (33, B)
    chain.pop()
    assert (chain.end, chain.key) == (32, A)


def test_blocks_up_to_a_length_are_those_that_end_there_or_before() -> None:
    chain = Chain([(32, A), (64, B)])
    found = [chain.until(length) for length in (31, 32, 63, 64)]
    assert found == [[], [(32, A)], [(32, A)], [(32, A), (64, B)]]
