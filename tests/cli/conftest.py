"""Fixtures for commands: a scripted daemon in a thread, or folders of models without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgeagent.cli import main
from edgeagent.config import StoreConfig
from edgeagent.store import library as resolve_module
from edgeagent.store.names.catalog import BuiltinModel
from tests.cli.threads import in_thread
from tests.client.daemon_stub import DaemonStub, running_stub
from tests.store.gguf_bytes import small_model

StartStub = Callable[..., DaemonStub]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def start_stub() -> Iterator[StartStub]:
    """Return a function that runs a stub with a script until the test ends."""
    with ExitStack() as stack:
        yield lambda *script: stack.enter_context(in_thread(running_stub(*script)))


@pytest.fixture
def store(tmp_path: Path) -> StoreConfig:
    return StoreConfig(models_dir=tmp_path / "models")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command on this test's own folders and returns its status and output."""
    bundled = tmp_path / "mini.gguf"
    bundled.write_bytes(small_model())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(resolve_module, "builtin_model", lambda: BuiltinModel(bundled, None))

    def call(*arguments: str) -> tuple[int, str, str]:
        folders = ("--models-dir", str(tmp_path / "models"), "--state-dir", str(tmp_path / "state"))
        status = main([*arguments, *folders])
        return status, *capsys.readouterr()

    return call
