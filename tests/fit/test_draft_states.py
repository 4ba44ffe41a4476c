"""How many earlier states are kept for drafts: as many as may be drafted, within limits, if nothing else is reduced."""

from __future__ import annotations

from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.fit.need import predict
from edgeagent.fit.placement import FreeMemory, GpuDevice
from edgeagent.fit.plan import describe, draft_states, make_plan, plan_again
from edgeagent.types import FileShape, LayerShape, replace
from tests.fit.shapes import GIB, MIB, shape

ROOMY = FreeMemory(64 * GIB)
CONFIG = EngineConfig(draft_ngrams=True)
NUM_SEQUENCES = CONFIG.num_parallel + 3


def hybrid(state_bytes: int, num_layers: int = 3, layer_bytes: int = GIB) -> FileShape:
    """Return a model with one attention layer; the other layers keep a state."""
    layers = (
        *[LayerShape(layer_bytes, 0, 0, 0, state_bytes // 4)] * num_layers,
        LayerShape(layer_bytes, 0, 1024, 1024),
    )
    return structs.replace(
        shape(1, layer_bytes=layer_bytes), layers=layers, num_bytes=4 * layer_bytes, keeps_states=True
    )


SMALL, LARGE = hybrid(16 << 10), hybrid(8 * MIB)
# Three layers, and one more layer's size for a buffer.
SMALL_BYTES, LARGE_BYTES = 4 * NUM_SEQUENCES * (16 << 10), 4 * NUM_SEQUENCES * 8 * MIB


def num_kept(
    model: FileShape, config: EngineConfig = CONFIG, free_memory: FreeMemory = ROOMY, num_drafts: int = 0
) -> int:
    states = draft_states([model, *[shape(1)] * num_drafts], config, free_memory)
    assert states is not None
    return states.num_tokens


def test_small_states_are_kept_for_every_draft() -> None:
    assert num_kept(SMALL) == CONFIG.draft_tokens
    assert num_kept(SMALL, EngineConfig()) == CONFIG.draft_tokens, "for what a grammar forces too"


def test_large_states_are_bounded() -> None:
    assert num_kept(LARGE) == GIB // LARGE_BYTES
    assert num_kept(hybrid(8 * MIB, layer_bytes=256 * MIB)) == GIB // 2 // LARGE_BYTES, "half of the files"
    assert num_kept(hybrid(1 * MIB, layer_bytes=MIB)) == 2, "and what is little anyway"
    assert num_kept(LARGE, free_memory=FreeMemory(4 * GIB)) == GIB // 2 // LARGE_BYTES, "an eighth of what is free"
    cards = (GpuDevice("card", 4 * GIB, 4 * GIB),)
    assert num_kept(LARGE, free_memory=FreeMemory(64 * GIB, cards)) == GIB // 2 // LARGE_BYTES, "there too"
    assert num_kept(LARGE, EngineConfig(draft_ngrams=True, draft_tokens=2)) == 2
    assert num_kept(LARGE, EngineConfig()) == 0, "not for what a grammar forces"
    assert num_kept(LARGE, EngineConfig(), num_drafts=1) == num_kept(LARGE)


def test_others_keep_none() -> None:
    assert draft_states([shape()], CONFIG, ROOMY) is None
    assert draft_states([structs.replace(SMALL, keeps_states=False)], CONFIG, ROOMY) is None
    assert draft_states([SMALL], EngineConfig(draft_tokens=0), ROOMY) is None


def test_they_are_part_of_the_plan() -> None:
    plan, without = make_plan([LARGE], CONFIG, ROOMY), make_plan([LARGE], EngineConfig(), ROOMY)
    assert (plan.layout.max_rewind, without.layout.max_rewind) == (4, 0)
    kept = predict([LARGE], plan.config, plan.num_cells, max_rewind=4)
    none = predict([LARGE], plan.config, plan.num_cells)
    assert plan.memory_use.ram_bytes - without.memory_use.ram_bytes == kept.total_bytes - none.total_bytes
    (choice,) = describe(plan, CONFIG, 4)
    assert (choice.name, choice.value, choice.by) == ("drafts", "up to 4", "memory")
    assert choice.why.endswith("take 224.0 MiB for each token")
    (choice,) = describe(without, EngineConfig(), 4)
    assert (choice.value, choice.by) == ("none", "memory")
    (choice,) = describe(make_plan([SMALL], CONFIG, ROOMY), CONFIG, 4)
    assert (choice.value, choice.by) == ("up to 16", "option")
    assert describe(make_plan([shape()], CONFIG, ROOMY), CONFIG, 8) == ()


def test_they_give_way_first() -> None:
    whole = make_plan([LARGE], EngineConfig(), ROOMY)
    tight = FreeMemory(whole.memory_use.ram_bytes)
    plan = make_plan([LARGE], CONFIG, tight)
    assert num_kept(LARGE, free_memory=tight) > 0
    assert (plan.layout.max_rewind, plan.num_cells, plan.fits) == (0, whole.num_cells, True)
    assert plan.draft_states is not None
    assert plan.draft_states.num_tokens == 0
    tries = [plan_again([LARGE], CONFIG, ROOMY, count) for count in range(3)]
    assert [(each.layout.max_rewind, each.num_cells) for each in tries] == [(4, 8192), (0, 8192), (0, 4096)]


def test_they_move_no_draft_off_the_gpu() -> None:
    shapes, config = [LARGE, shape(1, layer_bytes=512 * MIB)], replace(CONFIG, ctx=4096)
    for num_mib in range(5000, 7000, 64):
        free_memory = FreeMemory(64 * GIB, (GpuDevice("card", num_mib * MIB, 16 * GIB),))
        without = make_plan(shapes, config, free_memory, may_keep_states=False)
        plan = make_plan(shapes, config, free_memory)
        assert plan.layout.num_draft_gpu_layers == without.layout.num_draft_gpu_layers
