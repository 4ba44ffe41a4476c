"""A worker's choices: measured once on a real model, stored, and measured again only under other conditions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.engine import attention
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.probe import LlamaProbe
from edgeagent.engine.runner import OutOfCells
from edgeagent.types import LayerShape, MemoryKind, replace
from edgeagent.types.choices import SavedTuning
from edgeagent.worker.child.generator import choosing
from edgeagent.worker.child.generator.choosing import Chosen, choose, period, read_tuning
from tests.conftest import TinyModel

CONFIG = EngineConfig(threads=1, batch=64, parallel=2, ctx=512, calibration_s=30.0)


MEASURE = choosing._measure


@pytest.fixture(autouse=True)
def _choices_by_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "_measure", MEASURE)
    monkeypatch.setattr(attention, "_UNDISTURBED", 0.0)  # other programs may use all cores of this machine


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

    def __call__(self, saved_tuning: bytes = b"", *, is_replacing: bool = False, **options: object) -> Chosen:
        config = replace(CONFIG, **options)
        return choose(self._model, config, saved_tuning, self._count, is_replacing=is_replacing)

    def _count(self) -> None:
        self.num_measured += 1


@pytest.fixture
def load(model: Model) -> Load:
    return Load(model)


def saved_tuning_of(chosen: Chosen) -> bytes:
    """Return what would be stored for the next load."""
    return msgspec.json.encode(chosen.tuning)


def opposite(saved_tuning: bytes) -> bytes:
    """Return what would be stored if plain attention had been much faster."""
    found = read_tuning(saved_tuning)
    assert found is not None
    assert found.measurements is not None
    forms = tuple(
        structs.replace(each, prompt_s=factor, turn_s=factor, token_s=factor, tile_s=None)
        for each in found.measurements.forms
        for factor in [1e-4 if each.is_flash else 1e-6]
    )
    return msgspec.json.encode(
        structs.replace(found, measurements=structs.replace(found.measurements, forms=forms), is_flash=False)
    )


def test_a_real_model_is_measured_and_what_is_kept_decides_from_then_on(load: Load) -> None:
    first = load()
    assert load.num_measured == 1
    assert (first.choice.name, first.choice.by) == ("flash attention", "measurement")
    saved_tuning = opposite(saved_tuning_of(first))
    again = load(saved_tuning)
    assert load.num_measured == 1
    assert again.attention.flash == "off"
    assert load(saved_tuning_of(again)).attention == again.attention


def test_a_rejected_form_is_measured_again_at_later_loads(load: Load) -> None:
    made_up = read_tuning(opposite(saved_tuning_of(load())))
    assert made_up is not None
    chosen = load(msgspec.json.encode(made_up))
    for _ in range(17):
        chosen = load(saved_tuning_of(chosen))
    assert load.num_measured == 3
    assert chosen.tuning.measurements not in (None, made_up.measurements)


def test_a_worker_that_replaces_another_measures_nothing(load: Load) -> None:
    saved_tuning = saved_tuning_of(load())
    found = read_tuning(saved_tuning)
    assert found is not None
    due = msgspec.json.encode(structs.replace(found, num_loads=8))
    assert load(due, is_replacing=True).tuning.num_loads == 8
    assert load.num_measured == 1
    load(due)
    assert load.num_measured == 2


def test_llama_cpp_s_own_choice_is_not_kept_as_plain_attention(load: Load) -> None:
    """As on a GPU, llama.cpp chooses the form for a quantized V cache. A later load without it begins with flash."""
    chosen = load(kv_type_k="q8_0", kv_type_v="q8_0")
    assert chosen.attention.flash == "auto"
    assert load(saved_tuning_of(chosen), calibration_s=0.0).attention.flash == "on"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b"\xff", b"[" * 50_000, b'{"conditions":{},"is_flash":1}', b"x" * 70_000]
)
def test_what_is_not_ours_is_measured_again(load: Load, content: bytes) -> None:
    assert read_tuning(content) is None
    assert load(content).choice.by == "measurement"
    assert load.num_measured == 1


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e9, "1", None])
def test_numbers_that_cannot_be_are_refused(load: Load, seconds: object) -> None:
    content = msgspec.json.decode(saved_tuning_of(load()))
    content["measurements"]["forms"][0]["prompt_s"] = seconds
    assert read_tuning(msgspec.json.encode(content)) is None


@pytest.mark.parametrize("options", [{"ctx": 1024}, {"threads": 2}, {"kv_type_k": "f32"}, {"parallel": 3}])
def test_other_conditions_are_measured_anew(
    load: Load, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_tuning = opposite(saved_tuning_of(load()))
    monkeypatch.setattr(choosing, "_measure", lambda *_: None)  # the request to measure is enough
    load(saved_tuning, **options)
    assert load.num_measured == 2


def test_what_was_cut_off_is_tried_again_but_not_at_each_load(load: Load) -> None:
    saved_tuning = b""
    for _ in range(8):
        saved_tuning = saved_tuning_of(load(saved_tuning, calibration_s=1e-6))
    assert load.num_measured == 3
    load(saved_tuning, calibration_s=1e-6)
    assert load.num_measured == 4


def test_one_thread_is_measured_if_the_cores_of_all_are_busy(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disturbed(LlamaProbe):
        def measure(self, num_tokens: int, num_layers: int, deadline_s: float) -> attention.Sample | None:
            sample = super().measure(num_tokens, num_layers, deadline_s)
            if sample is None or self._runner.num_threads == 1:
                return sample
            return attention.Sample(1.0, 0.3)

    monkeypatch.setattr(attention, "_UNDISTURBED", 0.8)
    monkeypatch.setattr(choosing, "LlamaProbe", Disturbed)
    chosen = load(threads=2)
    assert chosen.choice.by == "measurement"
    assert chosen.tuning.measurements is not None
    assert all(form.prompt_s < 1.0 for form in chosen.tuning.measurements.forms)


def test_options_override_and_a_choice_may_be_left_out(load: Load) -> None:
    assert load(flash_attention="off").attention.flash == "off"
    load.num_measured = 0
    left_out = load(calibration_s=0.0)
    assert (load.num_measured, left_out.attention.flash, left_out.choice.by) == (0, "on", "default")


def test_a_machine_without_free_memory_measures_nothing(model: Model) -> None:
    def fail() -> None:
        raise AssertionError

    chosen = choose(model, CONFIG, b"", fail, kv_bytes_per_token=1e6, free_bytes=lambda: 1 << 30)
    assert chosen.choice.by == "default"


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
    def fail(*_: object, depth: int) -> None:
        raise OutOfCells

    monkeypatch.setattr(choosing, "LlamaProbe", fail)
    assert load().attention.flash == "on"


def test_what_is_kept_survives_its_own_encoding() -> None:
    tuning = SavedTuning({"a": "b"}, None, True, 1)
    assert read_tuning(msgspec.json.encode(tuning)) == tuning
