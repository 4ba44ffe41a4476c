"""A worker's choices: measured once on a real model, stored, and measured again only under other conditions."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import OutOfCells
from edgeagent.engine.tuning.workload import Workload
from edgeagent.types import MemoryKind
from edgeagent.types.choices import CandidateTimes, SavedTuning, StepSums
from edgeagent.types.file_shape import LayerShape
from edgeagent.worker.child.generator import choosing
from edgeagent.worker.child.generator.choosing import Chosen, choose, period, read_tuning
from tests.conftest import TinyModel

CONFIG = EngineConfig(threads=1, batch=64, parallel=2, ctx=512, calibration_s=30.0)


MEASURE = choosing._measure


@pytest.fixture(autouse=True)
def _choices_by_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_measure", MEASURE)


@pytest.fixture
def model(tiny_model: TinyModel) -> Iterator[Model]:
    made = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    yield made
    made.close()


class Load:
    """Loads one model, and counts its measurements."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.num_measured = 0

    def __call__(self, saved_tuning: bytes = b"", **options: object) -> Chosen:
        config = CONFIG.model_copy(update=options)
        return choose(self._model, config, saved_tuning, self._count)

    def _count(self) -> None:
        self.num_measured += 1


@pytest.fixture
def load(model: Model) -> Load:
    return Load(model)


def saved_tuning_of(chosen: Chosen) -> bytes:
    """Return what would be stored for the next load."""
    return msgspec.json.encode(chosen.tuning)


def opposite(saved_tuning: bytes) -> bytes:
    """Return what would be stored if the other form had been much faster."""
    found = read_tuning(saved_tuning)
    assert found is not None
    assert found.measurements is not None
    candidates = tuple(
        structs.replace(each, seconds=dict.fromkeys(each.seconds, 1e-4 if each.is_flash else 1e-6))
        for each in found.measurements.candidates
    )
    measurements = structs.replace(found.measurements, candidates=candidates, is_whole=True)
    return msgspec.json.encode(structs.replace(found, measurements=measurements, is_flash=False))


def test_a_real_model_is_measured_and_what_is_kept_decides_from_then_on(load: Load) -> None:
    first = load()
    assert load.num_measured == 1
    assert [choice.name for choice in first.choices] == ["flash attention", "micro-batch", "padding for weights"]
    assert first.choices[2].by == "measurement"
    assert first.weight_padding is not None
    saved_tuning = opposite(saved_tuning_of(first))
    again = load(saved_tuning)
    assert load.num_measured == 1
    assert again.attention.flash == "off"
    assert load(saved_tuning_of(again)).attention == again.attention


def test_llama_cpp_s_own_choice_is_not_kept_as_plain_attention(load: Load) -> None:
    """As on a GPU, llama.cpp chooses the form for a quantized V cache. A later load without it begins with flash."""
    chosen = load(kv_type_k="q8_0", kv_type_v="q8_0")
    assert chosen.attention.flash == "auto"
    assert load(saved_tuning_of(chosen), calibration_s=0.0).attention.flash == "on"


def test_the_next_load_chooses_for_the_work_that_was_done(load: Load) -> None:
    """Plain attention is slower for prompts and ten times as fast for a token behind others."""
    found = read_tuning(saved_tuning_of(load()))
    assert found is not None
    assert found.measurements is not None
    works = [work for work in Workload if not work.startswith("batch")]
    on = dict.fromkeys(map(str, works), 1e-3) | {Workload.TOKEN_AFTER_TEXT: 10e-3}
    off = dict.fromkeys(map(str, works), 1e-3) | {Workload.PROMPT_ALONE: 2e-3, Workload.TOKEN_AFTER_TEXT: 2e-3}
    candidates = (CandidateTimes(True, 64, on), CandidateTimes(False, 64, off))
    measurements = structs.replace(found.measurements, candidates=candidates, is_whole=True)
    fresh = structs.replace(found, measurements=measurements, is_flash=True, micro_batch=64)
    assert load(msgspec.json.encode(fresh)).attention.flash == "on"
    num_pairs = 1e5 * measurements.depth
    used = structs.replace(fresh, work=(StepSums("token", 1e5, 1e5, num_pairs, num_pairs, 1500.0),))
    chosen = load(msgspec.json.encode(used))
    assert chosen.attention.flash == "off"
    [now] = chosen.tuning.work
    assert now.seconds < 1500 - 1e5 * 7e-3
    assert load(saved_tuning_of(chosen)).attention.flash == "off"
    assert load(saved_tuning_of(chosen), threads=2).tuning.work == (), "other threads, other times"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b"\xff", b"[" * 50_000, b'{"conditions":{},"is_flash":1}', b"x" * 70_000]
)
def test_what_is_not_ours_is_measured_again(load: Load, content: bytes) -> None:
    assert read_tuning(content) is None
    assert load(content).choices
    assert load.num_measured == 1


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e9, "1", None])
def test_numbers_that_cannot_be_are_refused(load: Load, seconds: object) -> None:
    content = msgspec.json.decode(saved_tuning_of(load()))
    content["measurements"]["candidates"][0]["seconds"]["token alone"] = seconds
    assert read_tuning(msgspec.json.encode(content)) is None


def test_others_words_decide_nothing(load: Load) -> None:
    """Kinds of work and sizes that this version does not know, as another version may have stored them."""
    content = msgspec.json.decode(saved_tuning_of(load()))
    content["measurements"] |= {"depth": 1, "num_layers": 1, "is_whole": True}
    content["measurements"]["candidates"] = [{"is_flash": True, "micro_batch": 7, "seconds": {"dance": 1.0}}]
    content["micro_batch"] = 7
    assert load(msgspec.json.encode(content)).choices
    assert load.num_measured == 1


@pytest.mark.parametrize("options", [{"ctx": 1024}, {"threads": 2}, {"kv_type_k": "f32"}, {"parallel": 3}])
def test_other_conditions_are_measured_anew(
    load: Load, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_tuning = opposite(saved_tuning_of(load()))
    monkeypatch.setattr(choosing, "_measure", lambda *_: None)  # the request to measure is enough
    load(saved_tuning, **options)
    assert load.num_measured == 2


def test_what_was_cut_off_is_tried_again_but_not_for_ever(load: Load) -> None:
    saved_tuning = b""
    for _ in range(5):
        saved_tuning = saved_tuning_of(load(saved_tuning, calibration_s=1e-6))
    assert load.num_measured == 3


def test_options_override_and_a_choice_may_be_left_out(load: Load) -> None:
    assert load(flash_attention="off").attention.flash == "off"
    load.num_measured = 0
    left_out = load(calibration_s=0.0)
    assert (load.num_measured, left_out.attention.flash, left_out.tuning.num_tries) == (0, "on", 0)
    assert {choice.by for choice in left_out.choices} == {"default"}


def test_a_machine_without_free_memory_measures_nothing(model: Model) -> None:
    def fail() -> None:
        raise AssertionError

    chosen = choose(model, CONFIG, b"", fail, kv_bytes_per_token=1e6, free_bytes=lambda: 1 << 30)
    assert {choice.by for choice in chosen.choices} == {"default"}


def test_the_states_of_a_hybrid_count_as_memory_of_the_probes(model: Model) -> None:
    """As those of Qwen3.5 0.8B: 19 MiB for each sequence."""
    states = [LayerShape(1, num_state_values=5_000_000)]
    measured: list[bool] = []
    for layers in (states, []):
        choose(model, CONFIG, b"", lambda: measured.append(True), layers=layers, free_bytes=lambda: 200 << 20)
    assert measured == [True], "without states there is enough memory"


ATTENTION, STATE, EXPERTS = LayerShape(1, 0, 8, 8), LayerShape(1, num_state_values=8), LayerShape(1, 1, 8, 8)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([ATTENTION] * 8, 1),
        ([STATE, STATE, STATE, ATTENTION] * 6, 4),
        (([STATE] * 4 + [ATTENTION] + [STATE] * 3) * 4, 8),
        ([ATTENTION] + [EXPERTS] * 26, 0),
        ([ATTENTION, EXPERTS] * 3, 2),
        ([], 0),
    ],
)
def test_kinds_of_layers_repeat(layers: list[LayerShape], expected: int) -> None:
    assert period(layers) == expected


@pytest.mark.parametrize(
    ("layers", "expected"), [([], 1), ([ATTENTION, EXPERTS] * 4, 2), ([ATTENTION, EXPERTS, EXPERTS], 6)]
)
def test_all_kinds_of_layers_are_measured(model: Model, layers: list[LayerShape], expected: int) -> None:
    assert choosing._min_layers(model, layers) == min(expected, model.num_layers)


def test_a_model_that_fails_is_left_to_its_trial(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OutOfCells

    monkeypatch.setattr(choosing, "LlamaProbe", fail)
    assert load().attention.flash == "on"


def test_what_is_kept_survives_its_own_encoding() -> None:
    tuning = SavedTuning({"a": "b"}, None, True, 128, 1)
    assert read_tuning(msgspec.json.encode(tuning)) == tuning
