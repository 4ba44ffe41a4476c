"""Whether a model is loaded with its draft: only if it loses nothing."""

from __future__ import annotations

import pytest

from edgeagent.config import EngineConfig
from edgeagent.fit.need import predict
from edgeagent.fit.placement import FreeMemory, GpuDevice
from edgeagent.fit.plan import why_no_draft
from tests.fit.shapes import GIB, MIB, shape

MODEL = shape()
DRAFT = shape(2, layer_bytes=10 * MIB, table_bytes=10 * MIB, output_bytes=10 * MIB)
CONFIG = EngineConfig()


def bytes_of(*shapes: object, num_cells: int = 8192) -> int:
    return predict(shapes, CONFIG, num_cells).total_bytes  # type: ignore[arg-type]


def test_with_memory_for_both_it_stays() -> None:
    assert why_no_draft([MODEL], CONFIG, FreeMemory(0)) == "", "there is none"
    assert why_no_draft([MODEL, DRAFT], CONFIG, FreeMemory(64 * GIB)) == ""
    card = GpuDevice("card", 64 * GIB, 64 * GIB)
    assert why_no_draft([MODEL, DRAFT], CONFIG, FreeMemory(64 * GIB, (card,))) == ""


@pytest.mark.parametrize(
    "ram_bytes",
    [bytes_of(MODEL), bytes_of(MODEL, DRAFT) - MIB, bytes_of(MODEL, num_cells=5000), 1 * MIB],
    ids=["of the model", "a little too little", "of a shorter context", "of neither"],
)
def test_it_takes_nothing_from_the_model(ram_bytes: int) -> None:
    why = why_no_draft([MODEL, DRAFT], CONFIG, FreeMemory(ram_bytes))
    assert why.startswith("it takes about ") and why.endswith("there is too little for both")


def test_it_takes_no_layer_from_a_gpu() -> None:
    card = GpuDevice("card", 2 * GIB, 2 * GIB)
    assert why_no_draft([MODEL, DRAFT], CONFIG, FreeMemory(64 * GIB, (card,))) == "", (
        "the draft is in the machine's memory"
    )
    assert why_no_draft([MODEL, DRAFT], CONFIG, FreeMemory(32 * MIB, (card,)))
