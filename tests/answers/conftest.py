"""The file of a model, for caches that look whether it changes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgeagent.types import MemoryKind
from tests.conftest import TinyModel


@pytest.fixture
def model_file(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """Return the path of a copy of a tiny model, which a test may replace."""
    return Path(shutil.copy(tiny_model(MemoryKind.FULL_ATTENTION), tmp_path / "fake.gguf"))
