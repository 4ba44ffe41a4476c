"""Fixtures and hooks that the tests of several packages share."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.unraisableexception import collect_unraisable
from httpx._config import DEFAULT_TIMEOUT_CONFIG

import tests.examples  # noqa: F401 the profiles of hypothesis hold from the first test on
from edgeagent.types import MemoryKind
from tests import rotation
from tests.alone import FewReports, Room
from tests.patience import patient
from tests.rotation import pytest_terminal_summary  # noqa: F401 a hook

TinyModel = Callable[[MemoryKind], Path]

ROOM = pytest.StashKey[Room]()
# Tests with daemons, workers, other processes and models.
SLOW_FOLDERS = tuple(
    f"tests/{name}/" for name in ("integration", "platforms", "doctor", "packaging", "robust", "worker")
)
LONGEST_FILE = "tests/test_types.py"
# A CA whose key was discarded. Reading the 140 CAs of a system takes 20 ms for each client and each daemon.
NOBODY = Path(__file__).parent / "nobody.pem"
# Keep compiled modules, even where the environment says not to: the tests start hundreds of Python processes, and
# pytest compiles each test file in each of its own processes.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    """Set the CAs, how long httpx waits unless it is told, and what Ctrl-C does.

    In a parallel run, join the other processes' lock in their temporary folder.
    """
    for phase in ("connect", "read", "write", "pool"):
        setattr(DEFAULT_TIMEOUT_CONFIG, phase, patient(20.0))
    os.environ["SSL_CERT_FILE"] = str(NOBODY)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Programs started from a shell's background job ignore Ctrl-C, and so would every program that a test starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # until all tests are collected, since collection creates almost no garbage
    if hasattr(config, "workerinput"):
        config.stash[ROOM] = Room(Path(config.option.basetemp).parent)
        config.add_cleanup(config.stash[ROOM].close)
        if config.option.durations is None and config.option.xmlpath is None:  # these tell of every phase
            config.pluginmanager.register(FewReports())


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """In a parallel run, import another share of the test files first in each process.

    Where there are no compiled modules yet, all processes would compile all of them: this takes longer than the rest of
    the collection. So each compiles its share for the others.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    places = {Path(argument.partition("::")[0]).resolve() for argument in session.config.args}
    files = sorted({file for place in places for file in ([place] if place.is_file() else place.rglob("test_*.py"))})
    number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    for file in files[number * len(files) // count : (number + 1) * len(files) // count]:
        with suppress(Exception, pytest.skip.Exception):  # the collection reports it
            importlib.import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Select what runs, and in which order.

    The tests that run alone come first, since all processes wait for one: later, for the longest test in progress. The
    check of types, which takes longest, and the files that take long come before the others: at the end they would keep
    one process busy alone.
    """
    rotation.pytest_collection_modifyitems(items)
    first = {item.path for item in items if _is_alone(item) and item.get_closest_marker("slow") is None}

    def place(item: pytest.Item) -> tuple[int, str, bool]:
        if item.path in first:
            return 0, item.nodeid.partition("::")[0], not _is_alone(item)
        if item.nodeid.startswith(LONGEST_FILE):
            return 1, "", False
        return (2 if item.nodeid.startswith(SLOW_FOLDERS) else 3), "", False

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(50_000)  # by default, collections take a tenth of the CPU time of tests without a model
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Exclude what a file's tests have left from garbage collection."""
    yield
    if nextitem is None or nextitem.path != item.path:
        _set_aside()
        collect_unraisable(item.config)  # else the next file fails for it


def _set_aside() -> None:
    """Exclude all existing objects, half a million, from later garbage collections, which slow the tests down."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Run a test beside those of other processes, or alone."""
    if ROOM not in item.config.stash:
        return (yield)
    with item.config.stash[ROOM].held(alone=_is_alone(item), next_alone=_is_alone(nextitem)):
        return (yield)


def _is_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


@pytest.fixture(autouse=True)
def _freed_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Free the contexts and weights that a test leaves open, as a worker does whose process ends."""
    opened: list[Any] = []
    for name in ("model.Model", "context.LlamaRunner", "projector.Projector"):
        module = sys.modules.get("edgeagent.engine.llama." + name.split(".")[0])
        if module is not None:
            kind = getattr(module, name.split(".")[1])
            monkeypatch.setattr(kind, "__init__", _recorded(kind.__init__, opened))
    yield
    for each in reversed(opened):  # contexts before their weights
        each.close()


def _recorded(init: Callable[..., None], opened: list[Any]) -> Callable[..., None]:
    def call(self: object, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        opened.append(self)

    return call


@pytest.fixture
def unused_tcp_port() -> Iterator[int]:
    """A port that refuses connections. It stays bound, so that no other process listens there meanwhile."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


@pytest.fixture
def machine_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path at which this process looks for the machine's policy; there is no file yet."""
    path = tmp_path / "machine" / "policy.toml"
    path.parent.mkdir(mode=0o755)
    monkeypatch.setattr("edgeagent.machine_policy.policy_path", lambda: path)
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Return a function from a memory kind to the path of a tiny random model of that kind, made once per session."""
    # Here, since the process that hands out the tests needs no model, and its start is waited for.
    from tests.models import make_tiny_model

    folder = tmp_path_factory.mktemp("models")
    made: dict[MemoryKind, Path] = {}

    def get(kind: MemoryKind) -> Path:
        if kind not in made:
            made[kind] = make_tiny_model(folder / f"tiny-{kind}.gguf", kind)
        return made[kind]

    return get
