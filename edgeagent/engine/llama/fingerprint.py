"""A fingerprint of everything that a cached block depends on: the model's content, the context's settings, the build.

A block with another fingerprint has another key, so it is never found and cannot be misread. The fingerprint leaves out
the placement of layers and the length of the context, since both depend on free memory. The KV cells are the same on
each device, except for rounding. The draft model is left out too: its blocks have their own fingerprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeagent import cache_folder
from edgeagent.cache_folder import ROOT_BYTES
from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.llama.bindings import commit, cpu_variant, devices, lib, system_description
from edgeagent.engine.llama.cores import num_usable_cores
from edgeagent.usable import processor_name

# Of the conditions of a profile. Increase it when the measured work changes.
_VERSION = 4


def machine_conditions(path: Path) -> dict[str, str]:
    """Return the conditions of a profile by name: the model's file, llama.cpp's build, the processor, the devices."""
    status = path.stat()
    return {
        "version": str(_VERSION),
        "model file": f"{status.st_size} {status.st_mtime_ns}",
        "llama.cpp": f"{commit()} {library_stamp()}",
        "processor": processor_name(),
        "instructions": system_description()[:2048],
        "cores": str(num_usable_cores()),
        "devices": ", ".join(device.description for device in devices())[:2048],
    }


# Increase it when the boundaries, the keys or the numbers of blocks change and no field of the fingerprint shows it.
# Their size is such a field.
_BLOCKS_VERSION = 3
_NUM_SAMPLES = 256
_SAMPLE_BYTES = 4096
_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The properties that blocks depend on, by the names that users see. `digest` covers all of them."""

    fields: Mapping[str, str]

    @property
    def digest(self) -> bytes:
        content = repr(sorted(self.fields.items())).encode()
        return hashlib.blake2b(content, digest_size=32, person=b"edgeagent model").digest()


def make_fingerprint(
    files: Iterable[Path],
    config: EngineConfig,
    *,
    rope: str,
    block_tokens: int,
    flash_attention: str,
    is_draft: bool = False,
) -> Fingerprint:
    """Return the fingerprint of a loaded model with these files. `rope` names the RoPE factors in use.

    `is_draft`: the model is used as a draft model. Its blocks are not shared with a model from the same file that
    answers requests. Draft steps are rounded differently, so with such blocks a repeated request could get another
    answer.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for file in files:
        _add_file(hasher.update, file)
    fields = {"use": "draft"} if is_draft else {}
    return Fingerprint(
        {
            **fields,
            "block format": str(_BLOCKS_VERSION),
            "block size": str(block_tokens),
            "llama.cpp": commit(),
            "llama.cpp library": library_stamp(),
            "RoPE factors": rope,
            "K type": config.kv_type_k,
            "V type": config.kv_type_v,
            "cells in blocks": config.cache_type,
            "flash attention": flash_attention,
            "model file": hasher.hexdigest(),
        }
    )


def adapter_id(file: Path) -> str:
    """Return an id of an adapter's file, as 32 hex digits. It changes when the file changes."""
    hasher = hashlib.blake2b(digest_size=16, person=b"edgeagent lora")
    _add_file(hasher.update, file)
    return hasher.hexdigest()


def describe_unused(folder: Path, model: str, mine: Fingerprint, keyring: Keyring) -> str | None:
    """Return a log line about a model's blocks on disk that have another fingerprint.

    Return None if there are none, or if the folder cannot be read. `mine`: the fingerprint of the loaded model.
    `keyring`: makes the block keys for that fingerprint.
    """
    records = cache_folder.read_root_records(folder)
    others = {
        root: record
        for root, record in records.items()
        if record.model == model and not keyring.root(record.client).startswith(root[:ROOT_BYTES])
    }
    try:
        blocks = [found for found in cache_folder.scan(folder) if found.name.root in others]
    except OSError:
        return None
    if not blocks:
        return None
    latest = max(blocks, key=lambda found: found.used_s)
    theirs = others[latest.name.root].settings
    differ = [
        f"{name} ({theirs[name]}, now {mine.fields[name]})" for name in mine.fields if _differs(name, theirs, mine)
    ]
    why = f"these differ: {', '.join(differ)}" if differ else "they were made by another version"
    return f"{len(blocks)} blocks of this model on disk are not used, since {why}; they go in time"


def _differs(name: str, theirs: Mapping[str, str], mine: Fingerprint) -> bool:
    return name in theirs and theirs[name] != mine.fields[name]


def _add_file(update: Callable[[bytes], None], path: Path) -> None:
    """Hash a model file without reading all of it: its size, its mtime, its header, and samples of its weights.

    The mtime covers the bytes that are not read: if they change in place, the mtime changes too.
    """
    with path.open("rb", buffering=0) as file:
        status = path.stat()
        size = status.st_size
        update(f"{size}:{status.st_mtime_ns}:".encode())
        update(file.read(_HEAD_BYTES))
        for number in range(_NUM_SAMPLES):
            file.seek(number * size // _NUM_SAMPLES)
            update(file.read(_SAMPLE_BYTES))


def library_stamp() -> str:
    """Return the size and mtime of llama.cpp's library file, and of a portable engine also the generation of CPUs.

    They differ between builds of one commit with different flags or patches.
    """
    status = Path(lib._lib._name).stat()
    return f"{status.st_size}:{status.st_mtime_ns}{cpu_variant()}"
