"""A8: a worker under an intruder's control reaches no network, no programs, no files but the model's, no other process.

The attacks run as the user that runs the tests and, if that is root, also as an ordinary user, for which the kernel's
own rules are weakest, since nearby files and processes belong to that user. A6 for the worker: its environment has no
token.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeagent import cache_folder
from edgeagent.config import Config, EngineConfig
from edgeagent.errors import InvalidRequest
from edgeagent.store.gguf.header import validate_model
from edgeagent.types import MemoryKind
from edgeagent.worker.parent.pool.cache_shares import CacheShares
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.protocol import DiskCache
from edgeagent.worker.sandbox import landlock, sandbox
from tests.conftest import TinyModel
from tests.worker.support import Record, eventually, found_at, request

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
NEEDS_LANDLOCK = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")

Make = Callable[..., Pool]
NOBODY = 65534
# What a worker does, or may do without harm.
ALLOWED = {"read the model", "start a thread", "be as nice as ever", "stream pair"}
GAPS = {
    "open a secret to all", "give a secret away", "date a secret", "watch a folder", "limit another", "slow another",
    "slow another's disk", "pin another", "reschedule another", "signal another", "signal a group", "hold another",
    "datagram to a path", "start a process", "start a process by clone3", "share memory", "make a message queue",
    "make semaphores", "own a file's signals",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Home:
    """A user's folder and id, and one process of that user."""

    folder: Path
    user: int
    victim: int

    @property
    def model(self) -> Path:
        return self.folder / "models" / "tiny.gguf"


@pytest.fixture(params=["runner", "ordinary"])
def home(request: pytest.FixtureRequest, tiny_model: TinyModel) -> Iterator[Home]:
    user = os.getuid() if request.param == "runner" else NOBODY
    if request.param == "ordinary" and os.getuid() != 0:
        pytest.skip("the tests run as an ordinary user")
    # Not in pytest's folder, which other users cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="edgeagent-a8-"))
    for name in ("models", "home", "cache"):
        (folder / name).mkdir(mode=0o700)
    (folder / "models" / "tiny.gguf").write_bytes(tiny_model(MemoryKind.FULL_ATTENTION).read_bytes())
    (folder / "home" / "id_ed25519").write_text("secret")
    # Other users can enter and reach what is open to them.
    folder.chmod(0o755)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, -1)
    options: dict[str, Any] = {} if user == os.getuid() else {"user": user, "group": user, "extra_groups": []}
    victim = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, **options)
    yield Home(folder, user, victim.pid)
    assert victim.poll() is None
    victim.communicate()
    shutil.rmtree(folder)


class _OneFolder(CacheShares):
    """Gives the worker a folder whose owner is the worker's user."""

    def __init__(self, config: Config, disk: DiskCache) -> None:
        super().__init__(config)
        self._disk = disk

    def prepare(self, model: Path) -> DiskCache:
        return self._disk


@pytest.fixture
async def make(home: Home) -> AsyncIterator[Make]:
    made: list[Pool] = []

    disk = DiskCache(str(home.folder / "cache"), bytes(32), 64 << 20, 0, 3600.0, 0, 1.0)

    def make_one(**engine: Any) -> Pool:
        config = Config(state_dir=home.folder / "state", engine=EngineConfig(threads=1, **engine))
        command: tuple[str, ...] = (sys.executable, "-P", "-m", "tests.robust.intruder")
        if home.user != os.getuid():
            command += (str(home.user),)
        made.append(
            Pool(
                config,
                ModelSource(lambda _: found_at(home.model), validate_model, cache=_OneFolder(config, disk)),
                command=command,
            )
        )
        return made[-1]

    yield make_one
    for pool in made:
        await pool.stop()


async def intrude(pool: Pool, home: Home) -> dict[str, Any]:
    """Make the worker try every attack; return the outcomes."""
    await pool.start()
    secret, address = home.folder / "home" / "id_ed25519", home.folder / "home" / "socket"
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as listener,
        closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as datagrams,
    ):
        datagrams.bind(str(address))
        address.chmod(0o777)
        about = {
            "port": listener.getsockname()[1],
            "folder": str(secret.parent),
            "secret": str(secret),
            "model": str(home.model),
            "victim": home.victim,
            "socket_path": str(address),
        }
        record = Record()
        pool.submit(request(json.dumps(about)), record)
        await record.end()
    address.unlink()
    assert isinstance(record.error, InvalidRequest), record.error
    findings: dict[str, Any] = json.loads(record.error.message)
    assert findings["user"] == home.user
    return findings


def done(findings: dict[str, Any]) -> set[str]:
    return {name for name, outcome in findings["outcomes"].items() if outcome == "done"}


@NEEDS_LANDLOCK
async def test_an_intruder_finds_nothing_but_the_model(make: Make, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "EDGEAGENT_REMOTES__X__API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "canary")
    before = [(path, path.stat()) for path in home.folder.rglob("*")]
    pool = make()
    findings = await intrude(pool, home)
    assert done(findings) == ALLOWED
    assert {findings["outcomes"][name] for name in findings["outcomes"].keys() - ALLOWED} <= {
        "EACCES",
        "EPERM",
        "ENOSYS",
    }
    assert findings["secrets"] == []
    for path, status in before:
        now = path.stat()
        assert (now.st_mode, now.st_uid) == (status.st_mode, status.st_uid)
        assert path.is_dir() or (now.st_size, now.st_mtime) == (status.st_size, status.st_mtime)
    assert [path.name for path in (home.folder / "home").iterdir()] == ["id_ed25519"]
    (status_,) = pool.statuses()
    assert status_.info is not None
    assert status_.info.sandbox == (
        sandbox.NO_NETWORK,
        sandbox.NO_NEW_PRIVILEGES,
        sandbox.NO_PROGRAMS,
        sandbox.READ_ONLY_FILES,
    )


@NEEDS_LANDLOCK
async def test_the_model_answers_and_ends_in_there(make: Make, home: Home) -> None:
    """The worker's own work continues as usual, including work on its cache files."""
    num_cached = []
    for _ in range(2):
        pool = make()
        await pool.start()
        record = Record()
        pool.submit(request("many words " * 100, max_tokens=4), record)
        await record.end()
        assert record.error is None and len(record.tokens) == 4
        await eventually(lambda: bool(cache_folder.list_parts(home.folder / "cache")))
        num_cached.append(record.finished.usage.num_cached_tokens)
        pid = pool.statuses()[0].pid
        assert pid is not None
        await pool.stop()
        assert not psutil.pid_exists(pid)
    assert num_cached[0] == 0 < num_cached[1]


async def test_the_worker_bounds_what_it_takes(make: Make, home: Home) -> None:
    pool = make()
    await pool.start()
    record = Record()
    pool.submit(request("x", max_tokens=1), record)
    await record.end()
    proc = Path(f"/proc/{pool.statuses()[0].pid}")
    limits = dict(re.findall(r"^(Max [a-z ]+?)  +\S+ +(\S+)", (proc / "limits").read_text(), re.MULTILINE))
    assert limits["Max core file size"] == "0"
    assert int(limits["Max open files"]) <= 4096
    assert int(limits["Max processes"]) <= 4096 + 65_536
    assert limits["Max realtime priority"] == "0"
    assert int((proc / "oom_score_adj").read_text()) == 500 or home.user != os.getuid()


async def test_one_option_switches_it_off_and_shows_that_the_gaps_are_gaps(make: Make, home: Home) -> None:
    pool = make(sandbox=False)
    findings = await intrude(pool, home)
    assert GAPS | {"connect", "read a secret", "run a program"} <= done(findings), findings["outcomes"]
    (status,) = pool.statuses()
    assert status.info is not None and status.info.sandbox == ("off",)
