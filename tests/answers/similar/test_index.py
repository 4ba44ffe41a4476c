"""The index: exact below its limit, and near to it above."""

from __future__ import annotations

import numpy as np
import pytest

from edgeagent.answers.similar import index as index_module
from edgeagent.answers.similar.index import Index, Vector, as_bytes, vector_of

RANDOM = np.random.default_rng(0)


def unit(rows: Vector) -> Vector:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True), np.float32)


def test_the_nearest_come_first_and_only_from_one_place() -> None:
    index = Index()
    vectors = unit(RANDOM.standard_normal((200, 64), np.float32))
    for number, vector in enumerate(vectors):
        index.add(b"odd" if number % 2 else b"even", b"%d" % number, vector)
    asked = unit(vectors[4] + 0.1 * vectors[5])
    expected = sorted(range(0, 200, 2), key=lambda number: -float(vectors[number] @ asked))[:5]
    found = index.nearest(b"even", asked, 5)
    assert [near.key for near in found] == [b"%d" % number for number in expected]
    assert found[0].similarity == pytest.approx(float(vectors[4] @ asked), abs=1e-3)
    assert index.nearest(b"other", asked, 5) == []
    assert index.nearest(b"even", asked[:32], 5) == []


def test_removed_and_replaced_ones_are_not_found() -> None:
    index = Index()
    vectors = unit(RANDOM.standard_normal((100, 8), np.float32))
    for number, vector in enumerate(vectors):
        index.add(b"place", b"%d" % number, vector)
    for number in range(0, 100, 2):
        index.remove(b"%d" % number)
    index.remove(b"unknown")
    index.add(b"elsewhere", b"1", vectors[1])
    assert len(index) == 50
    for number in (0, 1, 2, 3, 99):
        found = index.nearest(b"place", vectors[number], 1)[0]
        assert (found.key == b"%d" % number) == (number % 2 == 1 and number != 1)
    assert index.nearest(b"elsewhere", vectors[1], 1)[0].key == b"1"


def test_many_vectors_are_searched_by_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MAX_EXACT", 600)
    index = Index()
    vectors = unit(RANDOM.standard_normal((2000, 384), np.float32))
    for number, vector in enumerate(vectors):
        index.add(b"place", b"%d" % number, vector)
    asked = unit(vectors[:200] + 0.5 * unit(RANDOM.standard_normal((200, 384), np.float32)))
    found = [index.nearest(b"place", vector, 1)[0].key for vector in asked]
    assert found == [b"%d" % number for number in range(200)]


def test_a_vector_is_kept_as_bytes() -> None:
    vector = unit(RANDOM.standard_normal(384, np.float32))
    assert np.array_equal(vector_of(as_bytes(vector)), vector)
