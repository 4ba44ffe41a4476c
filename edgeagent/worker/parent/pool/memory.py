"""How much memory the machine has left, and how much each worker holds. It reads files: call it in a thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import psutil


@dataclass(frozen=True, slots=True)
class Held:
    """The memory of one process.

    `mapped_bytes` is the part that a file backs: the system counts it as available, and the process needs it all the
    same. None where the system does not tell.
    """

    rss_bytes: int
    mapped_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The machine's memory, and that of some processes by id; one that has ended is left out."""

    available_bytes: int
    total_bytes: int
    held: Mapping[int, Held] = field(default_factory=dict)


def read_memory(pids: Collection[int] = ()) -> Memory:
    """Return the machine's memory and that of these processes."""
    machine = psutil.virtual_memory()
    held: dict[int, Held] = {}
    for pid in pids:
        try:
            info = psutil.Process(pid).memory_info()
        except psutil.Error:
            continue
        held[pid] = Held(info.rss, getattr(info, "shared", None))
    return Memory(machine.available, machine.total, held)
