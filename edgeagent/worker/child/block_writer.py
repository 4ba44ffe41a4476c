"""The worker's thread for cached blocks on disk. The block store decides what to write, and when."""

from __future__ import annotations

import threading
from pathlib import Path

from edgeagent.engine.cache.disk.file_format import Seal
from edgeagent.engine.cache.disk.files import Files
from edgeagent.engine.cache.disk.folder import Limits
from edgeagent.engine.cache.disk.folder_state import FolderState
from edgeagent.engine.cache.disk.store import BlockStore
from edgeagent.worker.child.low_priority import lower_thread_priority
from edgeagent.worker.protocol import DiskCache


def start_block_store(disk: DiskCache) -> BlockStore:
    """Make a block store and start its thread, which reads the folder while the model loads. Later it writes blocks."""
    files = Files(Path(disk.folder))
    # If the clock is wrong at a restart, blocks age by at most half of their time to live.
    state = FolderState(files, bytes_per_hour=disk.max_bytes_per_hour, max_gap_s=disk.max_unused_s / 2)
    limits = Limits(max_bytes=disk.max_bytes, min_free_bytes=disk.min_free_bytes, ttl_s=disk.max_unused_s)
    store = BlockStore(files, Seal(disk.secret), state, limits, close_s=disk.close_s)
    threading.Thread(target=_run, args=(store,), name="block writer", daemon=True).start()
    return store


def _run(store: BlockStore) -> None:
    lower_thread_priority()
    store.run()
