"""What a cached block's meaning depends on, in one value: the model's content, the settings of the context, the build.

A block that was made under another fingerprint has other keys and is never found, so it cannot be misread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

from edgeagent.config import EngineConfig
from edgeagent.engine.bindings import commit, lib

# Raised when blocks are cut or keyed otherwise.
_BLOCKS_VERSION = 1
_NUM_SAMPLES = 256
_SAMPLE_BYTES = 4096
_HEAD_BYTES = 1 << 20


def make_fingerprint(
    files: Iterable[Path], config: EngineConfig, *, num_cells: int, gpu_layers: int, flash_attention: str
) -> bytes:
    """Return the fingerprint of a model (and its draft), whose files these are, as it is loaded."""
    hasher = hashlib.blake2b(digest_size=32, person=b"edgeagent model")
    settings = (
        _BLOCKS_VERSION,
        commit(),
        _library_stamp(),
        num_cells,
        gpu_layers,
        config.kv_type_k,
        config.kv_type_v,
        flash_attention,
        config.main_gpu,
        config.tensor_split,
    )
    hasher.update(repr(settings).encode())
    for file in files:
        _add_file(hasher.update, file)
    return hasher.digest()


def _add_file(update: Callable[[bytes], None], path: Path) -> None:
    """Take in a model file without reading it whole: its size, its time, its header, and samples of its weights.

    The time stands for what lies between the samples: who changes weights in place gets an empty cache.
    """
    with path.open("rb", buffering=0) as file:
        status = path.stat()
        size = status.st_size
        update(f"{size}:{status.st_mtime_ns}:".encode())
        update(file.read(_HEAD_BYTES))
        for number in range(_NUM_SAMPLES):
            file.seek(number * size // _NUM_SAMPLES)
            update(file.read(_SAMPLE_BYTES))


def _library_stamp() -> str:
    """Return what tells a build of llama.cpp from another of the same commit, with other flags or patches."""
    status = Path(lib._lib._name).stat()
    return f"{status.st_size}:{status.st_mtime_ns}"
