"""The devices over which a model is spread: those that llama.cpp uses."""

from __future__ import annotations

import pytest

from edgeagent.config import EngineConfig
from edgeagent.fit.placement import GpuDevice, gpus_of
from edgeagent.types import DeviceInfo

GIB = 1 << 30
CPU = DeviceInfo("CPU", "a CPU", "cpu", 64 * GIB, 64 * GIB, backend="CPU")
CARD = DeviceInfo("CUDA0", "a card", "gpu", 8 * GIB, 7 * GIB, backend="CUDA", id="0000:01:00.0")
SAME_CARD = DeviceInfo("Vulkan0", "a card", "gpu", 8 * GIB, 7 * GIB, backend="Vulkan", id="0000:01:00.0")
SECOND_CARD = DeviceInfo("CUDA1", "a card", "gpu", 8 * GIB, 5 * GIB, backend="CUDA", id="0000:02:00.0")
INTEGRATED = DeviceInfo("Vulkan1", "a part", "gpu", 32 * GIB, 16 * GIB, is_integrated=True, backend="Vulkan")
SAME_INTEGRATED = DeviceInfo("SYCL0", "a part", "gpu", 32 * GIB, 16 * GIB, is_integrated=True, backend="SYCL")
FAR = DeviceInfo("RPC0", "far", "gpu", 8 * GIB, 8 * GIB, backend="RPC")
NAMELESS = DeviceInfo("X0", "a card", "gpu", 8 * GIB, 8 * GIB, backend="X")


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ([CPU], []),
        ([CARD, CPU], ["CUDA0"]),
        ([CARD, SAME_CARD, CPU], ["CUDA0"]),
        ([CARD, SECOND_CARD], ["CUDA0", "CUDA1"]),
        ([INTEGRATED, CARD], ["CUDA0"]),
        ([INTEGRATED, SAME_INTEGRATED], ["Vulkan1"]),
        ([CARD, FAR], ["RPC0", "CUDA0"]),
        ([INTEGRATED, FAR], ["RPC0", "Vulkan1"]),
        ([NAMELESS, NAMELESS], ["X0", "X0"]),
    ],
)
def test_each_piece_of_hardware_counts_once(devices: list[DeviceInfo], names: list[str]) -> None:
    assert [gpu.name for gpu in gpus_of(devices)] == names


def test_one_gpu_alone() -> None:
    assert gpus_of([CARD, SECOND_CARD, CPU], only_gpu=1) == (GpuDevice("CUDA1", 5 * GIB, 8 * GIB),)
    assert gpus_of([CARD, CPU], only_gpu=1) == ()


def test_which_gpu_is_the_only_one() -> None:
    asked = [EngineConfig(main_gpu=gpu, split_mode=mode) for mode in ("layer", "none") for gpu in (-1, 0, 1)]
    assert [config.only_gpu for config in asked] == [-1, 0, 1, 0, 0, 1]


def test_an_integrated_one_has_the_machines_memory() -> None:
    assert [gpu.shares_memory for gpu in gpus_of([INTEGRATED])] == [True]
    assert [gpu.shares_memory for gpu in gpus_of([DeviceInfo("Metal", "", "gpu", GIB, GIB, backend="MTL")])] == [True]
    assert [gpu.shares_memory for gpu in gpus_of([CARD])] == [False]


def test_a_device_that_does_not_say_what_it_has_is_tried() -> None:
    (gpu,) = gpus_of([DeviceInfo("X0", "", "gpu", 0, 0, backend="X")])
    assert gpu.free_bytes > 1 << 50
