"""Checks before a load that the draft model suits its target, and that the context fits into this machine's memory.

It reads only the files' headers, so that a load that must fail does not first take minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

from edgeagent.errors import ModelLoadFailed
from edgeagent.store.fit import Header
from edgeagent.types import DeviceInfo

_CONTEXT_STEP = 256


def check_draft(model: Header, model_path: Path, draft: Header, draft_path: Path) -> None:
    """Raise ModelLoadFailed if a draft's vocabulary cannot be the model's. The worker compares them in full."""
    if model.num_vocab and draft.num_vocab and model.num_vocab != draft.num_vocab:
        raise ModelLoadFailed(
            f"the draft {draft_path} has {draft.num_vocab} tokens in its vocabulary and {model_path} has "
            f"{model.num_vocab}; a draft must share the model's vocabulary: choose another as --draft"
        )


def check_memory(num_cells: int, bytes_per_token: float, devices: Sequence[DeviceInfo], num_trained: int = 0) -> None:
    """Raise ModelLoadFailed if a context takes more than all free memory of the machine and its GPUs.

    llama.cpp would try for seconds, or the system would end the worker. The message advises no more than the model was
    trained for (0: unknown).
    """
    needed_bytes = int(num_cells * bytes_per_token)
    on_gpus = sum(device.memory_free_bytes for device in devices if device.kind == "gpu")
    free_bytes = psutil.virtual_memory().available + psutil.swap_memory().free + on_gpus
    if needed_bytes <= free_bytes:
        return
    # Half of it: the weights and all else need room too.
    fitting = int(free_bytes / 2 / bytes_per_token) // _CONTEXT_STEP * _CONTEXT_STEP
    if num_trained:
        fitting = min(fitting, num_trained)
    advice = f"--ctx {fitting} would fit" if fitting else "no context would fit"
    raise ModelLoadFailed(
        f"a context of {num_cells} tokens takes {_gigabytes(needed_bytes)} of memory for the KV cache, "
        f"and {_gigabytes(free_bytes)} are free; {advice}"
    )


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"
