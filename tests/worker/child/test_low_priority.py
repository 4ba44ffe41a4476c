"""A thread that lowers its own priority does not change that of others."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from edgeagent.engine.cache.disk.store import BlockStore
from edgeagent.worker.child import process
from edgeagent.worker.child_process import give_way, lower_thread_priority
from edgeagent.worker.protocol import DiskCache
from tests.patience import patient


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells a thread's priority")
class TestPriority:
    @staticmethod
    def nice() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    def test_the_calling_thread_alone_is_nice(self) -> None:
        before, seen = self.nice(), []

        def run() -> None:
            lower_thread_priority()
            seen.append(self.nice())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert (seen, self.nice()) == ([19], before)

    def test_a_thread_that_gives_way_keeps_a_share(self) -> None:
        before, seen = self.nice(), []

        def run() -> None:
            give_way()
            seen.append(self.nice())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert (seen, self.nice()) == ([min(19, before + 15)], before)

    def test_the_thread_that_seals_and_writes_blocks_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen, is_done = [], threading.Event()

        def run(_: BlockStore) -> None:
            seen.append(self.nice())
            is_done.set()

        monkeypatch.setattr(BlockStore, "run", run)
        disk = DiskCache(str(tmp_path), b"s" * 32, 1, 0, 1.0, 0, 1.0)
        process.start_block_store(disk)
        assert is_done.wait(patient(10))
        assert seen == [19]
