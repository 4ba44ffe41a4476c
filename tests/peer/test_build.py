"""The build of llama-server for comparisons uses the same flags for this CPU as the build of the bindings."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.peer import build


@pytest.mark.parametrize(("features", "is_needed"), [(["avx2", "amx_int8"], True), (["avx2"], False)])
def test_a_cpu_with_amx_gets_programs_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, features: list[str], is_needed: bool
) -> None:
    setup_env = build.setup_env()
    monkeypatch.setattr(setup_env, "cpu_features", lambda: features)
    monkeypatch.setattr(build, "setup_env", lambda: setup_env)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command))
    build.build(tmp_path, tmp_path / "build", 1)
    assert set(setup_env.NO_AMX.split()).issubset(commands[0]) is is_needed
