"""Divides a model's layers between the machine's RAM and its GPUs, and predicts the memory taken on each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from edgeagent.config import EngineConfig
from edgeagent.fit.need import WORKER_BYTES, blocks_bytes, compute_bytes, layer_kv_bytes, outputs_bytes, repacked_bytes
from edgeagent.types import DeviceInfo, FileShape

_UNKNOWN = 1 << 60  # for a device that does not report its memory: the load is tried


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU and its memory. `shares_memory`: its memory is the machine's RAM."""

    name: str
    free_bytes: int
    total_bytes: int
    shares_memory: bool = False


def gpus_of(devices: Iterable[DeviceInfo], only_gpu: int = -1) -> tuple[GpuDevice, ...]:
    """Return the devices of a model as llama.cpp chooses them (llama.cpp, llama_prepare_model_devices).

    Remote (RPC) devices come first. A discrete device that two backends report counts once. Integrated devices count
    only if there is no discrete one, and only those of one backend. A device that does not report its memory counts as
    having enough. If `only_gpu` is not negative, only the device with this index is returned. The result is empty if
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
    if only_gpu >= 0:
        chosen = chosen[only_gpu : only_gpu + 1]
    return tuple(
        GpuDevice(each.name, each.memory_free_bytes, each.memory_total_bytes, _shares_memory(each))
        if each.memory_total_bytes
        else GpuDevice(each.name, _UNKNOWN, _UNKNOWN)
        for each in chosen
    )


def _shares_memory(device: DeviceInfo) -> bool:
    # The CPU and GPU of Apple's chips share one memory, but llama.cpp reports the GPU as a discrete one.
    return device.is_integrated or device.backend in ("MTL", "Metal")


# Memory that stays free on each GPU for the driver's context and libraries, and for the growth of other programs.
_DRIVER_BYTES = 384 << 20
_GPU_MARGIN = 0.03


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The memory that a model may take: RAM, and memory of each GPU that it may use."""

    ram_bytes: int
    gpus: tuple[GpuDevice, ...] = ()

    def beside(self, use: MemoryUse) -> FreeMemory:
        """Return the memory that is left beside what something else takes."""
        taken = list(zip(self.gpus, use.gpu_bytes, strict=True))
        ram = use.ram_bytes + sum(num for gpu, num in taken if gpu.shares_memory)
        gpus = tuple(replace(gpu, free_bytes=max(0, gpu.free_bytes - num)) for gpu, num in taken)
        return FreeMemory(max(0, self.ram_bytes - ram), gpus)


@dataclass(frozen=True, slots=True)
class Layout:
    """How many layers of a model and of its draft model are on GPUs. A file's output matrix counts as one more layer.

    The experts of the model's first `num_cpu_experts` layers are in the machine's RAM. The model keeps `max_rewind`
    earlier states of each sequence.
    """

    num_gpu_layers: int = 0
    num_draft_gpu_layers: int = 0
    num_cpu_experts: int = 0
    max_rewind: int = 0


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory that a model takes in RAM and on each GPU, in the order of the GPUs."""

    ram_bytes: int
    gpu_bytes: tuple[int, ...] = ()

    def __add__(self, other: MemoryUse) -> MemoryUse:
        on_gpus = tuple(map(sum, zip(self.gpu_bytes, other.gpu_bytes, strict=True)))
        return MemoryUse(self.ram_bytes + other.ram_bytes, on_gpus)

    def fits(self, free_memory: FreeMemory) -> bool:
        """Whether the RAM and each GPU have this much free memory.

        Memory taken on a GPU that shares the machine's RAM also counts as RAM.
        """
        shared = sum(taken for taken, gpu in zip(self.gpu_bytes, free_memory.gpus, strict=True) if gpu.shares_memory)
        return self.ram_bytes + shared <= free_memory.ram_bytes and self.fits_gpus(free_memory)

    def fits_gpus(self, free_memory: FreeMemory) -> bool:
        return all(taken <= gpu.free_bytes for taken, gpu in zip(self.gpu_bytes, free_memory.gpus, strict=True))


def layouts(
    shapes: Sequence[FileShape], config: EngineConfig, free_memory: FreeMemory, max_rewind: int = 0
) -> Iterator[Layout]:
    """Yield the layouts that a model may have with `max_rewind` earlier states, the best one first.

    The first shape is the model, the last one its draft model, if there is one.

    1. All layers are on the GPUs, or the configured number. One layout has the draft model on the GPUs, the next one on
       the CPU.
    2. The same, with the experts of more and more layers in RAM, because a token uses few of the experts. If the number
       of these layers is configured, all layouts have this number.
    3. Fewer and fewer layers are on the GPUs. The experts are in RAM as in the last layout of 2, and the draft model is
       on the CPU. These layouts are left out if the number of layers on GPUs is configured.

    If there are no GPUs, or if none may be used, everything is on the CPU in the only layout.
    """
    num_all, num_draft = (len(shape.layers) + 1 for shape in (shapes[0], shapes[-1]))
    has_draft = len(shapes) > 1
    if not free_memory.gpus or config.gpu_layers == 0:
        yield Layout(max_rewind=max_rewind)
        return
    has_experts = any(layer.num_expert_bytes for layer in shapes[0].layers)
    asked = config.cpu_experts if has_experts else 0
    experts = range(num_all) if asked < 0 else [min(asked, num_all - 1)]
    most = num_all if config.gpu_layers < 0 else min(config.gpu_layers, num_all)
    for num_experts in experts if has_experts else [0]:
        for num_drafting in ([num_draft] if has_draft else []) + [0]:
            yield Layout(most, num_drafting, num_experts, max_rewind)
    if config.gpu_layers < 0:
        yield from (Layout(count, 0, max(experts), max_rewind) for count in range(num_all - 1, -1, -1))


def predict_use(
    shapes: Sequence[FileShape],
    config: EngineConfig,
    num_cells: int,
    layout: Layout,
    gpus: Sequence[GpuDevice],
    *,
    with_reserve: bool = True,
) -> MemoryUse:
    """Return the memory that a model and its draft model take in a layout, with a context of `num_cells` tokens.

    The first shape is the model, the others its draft model. If `with_reserve`, a reserve for the driver and for other
    programs is added on each GPU that is used.
    """
    ram = WORKER_BYTES + blocks_bytes(shapes[0], config, num_cells)
    on_gpus = [0] * len(gpus)
    for index, shape in enumerate(shapes):
        own = Layout(layout.num_draft_gpu_layers) if index else layout
        use = _predict_file_use(shape, config, num_cells, own, _shares(gpus, on_gpus, config))
        ram += use.ram_bytes
        on_gpus = [sum(both) for both in zip(on_gpus, use.gpu_bytes, strict=True)]
    for index, gpu in enumerate(gpus if with_reserve else ()):
        on_gpus[index] += _DRIVER_BYTES + int(_GPU_MARGIN * gpu.total_bytes) if on_gpus[index] else 0
    return MemoryUse(ram, tuple(on_gpus))


def _predict_file_use(
    shape: FileShape,
    config: EngineConfig,
    num_cells: int,
    layout: Layout,
    shares: Sequence[float],
) -> MemoryUse:
    """Return the memory that one file takes, without that of the worker, the cache blocks and the drivers.

    `layout.num_gpu_layers` counts the layers of this file, even if it is the draft model's. `shares` are the GPUs'
    shares of these layers.
    """
    num_there = layout.num_gpu_layers
    cells = [layer_kv_bytes(layer, config, num_cells, layout.max_rewind) for layer in shape.layers]
    weights = [
        layer.num_bytes - (layer.num_expert_bytes if index < layout.num_cpu_experts else 0)
        for index, layer in enumerate(shape.layers)
    ]
    first = len(shape.layers) + 1 - num_there
    on_gpus = [0] * len(shares)
    for place, gpu in _places(len(shape.layers), num_there, shares):
        is_output = place == len(shape.layers)
        matrices = shape.output_bytes or shape.table_bytes if is_output else weights[place]
        if config.split_mode == "row":  # each GPU has its share of the rows; cells are divided by layers
            on_gpus = [taken + int(matrices * part / sum(shares)) for taken, part in zip(on_gpus, shares, strict=True)]
        else:
            on_gpus[gpu] += matrices
        on_gpus[gpu] += 0 if is_output else cells[place]
    compute = compute_bytes(shape, config, num_cells, layout.max_rewind, is_on_gpu=layout.num_gpu_layers > 0)
    there = compute + outputs_bytes(shape, config)
    gone = sum(weights[first:]) + (shape.output_bytes if num_there else 0)
    share = 1 - gone / max(1, sum(layer.num_bytes for layer in shape.layers) + shape.output_bytes)
    here = shape.num_bytes - gone + int(share * repacked_bytes(shape)) + sum(cells[:first])
    return MemoryUse(
        here + outputs_bytes(shape, config) + compute // 2, tuple(taken + there if taken else 0 for taken in on_gpus)
    )


def _shares(gpus: Sequence[GpuDevice], used: Sequence[int], config: EngineConfig) -> list[float]:
    """Return each GPU's share of the layers: as configured, or in proportion to its free memory.

    `used` are the bytes that the files before this one take on each GPU. If no GPU has free memory, all shares are
    equal.
    """
    asked = [*config.tensor_split, *[0.0] * len(gpus)][: len(gpus)]
    shares = asked if any(asked) else [max(0.0, gpu.free_bytes - taken) for gpu, taken in zip(gpus, used, strict=True)]
    return shares if any(shares) else [1.0] * len(gpus)


def _places(num_layers: int, num_there: int, shares: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Yield the index of each layer that is on a GPU, with the index of the GPU.

    These are the last `num_there` layers. The output matrix counts as one more layer after the model's `num_layers`.
    The layers are divided as in llama.cpp (llama_model::load_tensors).
    """
    ends = list(accumulate(shares))
    first = num_layers + 1 - num_there
    for place in range(first, num_layers + 1):
        yield place, min(bisect_right(ends, (place - first) / num_there * ends[-1]), len(ends) - 1)
