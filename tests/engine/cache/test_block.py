"""Block keys: one key per prefix, and another key if anything differs."""

from __future__ import annotations

from array import array

from edgeagent.engine.cache.block import Block, CachePriority, Importance, Keyring

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


def test_keys_are_the_same_in_every_version() -> None:
    """Blocks on disk are found by these keys."""
    keyring = Keyring(b"model", SECRET)
    assert keyring.root("client").hex() == "dcd46e200a58c7eb7fd2eb7ddec25397b7d9ef7f5c9cf8d6640c92e42e982cd7"
    assert (
        keyring.key(keyring.root("client"), [1, 2, 3]).hex()
        == "8945bec792c959744925c479dac0014f9be5703382899e3bcb25450dc49aaabf"
    )


def test_importances_are_the_same_in_every_version() -> None:
    """File names contain them."""
    assert {importance.name: importance.value for importance in Importance} == {
        "VOLATILE": -1,
        "NORMAL": 1,
        "REUSED": 2,
        "SYSTEM": 3,
        "PINNED": 4,
    }


def test_a_block_counts_all_its_bytes() -> None:
    block = Block(b"r", b"p", b"k", 0, array("i", [1, 2]), b"12345")
    assert block.num_bytes == 5 + 8


def test_instructions_count_as_such_up_to_their_end() -> None:
    priority = CachePriority(Importance.NORMAL, num_system=300)
    assert [priority.at(end) for end in (256, 300, 301)] == [Importance.SYSTEM, Importance.SYSTEM, Importance.NORMAL]
    assert CachePriority(Importance.PINNED, num_system=300).at(256) is Importance.PINNED
    assert CachePriority(Importance.VOLATILE, num_system=300).at(256) is Importance.VOLATILE
    assert CachePriority(Importance.REUSED).at(1) is Importance.REUSED


def test_instructions_end_a_block_where_what_is_left_of_them_is_worth_one() -> None:
    assert [CachePriority(num_system=number).instructions_end(256) for number in (256, 271, 272, 528)] == [
        0,
        0,
        272,
        528,
    ]
    priority = CachePriority(num_system=300)
    assert [priority.block_end(start, 256) for start in (0, 256, 284, 285, 300)] == [256, 300, 300, 541, 556]
