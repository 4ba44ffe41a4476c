"""The invariants of the engine's parts, checked from outside between steps. They read private attributes."""

from __future__ import annotations

from collections import Counter
from functools import singledispatch

import numpy as np

from edgeagent.conversation.database import ResponseDatabase
from edgeagent.engine.cache.block_table import BlockTable, _OnDisk
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.cache.radix_tree import Node, RadixTree
from edgeagent.engine.cache.saver import Saver
from edgeagent.engine.cache.slots import KvCells, Slots
from edgeagent.engine.engine import Engine
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.sqlite_files import DamagedError


@singledispatch
def check_integrity(part: object) -> None:
    """Assert every invariant of a part and of the parts that it owns."""
    raise NotImplementedError(f"no invariants of {type(part).__name__} are known")


@check_integrity.register(ResponseDatabase)
def _(response_database: ResponseDatabase) -> None:
    (verdict,) = response_database._execute("PRAGMA integrity_check").fetchone()
    counted = (response_database._num_responses, response_database._num_bytes)
    orphans = response_database._execute(
        "SELECT count(*) FROM segments s WHERE NOT EXISTS (SELECT 1 FROM responses WHERE segment = s.id) "
        "AND NOT EXISTS (SELECT 1 FROM segments WHERE parent = s.id)"
    ).fetchone()[0]
    orphans += response_database._execute(
        "SELECT count(*) FROM media d WHERE NOT EXISTS (SELECT 1 FROM segment_media m JOIN segments s "
        "ON s.id = m.segment WHERE m.partition = d.partition AND m.digest = d.digest)"
    ).fetchone()[0]
    if verdict != "ok" or counted != response_database._count() or orphans:
        raise DamagedError(f"{verdict}; counted {counted}, there are {response_database._count()}; {orphans} orphans")


@check_integrity.register(BlockTable)
def _(table: BlockTable) -> None:
    check_integrity(table.tree)
    entries = table._entries
    assert entries.keys() == table.tree.blocks.keys()
    in_memory = {key: (entry, entry.block) for key, entry in entries.items() if entry.block is not None}
    assert table._in_memory == {key: entry for key, (entry, _) in in_memory.items()}
    for key, entry in entries.items():
        assert key in in_memory or entry.on_disk is _OnDisk.YES
    assert table._num_bytes == sum(block.num_bytes for _, block in in_memory.values()) <= table.max_bytes
    assert table._num_children == Counter(block.parent for _, block in in_memory.values())
    assert table._pending == {key for key, entry in entries.items() if entry.on_disk is _OnDisk.PENDING}
    assert table._pending_bytes == sum(in_memory[key][1].num_bytes for key in table._pending)
    may_go = {key for key, (entry, _) in in_memory.items() if table._may_go(key, entry)}
    noted = [each for partition in table._partitions.values() for each in partition.candidates]
    assert may_go == {each[-1] for each in noted if table._is_valid(each)}
    held = Counter[bytes]()
    for entry, block in in_memory.values():
        assert entry.root == block.root
        # If the disk loses a block, its children may remain here; no lookup finds them, and they are evicted later.
        assert block.parent == block.root or block.parent in entries or table.disk is not None
        held[block.root] += block.num_bytes
    assert {root: partition.num_bytes for root, partition in table._partitions.items()} == held


@check_integrity.register(KvCells)
def _(ledger: KvCells) -> None:
    counts = np.zeros(ledger.num_cells, np.int32)
    for cells in ledger._cells.values():
        own = np.bincount(np.array(cells, np.intp), minlength=ledger.num_cells)
        assert own.max(initial=0) <= 1
        counts += own
    assert (counts == ledger._num_holders).all()
    free = np.bincount(np.fromiter(ledger._free, np.intp), minlength=ledger.num_cells)
    assert (free == (counts == 0)).all()


@check_integrity.register(Engine)
def _(engine: Engine) -> None:
    check_integrity(engine.prefixes)
    assert len(engine._running) <= engine.max_running
    for sequence in engine._waiting.values():
        assert sequence.seq_id is None
        assert sequence.num_computed == 0
    for sequence in engine._running.values():
        assert sequence.seq_id is not None
        if sequence.restoring is None:
            assert engine.prefixes.slots.length(sequence.seq_id) == sequence.num_computed < len(sequence.tokens)
        if not sequence.num_rows:  # else the runner has a part of an image that is not recorded
            assert engine._runner.length(sequence.seq_id) == engine.prefixes.slots.length(sequence.seq_id)
        assert len(sequence.tokens) <= sequence.max_length
        assert sequence.num_cached <= sequence.num_prompt


@check_integrity.register(Slots)
def _(slots: Slots) -> None:
    check_integrity(slots._tree)
    _check_slots(slots)


def _check_slots(slots: Slots) -> None:
    check_integrity(slots._cells)
    ids = sorted([*slots._free, *slots._live, *slots._idle])
    assert ids == list(range(slots._runner.num_sequences)), ids
    assert slots._tree._sequences.keys() == {*slots._live, *slots._idle}
    for seq_id in (*slots._live, *slots._idle):
        length = slots._tree.length(seq_id)
        assert slots._cells.length(seq_id) == length
        assert slots._runner.length(seq_id) >= length, (seq_id, slots._runner.length(seq_id), length)
        assert seq_id in slots._live or slots._runner.length(seq_id) == length


@check_integrity.register(PrefixStore)
def _(prefixes: PrefixStore) -> None:
    _check_slots(prefixes.slots)  # the blocks have the same tree
    check_integrity(prefixes.blocks)
    check_integrity(prefixes.saver)
    assert prefixes.slots._tree is prefixes.blocks.tree


@check_integrity.register(RadixTree)
def _(tree: RadixTree) -> None:
    blocks: dict[bytes, Node] = {}
    sequences: dict[int, Node] = {}
    parents: Counter[bytes] = Counter()
    for partition, root in tree._roots.items():
        assert root.sequences or root.children, "a partition that has nothing is forgotten"
        stack = [root]
        while stack:
            node = stack.pop()
            for key, place in node.blocks.items():
                assert key not in blocks
                assert (place.key, place.end) == (key, node.depth)
                assert place.parent != partition or place.start == 0
                blocks[key] = node
                parents[place.parent] += 1
            below = [seq_id for child in node.children.values() for seq_id in child.sequences]
            assert len(set(below)) == len(below)
            assert node.sequences >= set(below)
            ends_here = node.sequences - set(below)
            sequences |= dict.fromkeys(ends_here, node)
            assert all(tree._partitions[seq_id] == partition for seq_id in ends_here)
            for first, child in node.children.items():
                assert child.parent is node
                assert child.tokens[0] == first
                assert child.depth == node.depth + len(child.tokens)
                stack.append(child)
            if node.parent is not None:
                assert node.blocks or ends_here or len(node.children) > 1, "a node must end a holder or branch"
    assert blocks == tree.blocks
    assert sequences == tree._sequences
    assert sequences.keys() == tree._partitions.keys()
    assert dict(parents) == dict(tree._num_children)


@check_integrity.register(Saver)
def _(saver: Saver) -> None:
    idle = set(saver._slots.idle_ids)
    known = [*saver._unsaved, *saver._unsavable, *saver._saved]
    assert sorted(known) == (sorted(idle) if saver._blocks.is_enabled else [])


@check_integrity.register(DraftModel)
def _(drafts: DraftModel) -> None:
    if not drafts._drafts:
        check_integrity(drafts.prefixes)
