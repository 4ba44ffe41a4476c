"""Selects the devices over which llama.cpp spreads a model, with the free memory of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edgeagent.types import DeviceInfo

_UNKNOWN = 1 << 60  # for a device that does not report its memory: the load is tried


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU and its memory. `shares_memory`: its memory is the machine's RAM."""

    name: str
    free_bytes: int
    total_bytes: int
    shares_memory: bool = False


def gpus_of(devices: Iterable[DeviceInfo], main_gpu: int = -1) -> tuple[GpuDevice, ...]:
    """Return the devices of a model as llama.cpp chooses them (llama.cpp, llama_prepare_model_devices).

    Remote (RPC) devices come first. A discrete device that two backends report counts once. Integrated devices count
    only if there is no discrete one, and only those of one backend. A device that does not report its memory counts as
    having enough. If `main_gpu` is not negative, only the device with this index is returned. The result is empty if
    there is no such device.
    """
    discrete: list[DeviceInfo] = []
    integrated: list[DeviceInfo] = []
    remote: list[DeviceInfo] = []
    for device in devices:
        if device.kind != "gpu":
            continue
        if device.backend == "RPC":
            remote.append(device)
        elif not device.is_integrated:
            if not device.id or device.id not in {each.id for each in discrete}:
                discrete.append(device)
        elif not integrated or device.backend == integrated[-1].backend:
            integrated.append(device)
    chosen = [*remote, *(discrete or integrated)]
    if main_gpu >= 0:
        chosen = chosen[main_gpu : main_gpu + 1]
    return tuple(
        GpuDevice(each.name, each.memory_free_bytes, each.memory_total_bytes, _shares_memory(each))
        if each.memory_total_bytes
        else GpuDevice(each.name, _UNKNOWN, _UNKNOWN)
        for each in chosen
    )


def _shares_memory(device: DeviceInfo) -> bool:
    # The CPU and GPU of Apple's chips share one memory, but llama.cpp reports the GPU as a discrete one.
    return device.is_integrated or device.backend in ("MTL", "Metal")
