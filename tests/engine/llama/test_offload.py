"""How many layers fit on the GPUs."""

from __future__ import annotations

from edgeagent.engine.llama.offload import RESERVE_BYTES, Footprint, kv_cache_bytes, num_layers_that_fit

GIB = 1 << 30


def test_kv_cache_of_a_known_shape() -> None:
    # 24 layers, 4,096 cells, 2 KV heads of 64 values, f16: 12 KiB a token.
    assert kv_cache_bytes(24, 4096, 128, 2) == 4096 * 12 * 1024


def test_everything_fits() -> None:
    assert num_layers_that_fit(Footprint(4 * GIB, GIB, 32), 24 * GIB) == -1


def test_part_fits_in_proportion() -> None:
    assert num_layers_that_fit(Footprint(31 * GIB, 2 * GIB, 32), 10 * GIB + RESERVE_BYTES) == 10


def test_nothing_fits() -> None:
    assert num_layers_that_fit(Footprint(4 * GIB, GIB, 32), RESERVE_BYTES // 2) == 0
