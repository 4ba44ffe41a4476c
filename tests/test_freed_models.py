"""What a test leaves open of llama.cpp is freed when it ends, so that a process of the suite stays small."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.types import MemoryKind
from tests.conftest import TinyModel

CONFIG = EngineConfig(threads=1, batch=48, parallel=2, ctx=256)


@pytest.fixture(scope="module")
def left_open() -> Iterator[list[Model | LlamaRunner]]:
    """What the test opens; behind its end, all of it must be closed."""
    opened: list[Model | LlamaRunner] = []
    yield opened
    handles = [vars(each)["_handle" if isinstance(each, Model) else "_context"] for each in opened]
    assert handles == [None, None]


def test_a_model_and_its_context_may_be_left_open(left_open: list[Model | LlamaRunner], tiny_model: TinyModel) -> None:
    model = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    left_open += [model, LlamaRunner(model, CONFIG)]
