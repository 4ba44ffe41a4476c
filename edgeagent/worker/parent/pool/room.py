"""Decides whether another model fits into memory, and which one to unload first. Pure: it uses only sizes and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeagent.fit.need import margin_bytes
from edgeagent.worker.parent.pool.memory import Memory


@dataclass(frozen=True, slots=True)
class Tenant:
    """A model with a worker, or with memory reserved for a worker that is about to start (`pid` is None then).

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
    """The total memory of all GPUs, and how much of it the loaded models use."""

    total_bytes: int = 0
    used_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """About how many bytes are free. A tenth of the memory is left for the driver and the desktop."""
        return max(0, int(0.9 * self.total_bytes) - self.used_bytes)


def free_bytes(memory: Memory, tenants: Sequence[Tenant], devices: Devices = Devices()) -> int:
    """Return how many bytes another model may use.

    This is the free memory of the machine and of `devices`, minus a margin, minus the mapped files of loaded models,
    and minus the memory that loading models still need.
    """
    free = memory.available_bytes + devices.free_bytes - margin_bytes(memory.total_bytes)
    for tenant in tenants:
        held = None if tenant.pid is None else memory.held.get(tenant.pid)
        if tenant.is_loading:
            free -= max(0, tenant.needed_bytes - (0 if held is None else held.rss_bytes))
        if held is not None:
            free -= min(tenant.weights_bytes, held.rss_bytes) if held.mapped_bytes is None else held.mapped_bytes
    return max(0, free)


def first_to_leave(tenants: Sequence[Tenant]) -> Tenant | None:
    """Return the least recently used model among those that can be unloaded; None if there is none."""
    return max((tenant for tenant in tenants if not tenant.why_staying), key=lambda tenant: tenant.idle_s, default=None)


def describe_refusal(name: str, needed_bytes: int, free: int, tenants: Sequence[Tenant]) -> str:
    """Return the message for a model that does not fit into memory, with the sizes."""
    others = "; ".join(
        f"{tenant.name} takes {_size(tenant.needed_bytes)} and {tenant.why_staying}" for tenant in tenants
    )
    return (
        f"there is no room for {name}: it needs about {_size(needed_bytes)} of memory, and {_size(free)} are free"
        f"{f' ({others})' if others else ''}"
    )


def describe_limit(name: str, max_loaded: int, tenants: Sequence[Tenant]) -> str:
    """Return the message for a model that would exceed the limit of loaded models."""
    others = "; ".join(f"{tenant.name} {tenant.why_staying}" for tenant in tenants)
    return (
        f"{name} cannot be loaded now: at most {max_loaded} models are loaded at a time (load.max_models), and {others}"
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
