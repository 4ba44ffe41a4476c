"""The KV cell ledger, compared with sets of cells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgeagent.engine.cache.slots import KvCells
from tests.integrity import check_integrity


def test_a_shared_prefix_costs_its_cells_once() -> None:
    ledger = KvCells(100)
    ledger.take(1, 40)
    ledger.share(1, 2, 30)
    assert (ledger.num_used, ledger.length(2), ledger.num_unshared(1)) == (40, 30, 10)
    ledger.take(2, 5)
    assert ledger.num_used == 45
    ledger.trim(1, 0)
    assert (ledger.num_used, ledger.length(1)) == (35, 0)
    ledger.trim(2, 10)
    assert (ledger.num_used, ledger.num_free) == (10, 90)
    check_integrity(ledger)


@given(
    st.lists(st.tuples(st.sampled_from(["take", "share", "trim"]), st.integers(0, 4), st.integers(0, 10)), max_size=40)
)
def test_random_operations_keep_the_books(operations: list[tuple[str, int, int]]) -> None:
    ledger = KvCells(64)
    lengths = dict.fromkeys(range(5), 0)
    for name, holder, count in operations:
        if name == "take" and count <= ledger.num_free:
            ledger.take(holder, count)
            lengths[holder] += count
        elif name == "share":
            source = (holder + 1) % 5
            length = min(count, lengths[source])
            if lengths[holder] == 0 and length:
                ledger.share(source, holder, length)
                lengths[holder] = length
        elif name == "trim":
            ledger.trim(holder, count)
            lengths[holder] = min(lengths[holder], count)
        check_integrity(ledger)
        assert {holder: ledger.length(holder) for holder in lengths} == lengths
        assert ledger.num_used + ledger.num_free == 64
