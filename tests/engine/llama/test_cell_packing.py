"""Packed blocks: half the bytes, rounded within a group's scale, everything else as it was."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.cell_packing import CellPacker
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.errors import InternalError
from edgeagent.types import MemoryKind, replace
from tests.conftest import TinyModel
from tests.models import MEMORIES

FLASH = EngineConfig(threads=1, batch=48, parallel=2, ctx=256, flash_attention="on")
PLAIN = replace(FLASH, flash_attention="off")
F32 = replace(PLAIN, kv_type_k="f32", kv_type_v="f32")
TOKENS = [20 + 7 * i % 200 for i in range(40)]
KINDS = [
    pytest.param((kind, config), id=f"{kind}-{config.flash_attention}")
    for kind in MEMORIES
    for config in (FLASH, PLAIN)
]
WITH_CELLS = [param for param in KINDS if param.values[0][0] is not MemoryKind.RECURRENT]  # type: ignore[index]
STEP = 1 / 127  # of the largest value of a group


@pytest.fixture
def runner(request: pytest.FixtureRequest, tiny_model: TinyModel) -> Iterator[LlamaRunner]:
    kind, config = request.param
    model = Model(tiny_model(kind), config)
    made = LlamaRunner(model, config)
    yield made
    made.close()
    model.close()


def feed(runner: LlamaRunner, seq_id: int, start: int, tokens: list[int]) -> np.ndarray:
    runner.decode([Slice(seq_id, start, tokens, 1)])
    return runner.logits(0).copy()


def saved(runner: LlamaRunner, num_tokens: int = 32) -> bytes:
    feed(runner, 0, 0, TOKENS[:num_tokens])
    return bytes(runner.save(0, 0, num_tokens))


@pytest.mark.parametrize("runner", WITH_CELLS, indirect=True)
def test_what_is_unpacked_differs_by_the_rounding_only(runner: LlamaRunner) -> None:
    payload = saved(runner)
    packer = CellPacker()
    packed = bytes(packer.pack(payload))
    unpacked = bytes(packer.unpack(packed))
    assert len(unpacked) == len(payload)
    if runner.memory_kind is MemoryKind.FULL_ATTENTION:
        assert len(packed) < 0.6 * len(payload)
    differs = np.flatnonzero(np.frombuffer(unpacked, np.uint8) != np.frombuffer(payload, np.uint8))
    # f16 values are at even positions, since all that is before them comes in fours.
    values, rounded = (np.frombuffer(each, np.float16).astype(np.float64) for each in (payload, unpacked))
    changed = np.unique(differs // 2)
    assert len(changed) > 0
    largest = np.abs(values[changed]).max()
    assert np.abs(values[changed] - rounded[changed]).max() <= largest * STEP


@pytest.mark.parametrize("runner", WITH_CELLS, indirect=True)
def test_a_sequence_continues_from_packed_cells_nearly_as_from_exact_ones(runner: LlamaRunner) -> None:
    payload = saved(runner)
    exact = feed(runner, 0, 32, TOKENS[32:])
    packer = CellPacker()
    assert runner.restore(1, packer.unpack(packer.pack(payload)), 32)
    rounded = feed(runner, 1, 32, TOKENS[32:])
    other = feed(runner, 2, 0, TOKENS[32:])
    assert np.abs(rounded - exact).max() < 0.2 * np.abs(other - exact).max()


@pytest.mark.parametrize("runner", [pytest.param((kind, F32), id=f"{kind}") for kind in MEMORIES], indirect=True)
def test_cells_that_are_not_f16_are_kept_exactly(runner: LlamaRunner) -> None:
    payload = saved(runner)
    packer = CellPacker()
    assert packer.pack(payload) is payload
    assert packer.unpack(payload) is payload


@pytest.mark.parametrize("runner", KINDS, indirect=True)
def test_packing_what_is_rounded_changes_nothing_more(runner: LlamaRunner) -> None:
    """Values that were rounded once are near a group's steps, so a second time costs at most the scale's last bit."""
    packer = CellPacker()
    once = bytes(packer.unpack(packer.pack(saved(runner))))
    twice = bytes(packer.unpack(packer.pack(once)))
    first, second = (np.frombuffer(each, np.float16).astype(np.float64) for each in (once, twice))
    changed = np.flatnonzero(np.frombuffer(once, np.uint8) != np.frombuffer(twice, np.uint8)) // 2
    assert np.all(np.abs(first[changed] - second[changed]) <= 2**-9 * np.abs(first[changed]) + 2**-14)


@pytest.mark.parametrize("payload", [b"", b"x", b"\1\0\0\0" * 64, bytes(1000), b"edgeq8_"])
def test_bytes_of_another_layout_are_kept_as_they_are(payload: bytes) -> None:
    packer = CellPacker()
    assert packer.pack(payload) == payload
    assert packer.unpack(payload) == payload


@pytest.mark.parametrize("runner", WITH_CELLS[:1], indirect=True)
def test_damage_is_refused(runner: LlamaRunner) -> None:
    packer = CellPacker()
    packed = bytes(packer.pack(saved(runner)))
    for damaged in (packed[:-1], packed + b"x", packed[:20], packed[:16] + b"\xff" * 8 + packed[24:], packed[:30]):
        with pytest.raises(InternalError):
            packer.unpack(damaged)


@pytest.mark.parametrize("runner", WITH_CELLS[:1], indirect=True)
def test_every_cut_of_a_payload_is_handled(runner: LlamaRunner) -> None:
    """A layout that ends early is none: nothing is read behind the end."""
    payload = saved(runner, 17)
    packer = CellPacker()
    for end in range(0, len(payload), 97):
        cut = payload[:end]
        assert len(bytes(packer.unpack(packer.pack(cut)))) == end
