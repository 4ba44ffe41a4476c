"""The daemon that a command starts for itself, replaced by a script: waited for, reported, and always ended."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from edgeagent.cli import temporary as module
from edgeagent.cli.temporary import load_in_progress, temporary_daemon, wait_until_loaded
from edgeagent.client import Address
from edgeagent.config import StoreConfig
from edgeagent.errors import BackendUnavailable, EdgeAgentError
from edgeagent.store.file_records import lend_records
from edgeagent.store.library import Library
from edgeagent.store.names.own import NAMES_FILE, OwnNamesFile, with_alias


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Start tests/cli/daemon_script.py instead of the daemon, with its flags; return the list of started processes."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(state_dir: Path, flags: list[str], output: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.cli.daemon_script", str(state_dir), *flags]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output))
        return processes[-1]

    monkeypatch.setattr(module, "_start", start)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return processes


def test_it_is_waited_for_and_ends_by_itself_when_its_input_closes(
    started: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    told: list[str] = []
    with temporary_daemon(["starting", "starting", "ready"], told.append) as address:
        assert address.url.startswith("http://127.0.0.1:")
        assert started[0].poll() is None
    assert started[0].returncode == 0
    assert (tmp_path / "ended").exists()
    assert list(dict.fromkeys(told)) == ["starting the daemon", "m: loading 40%"]
    assert [path.name for path in tmp_path.iterdir()] == ["ended"]


def test_it_ends_when_the_work_fails(started: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(ZeroDivisionError), temporary_daemon(["ready"], lambda text: None):
        raise ZeroDivisionError
    assert started[0].returncode == 0


def test_a_daemon_that_does_not_come_up_leaves_its_last_words(started: list[subprocess.Popen[bytes]]) -> None:
    with (
        pytest.raises(BackendUnavailable, match="out of luck"),
        temporary_daemon(["exit"], lambda text: None),
    ):
        pass


def test_a_model_that_cannot_be_loaded_is_an_error(started: list[subprocess.Popen[bytes]]) -> None:
    with (
        pytest.raises(EdgeAgentError, match="m cannot be loaded: bad file"),
        temporary_daemon(["failed"], lambda text: None),
    ):
        pass
    assert not psutil.pid_exists(started[0].pid) or started[0].returncode == 0


def test_a_daemon_that_still_loads_is_waited_for_and_how_far_it_is_is_told(
    started: list[subprocess.Popen[bytes]],
) -> None:
    told: list[str] = []
    with temporary_daemon(["ready", "starting", "starting", "ready"], lambda text: None) as address:
        wait_until_loaded(address, told.append)
    assert told == ["m: loading 40%"] * 2


def test_what_is_waited_for_while_no_answer_comes(started: list[subprocess.Popen[bytes]]) -> None:
    with temporary_daemon(["ready", "stopping", "starting", "ready", "failed"], lambda text: None) as address:
        told = [load_in_progress(address) for _ in range(4)]
    assert told == ["m: stopping", "m: loading 40%", "", ""]
    assert load_in_progress(Address("http://127.0.0.1:9")) == ""


def test_what_else_is_wrong_is_left_to_the_request(started: list[subprocess.Popen[bytes]]) -> None:
    with temporary_daemon(["ready", "failed"], lambda text: None) as address:
        wait_until_loaded(address, lambda text: None)
    wait_until_loaded(Address("http://127.0.0.1:9"), lambda text: None)


def test_the_real_command_line_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that does not exist: the command must report that, rather than complain about its flags."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(EdgeAgentError) as caught, temporary_daemon(["/no/such/model.gguf"], lambda text: None):
        pass
    assert caught.value.message.startswith("/no/such/model.gguf ")
    assert "\n" not in caught.value.message


def test_it_knows_the_owner_s_names(tmp_path: Path) -> None:
    owner = tmp_path / "owner"
    OwnNamesFile(owner).change(lambda names: with_alias(names, "casa", "builtin"))
    (owner / "token").write_text("the owner's")
    lend_records(owner, tmp_path / "borrower")
    library = Library(StoreConfig(models_dir=tmp_path / "models"), tmp_path / "borrower")
    assert library.find("casa").name == "builtin"
    assert [path.name for path in (tmp_path / "borrower").iterdir()] == [NAMES_FILE]
    lend_records(tmp_path / "nowhere", tmp_path / "empty")
    assert list((tmp_path / "empty").iterdir()) == []


def test_it_is_lent_the_owner_s_records(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    OwnNamesFile(tmp_path / "owner").change(lambda names: with_alias(names, "casa", "builtin"))
    with temporary_daemon(["ready"], lambda text: None, owner=tmp_path / "owner"):
        (state_dir,) = tmp_path.glob("edgeagent-*/state")
        assert OwnNamesFile(state_dir).read().aliases == {"casa": "builtin"}


def test_a_daemon_without_a_model_that_loads_is_not_waited_for(started: list[subprocess.Popen[bytes]]) -> None:
    """The next request loads a model that was unloaded, so a wait would have no end."""
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        assert len(told) < 20

    with temporary_daemon(["ready", "starting", "stopped"], lambda text: None) as address:
        wait_until_loaded(address, tell)
    assert told == ["m: loading 40%", "m: stopped"]
