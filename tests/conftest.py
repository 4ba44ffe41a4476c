"""Fixtures that several packages' tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tests.examples  # noqa: F401 the profiles of hypothesis hold from the first test on
from edgeagent.types import MemoryKind
from tests.models import make_tiny_model

TinyModel = Callable[[MemoryKind], Path]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Return a function from a memory kind to the path of a tiny random model of that kind, made once a session."""
    folder = tmp_path_factory.mktemp("models")
    made: dict[MemoryKind, Path] = {}

    def get(kind: MemoryKind) -> Path:
        if kind not in made:
            made[kind] = make_tiny_model(folder / f"tiny-{kind}.gguf", kind)
        return made[kind]

    return get
