"""A8: who takes a real worker over finds no network, no programs, no files but the model's, no way to the daemon.

A6, the worker's side: its environment holds no token.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeagent.config import Config, EngineConfig
from edgeagent.errors import InvalidRequest
from edgeagent.store.gguf import validate_model
from edgeagent.types import MemoryKind
from edgeagent.worker import landlock, sandbox
from edgeagent.worker.pool import Pool
from tests.conftest import TinyModel
from tests.worker.support import Record, request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
NEEDS_LANDLOCK = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")

Make = Callable[..., Pool]


@dataclass(frozen=True, slots=True)
class Files:
    path: Path
    name: str = "tiny"
    draft_path: Path | None = None


@pytest.fixture
async def make(tiny_model: TinyModel, tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Pool] = []

    def make_one(**engine: Any) -> Pool:
        path = tmp_path / "models" / "tiny.gguf"
        path.parent.mkdir()
        path.write_bytes(tiny_model(MemoryKind.FULL_ATTENTION).read_bytes())
        config = Config(engine=EngineConfig(threads=1, **engine))
        command = (sys.executable, "-P", "-m", "tests.robust.intruder")
        made.append(Pool(config, lambda _: Files(path), validate_model, command=command))
        return made[-1]

    yield make_one
    for pool in made:
        await pool.stop()


async def intrude(pool: Pool, tmp_path: Path) -> dict[str, Any]:
    """Let the worker try everything; return how it went."""
    secret = tmp_path / "home" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_text("secret")
    await pool.start()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        path = tmp_path / "models" / "tiny.gguf"
        about = {"port": port, "folder": str(secret.parent), "secret": str(secret), "model": str(path)}
        record = Record()
        pool.submit(request(json.dumps(about)), record)
        await record.end()
    assert isinstance(record.error, InvalidRequest), record.error
    findings: dict[str, Any] = json.loads(record.error.message)
    return findings


@NEEDS_LANDLOCK
async def test_an_intruder_finds_nothing_but_the_model(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "EDGEAGENT_REMOTES__X__API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "canary")
    pool = make()
    findings = await intrude(pool, tmp_path)
    outcomes = findings["outcomes"]
    allowed = {"read the model", "start a process"}
    if landlock.version() < 6:  # the first that keeps signals in
        allowed.add("signal the daemon")
    assert {name for name, outcome in outcomes.items() if outcome == "done"} == allowed
    assert {outcomes[name] for name in outcomes.keys() - allowed} == {"PermissionError"}
    assert not [name for name in findings["environment"] if "TOKEN" in name or "KEY" in name]
    assert (tmp_path / "models" / "tiny.gguf").exists()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["id_ed25519"]
    (status,) = pool.models()
    assert status.info is not None
    assert status.info.sandbox == (
        sandbox.NO_NETWORK,
        sandbox.NO_NEW_PRIVILEGES,
        sandbox.NO_PROGRAMS,
        sandbox.READ_ONLY_FILES,
    )


async def test_the_worker_bounds_what_it_takes(make: Make, tmp_path: Path) -> None:
    pool = make()
    await intrude(pool, tmp_path)
    process = psutil.Process(pool.models()[0].pid)
    assert process.rlimit(psutil.RLIMIT_CORE) == (0, 0)
    assert max(process.rlimit(psutil.RLIMIT_NOFILE)) <= 4096
    score = Path(f"/proc/{process.pid}/oom_score_adj")
    assert int(score.read_text()) == 500  # noqa: ASYNC240


async def test_one_option_switches_it_off(make: Make, tmp_path: Path) -> None:
    pool = make(sandbox=False)
    findings = await intrude(pool, tmp_path)
    assert findings["outcomes"]["connect"] == findings["outcomes"]["read a secret"] == "done"
    (status,) = pool.models()
    assert status.info is not None and status.info.sandbox == ("off",)
