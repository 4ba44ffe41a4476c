"""Block keys: one for each prefix, and another wherever anything differs."""

from __future__ import annotations

from array import array

from edgeagent.engine.blocks import Block, Keyring

SECRET = b"s" * 32


def chain(keyring: Keyring, partition: str, *parts: list[int]) -> bytes:
    key = keyring.root(partition)
    for part in parts:
        key = keyring.key(key, part)
    return key


def test_a_key_stands_for_the_whole_prefix() -> None:
    keyring = Keyring(b"model", SECRET)
    assert chain(keyring, "", [1, 2], [3]) == chain(Keyring(b"model", SECRET), "", [1, 2], [3])
    different = {
        chain(keyring, "", [1, 2], [3]),
        chain(keyring, "", [1, 2], [4]),
        chain(keyring, "", [0, 2], [3]),
        chain(keyring, "", [1], [2, 3]),
        chain(keyring, "other client", [1, 2], [3]),
        chain(Keyring(b"another model", SECRET), "", [1, 2], [3]),
        chain(Keyring(b"model", b"t" * 32), "", [1, 2], [3]),
    }
    assert len(different) == 7
    assert {len(key) for key in different} == {32}


def test_a_fingerprint_and_a_partition_never_run_together() -> None:
    assert Keyring(b"ab", SECRET).root("c") != Keyring(b"a", SECRET).root("bc")


def test_keys_of_several_lengths_are_those_made_one_by_one() -> None:
    keyring = Keyring(b"model", SECRET)
    root = keyring.root("")
    tokens = array("i", range(300))
    assert keyring.keys(root, tokens, [256, 7, 100, 301]) == [
        (length, keyring.key(root, tokens[:length])) for length in (7, 100, 256)
    ]


def test_a_block_counts_all_its_bytes() -> None:
    block = Block(b"r", b"p", b"k", 0, array("i", [1, 2]), b"12345", b"678")
    assert block.num_bytes == 5 + 3 + 8
