"""Decides whether another model fits into memory, and which one to unload first. Pure: it uses only sizes and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeagent.fit.need import margin_bytes
from edgeagent.worker.parent.pool.memory import Memory


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """A model with a worker, or with memory reserved for a worker that is about to start. `pid` is None until then.

    - `needed_bytes`: the model's predicted memory, including `weights_bytes` for its files.
    - `is_loading`: it does not use all of `needed_bytes` yet.
    - `why_staying`: why it cannot be unloaded now; empty if it can.
    - `may_leave_later`: it can be unloaded once it has no requests.
    """

    name: str
    pid: int | None
    needed_bytes: int
    weights_bytes: int
    idle_s: float
    is_loading: bool = False
    why_staying: str = ""
    may_leave_later: bool = False


@dataclass(frozen=True, slots=True)
class Devices:
    """The total memory of the GPUs that have their own memory, and how much of it the loaded models use."""

    total_bytes: int = 0
    used_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """About how many bytes are free. A tenth of the memory is left for the driver and the desktop."""
        return max(0, int(0.9 * self.total_bytes) - self.used_bytes)


def free_bytes(memory: Memory, residents: Sequence[ResidentModel], devices: Devices = Devices()) -> int:
    """Return how many bytes another model may use.

    This is the free memory of the machine and of `devices`, minus a margin, minus the mapped files of loaded models,
    and minus the memory that loading models still need.
    """
    free = memory.available_bytes + devices.free_bytes - margin_bytes(memory.total_bytes)
    for resident in residents:
        held = None if resident.pid is None else memory.held.get(resident.pid)
        if resident.is_loading:
            free -= max(0, resident.needed_bytes - (0 if held is None else held.rss_bytes))
        if held is not None:
            free -= min(resident.weights_bytes, held.rss_bytes) if held.mapped_bytes is None else held.mapped_bytes
    return max(0, free)


def first_to_leave(residents: Sequence[ResidentModel]) -> ResidentModel | None:
    """Return the least recently used model among those that can be unloaded; None if there is none."""
    unloadable = (resident for resident in residents if not resident.why_staying)
    return max(unloadable, key=lambda resident: resident.idle_s, default=None)


def describe_refusal(name: str, needed_bytes: int, free: int, residents: Sequence[ResidentModel]) -> str:
    """Return the message for a model that does not fit into memory, with the sizes."""
    others = "; ".join(
        f"{resident.name} takes {_size(resident.needed_bytes)} and {resident.why_staying}" for resident in residents
    )
    return (
        f"there is no room for {name}: it needs about {_size(needed_bytes)} of memory, and {_size(free)} are free"
        f"{f' ({others})' if others else ''}"
    )


def describe_limit(name: str, max_loaded: int, residents: Sequence[ResidentModel]) -> str:
    """Return the message for a model that would exceed the limit of loaded models."""
    others = "; ".join(f"{resident.name} {resident.why_staying}" for resident in residents)
    return (
        f"{name} cannot be loaded now: at most {max_loaded} models are loaded at a time (load.max_models), and {others}"
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
