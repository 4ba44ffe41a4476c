"""How the folder is kept: what is synced, when."""

from __future__ import annotations

from pathlib import Path

from edgeagent.engine.blocks import Importance
from tests.engine.block_store.stores import FaultyFiles, make_chain, make_store


def test_names_are_synced_once_when_nothing_waits_any_more(tmp_path: Path) -> None:
    files, operations = FaultyFiles(tmp_path / "cache"), list[str]()
    files.fault = lambda number, name: operations.append(name)
    store, chain = make_store(tmp_path / "cache", files=files), make_chain(3)
    store.work()
    store.work()
    assert operations.count("sync_folder") == 0, "nothing was written"
    for block in chain:
        store.offer(block, Importance.IDLE)
    store.work()
    store.work()
    assert (operations.count("rename"), operations.count("sync_folder")) == (4, 1)
    last_block = len(operations) - operations[::-1].index("stamp")
    assert operations.index("sync_folder") > last_block
