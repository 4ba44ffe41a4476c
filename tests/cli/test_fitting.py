"""Whether models fit into this machine's memory, as lists show it."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from edgeagent.cli.models import file_fits, fitting_context
from edgeagent.config import EngineConfig
from edgeagent.fit.need import predict
from tests.fit.shapes import GIB, shape


def _has(monkeypatch: pytest.MonkeyPatch, num_bytes: float) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=int(num_bytes), available=0))


def test_a_model_fits_whole_with_less_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    header = SimpleNamespace(shape=shape())
    _has(monkeypatch, 16 * GIB)
    assert fitting_context(header, EngineConfig()) == 8192  # type: ignore[arg-type]
    _has(monkeypatch, predict([shape()], EngineConfig(), 5000).total_bytes / 0.95)
    assert 4096 <= fitting_context(header, EngineConfig()) < 5120  # type: ignore[arg-type]
    _has(monkeypatch, GIB)
    assert fitting_context(header, EngineConfig()) == 0  # type: ignore[arg-type]


def test_a_file_that_is_not_here_is_judged_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    _has(monkeypatch, 8 * GIB)
    assert file_fits(3 * GIB)
    assert not file_fits(4 * GIB)
