"""A block's file is the same on every machine, and only a file of this installation is accepted as a block."""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from typing import Any

import pytest

from edgeagent.cache_folder import PARENT_BYTES, ROOT_BYTES, BlockName
from edgeagent.engine.cache.block import Block
from edgeagent.engine.cache.disk.file_format import (
    _HEADER,
    HEADER_BYTES,
    VERSION,
    BadBlock,
    Seal,
    file_bytes,
    head_bytes,
)
from tests.engine.cache.disk.stores import SECRET, is_same, make_chain

SEAL = Seal(SECRET, bytes)


def content_of(block: Block) -> bytes:
    return b"".join(SEAL.encode(block))


def name_of(block: Block) -> BlockName:
    root, parent = block.root[:ROOT_BYTES], block.parent[:PARENT_BYTES]
    return BlockName(root, parent, block.key, block.start, len(block.tokens), 1)


@pytest.mark.parametrize("draft", [False, True])
def test_a_file_has_the_size_that_is_said(draft: bool) -> None:
    _, block = make_chain(2, draft=draft)
    assert len(content_of(block)) == file_bytes(block)
    assert file_bytes(block) == head_bytes(len(block.tokens)) + 1000


@pytest.mark.parametrize(
    ("draft", "digest"),
    [
        (False, "b653de648ed99d8c410688989684a792752a050574be9d7216910c4c09955d53"),
        (True, "d60c65978ff02948f8129ef64988c8666c4bb920da40efde4b5cc0e5da2760d7"),
    ],
)
def test_files_are_the_same_in_every_version(draft: bool, digest: str) -> None:
    """A changed format would lose the files of earlier versions."""
    _, block = make_chain(2, num_tokens=20, draft=draft)
    assert hashlib.sha256(content_of(block)).hexdigest() == digest
    root, parent, key = block.root.hex()[:16], block.parent.hex()[:32], block.key.hex()
    assert name_of(block).file_name == f"{root}-{parent}-{key}-14-14-1.kv"


def test_each_file_has_a_key_of_its_own() -> None:
    """Two messages under the same Poly1305 key would reveal the key."""
    (block,) = make_chain(1)
    seal = Seal(SECRET)
    first, second = (b"".join(seal.encode(block)) for _ in range(2))
    nonce, code = slice(_HEADER.size, _HEADER.size + 16), slice(_HEADER.size + 16, HEADER_BYTES)
    assert first[nonce] != second[nonce] and first[code] != second[code]
    assert is_same(seal.decode(first, block.key), block) and is_same(seal.decode(second, block.key), block)
    with pytest.raises(BadBlock, match="changed"):
        seal.decode(second[: nonce.start] + first[nonce] + second[nonce.stop :], block.key)


def test_tokens_are_little_endian_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = make_chain(1, num_tokens=20)
    tokens = array("i", block.tokens)
    little = struct.pack("<20i", *block.tokens)
    assert content_of(block)[HEADER_BYTES : HEADER_BYTES + 80] == little
    # A machine with the other byte order stores its numbers the other way round.
    other_way = {"little": "big", "big": "little"}[sys.byteorder]
    monkeypatch.setattr(sys, "byteorder", other_way)
    content = content_of(block)
    assert content[HEADER_BYTES : HEADER_BYTES + 80] == struct.pack(">20i", *block.tokens)
    assert block.tokens == tokens, "the block itself stays as it is"
    assert is_same(SEAL.decode(content, block.key), block)


MAGIC, FORMAT, IS_DRAFT, NUM_TOKENS, PAYLOAD_BYTES, REST = 0, 1, 2, 7, 8, 9


def sealed(block: Block, changes: dict[int, Any]) -> bytes:
    """Return a block's file with changed header values and a seal that matches them."""
    content = content_of(block)
    fields = list(_HEADER.unpack_from(content))
    for place, value in changes.items():
        fields[place] = value
    header, body = _HEADER.pack(*fields), content[HEADER_BYTES:]
    nonce = bytes(16)
    return header + nonce + SEAL._code(nonce, header, body).finalize() + body


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({MAGIC: b"edgeagkw"}, "not of this format"),
        ({FORMAT: VERSION + 1}, "not of this format"),
        ({NUM_TOKENS: 19}, "do not add up"),
        ({PAYLOAD_BYTES: 1001}, "do not add up"),
        ({IS_DRAFT: 2}, "do not add up"),
        ({PAYLOAD_BYTES: 999, REST: 1}, "do not add up"),
        ({REST: 1}, "do not add up"),
    ],
)
@pytest.mark.parametrize("draft", [False, True])
def test_a_seal_does_not_make_another_format_ours(changes: dict[int, Any], said: str, draft: bool) -> None:
    (block,) = make_chain(1, num_tokens=20, draft=draft)
    with pytest.raises(BadBlock, match=said):
        SEAL.decode(sealed(block, changes), block.key)


@pytest.mark.parametrize("draft", [False, True])
def test_a_head_is_of_its_name(draft: bool) -> None:
    _, block = make_chain(2, num_tokens=20, draft=draft)
    head, name = content_of(block)[: head_bytes(20)], name_of(block)
    found = SEAL.decode_head(head, name)
    assert (found.root, found.parent, found.key, found.start) == (block.root, block.parent, block.key, 20)
    assert found.tokens == block.tokens and found.is_draft == draft
    with pytest.raises(BadBlock, match="too short"):
        SEAL.decode_head(head[:-1], name)
    others = [
        BlockName(name.root, name.parent, name.key, 21, 20, 1),
        BlockName(b"x" * ROOT_BYTES, name.parent, name.key, 20, 20, 1),
        BlockName(name.root, b"x" * PARENT_BYTES, name.key, 20, 20, 1),
        BlockName(name.root, name.parent, b"x" * 32, 20, 20, 1),
    ]
    for other in others:
        with pytest.raises(BadBlock):
            SEAL.decode_head(head, other)
