"""Measures a lookup among many blocks on disk: `python -m tests.peer.lookup`. It reads and writes no files."""

from __future__ import annotations

import tempfile
import time
from array import array
from pathlib import Path
from statistics import median

from edgeagent.cache_folder import PARENT_BYTES, ROOT_BYTES, BlockName
from edgeagent.engine.cache.block import MAX_BLOCK_TOKENS, Found, Head, Importance, Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.disk.file_format import Seal
from edgeagent.engine.cache.disk.files import Files
from edgeagent.engine.cache.disk.folder import FoundBlock, Limits
from edgeagent.engine.cache.disk.folder_state import FolderState
from edgeagent.engine.cache.disk.store import BlockStore

NUM_BLOCKS = 10_000
CHAIN_BLOCKS = 25
BLOCK_BYTES = 3 << 20
NUM_LOOKUPS = 400


def lookup_ms(num_tokens: int) -> float:
    """Return the median time in milliseconds to find a prompt of `num_tokens` tokens. All its blocks exist."""
    keyring, secret = Keyring(b"model", bytes(32)), bytes(32)
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        state, limits = FolderState(files, bytes_per_hour=0, max_gap_s=1.0), Limits(1 << 40, 0, 1e9)
        store = BlockStore(files, Seal(secret), state, limits, close_s=1.0)
        chains = [_fill(store, keyring, seed) for seed in range(NUM_BLOCKS // CHAIN_BLOCKS)]
        blocks = BlockTable(keyring, 0, store, can_cut=True)
        blocks.poll()
        times = []
        for turn in range(NUM_LOOKUPS):
            tokens = chains[turn * 7 % len(chains)][:num_tokens].tolist()
            started_s = time.perf_counter()
            links = blocks.find(blocks.walk(keyring.root(""), tokens))
            times.append(1000 * (time.perf_counter() - started_s))
            assert links[-1].end == num_tokens
    return median(times)


def _fill(store: BlockStore, keyring: Keyring, seed: int) -> array[int]:
    """Add a conversation in full blocks to the index; return its tokens."""
    tokens = array("i", ((seed * 7919 + at * 31) % 150_000 for at in range(CHAIN_BLOCKS * MAX_BLOCK_TOKENS)))
    root = parent = keyring.root("")
    for start in range(0, len(tokens), MAX_BLOCK_TOKENS):
        key = keyring.key(parent, tokens[start : start + MAX_BLOCK_TOKENS])
        name = BlockName(root[:ROOT_BYTES], parent[:PARENT_BYTES], key, start, MAX_BLOCK_TOKENS, int(Importance.REUSED))
        store._folder._add(FoundBlock(name, BLOCK_BYTES, float(seed)))
        own = tokens[start : start + MAX_BLOCK_TOKENS]
        store._results[False].put(Found(Head(root, parent, key, start, own), BLOCK_BYTES))
        parent = key
    return tokens


if __name__ == "__main__":
    for num_tokens in (500, 1500, 6000):
        print(f"{num_tokens} tokens: {lookup_ms(num_tokens):.3f} ms")
