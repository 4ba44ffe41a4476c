"""The probe on llama.cpp: it computes only the first layers, and fills cells without computing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.attention import Attention
from edgeagent.engine.llama import probe as probes
from edgeagent.engine.llama.bindings import node_name
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.probe import LlamaProbe
from edgeagent.types import MemoryKind
from tests.conftest import TinyModel
from tests.models import MEMORIES

CONFIG = EngineConfig(threads=1, batch=64, parallel=2, ctx=512)


@pytest.fixture(params=MEMORIES, ids=str)
def model(request: pytest.FixtureRequest, tiny_model: TinyModel) -> Iterator[Model]:
    made = Model(tiny_model(request.param), CONFIG)
    yield made
    made.close()


@pytest.mark.parametrize("form", ["on", "off"])
def test_every_memory_can_be_measured(model: Model, form: str) -> None:
    probe = LlamaProbe(model, CONFIG, Attention(form, 64), 128)  # type: ignore[arg-type]
    for _ in range(2):
        for num_tokens in (128, 64, 40, 1):
            sample = probe.measure(num_tokens, 1, math.inf)
            assert sample is not None
            assert sample.seconds > 0
    probe.close()


def test_the_first_layers_alone_are_computed(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[bytes] = []

    def listen(node: int) -> bytes:
        names.append(node_name(node))
        return names[-1]

    monkeypatch.setattr(probes, "node_name", listen)
    model = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    probe = LlamaProbe(model, CONFIG, Attention("on", 64), 128)
    assert model.num_layers > 1
    lengths = []
    for num_layers in (1, model.num_layers):
        names.clear()
        probe.measure(16, num_layers, math.inf)
        lengths.append(len(names))
        outputs = {name for name in names if name.startswith(b"l_out-")}
        assert len(outputs) == num_layers
    assert lengths[0] < lengths[1]
    probe.close()
    model.close()


def test_a_deadline_ends_it_at_once(tiny_model: TinyModel) -> None:
    model = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    probe = LlamaProbe(model, CONFIG, Attention("on", 64), 128)
    assert probe.measure(16, 1, -math.inf) is None
    assert probe.measure(16, 1, math.inf) is not None
    probe.close()
    model.close()


def test_a_graph_that_does_not_name_its_layers_gives_no_time(
    tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_LAYER_OUTPUT", b"unknown-")
    model = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    probe = LlamaProbe(model, CONFIG, Attention("on", 64), 128)
    assert probe.measure(16, 1, math.inf) is None
    assert probe.measure(16, model.num_layers, math.inf) is not None
    probe.close()
    model.close()


def test_a_deadline_ends_it_inside_a_layer(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    probe = LlamaProbe(model, CONFIG, Attention("on", 64), 128)
    monkeypatch.setattr(probes, "_LAYER_OUTPUT", b"unknown-")
    monkeypatch.setattr(probes, "_NODES_BETWEEN_LOOKS", 1)
    now_s = iter(range(1_000_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(now_s))
    assert probe.measure(16, 1, 10) is None
    assert next(now_s) < 30, "a clock that advances by one at each look"
    probe.close()
    model.close()
