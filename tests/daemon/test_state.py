"""The state folder: its owner, its lock, the token, and the file by which clients find the daemon."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from edgeagent.credentials.keys import ensure_token
from edgeagent.daemon.state import (
    SLO_FILE,
    ExitCode,
    SloFile,
    StartError,
    locked_state_dir,
    warn_if_missing,
)
from edgeagent.errors import ConfigError
from edgeagent.metrics.slo import SloLedger, Totals
from edgeagent.runtime_file import (
    LOCK_FILE,
    Runtime,
    find_daemon,
    no_daemon,
    read_token,
    remove_runtime,
    write_private,
    write_runtime,
)

POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX modes")


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def me() -> Runtime:
    return Runtime(os.getpid(), psutil.Process().create_time(), 8127, "http://127.0.0.1:8127", "0.1.0")


@POSIX
def test_the_folder_is_private(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "state", tmp_path / "open"):
        if folder.name == "open":
            folder.mkdir(mode=0o755)
        with locked_state_dir(folder):
            assert mode(folder) == 0o700
            assert mode(folder / "daemon.lock") == 0o600


def test_a_models_folder_that_does_not_exist_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder in (None, tmp_path):
        warn_if_missing(folder)
    assert not caplog.messages
    warn_if_missing(tmp_path / "modles")
    (message,) = caplog.messages
    assert f"{tmp_path / 'modles'} does not exist" in message


def test_one_daemon_holds_the_folder(tmp_path: Path) -> None:
    with locked_state_dir(tmp_path):
        write_runtime(tmp_path, me())
        with pytest.raises(StartError) as refused, locked_state_dir(tmp_path):
            pass
    assert refused.value.exit_code is ExitCode.ALREADY_RUNNING
    assert re.search(rf"process {os.getpid()}, since [-0-9: ]+, http://127.0.0.1:8127", str(refused.value))
    with locked_state_dir(tmp_path):
        pass


def test_a_killed_daemon_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom edgeagent.daemon.state import locked_state_dir\n"
        "with locked_state_dir(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline().strip() == b"held"
        with pytest.raises(StartError), locked_state_dir(tmp_path):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with locked_state_dir(tmp_path):
        pass


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="state folder"), locked_state_dir(tmp_path / "file" / "state"):
        pass


@POSIX
def test_a_folder_that_cannot_be_made_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(StartError, match=r"state folder .*: Read-only file system"), locked_state_dir(tmp_path):
        pass


@POSIX
def test_a_lock_file_that_cannot_be(tmp_path: Path) -> None:
    lock = tmp_path / "daemon.lock"
    lock.mkdir()
    with pytest.raises(StartError, match=r"daemon\.lock"), locked_state_dir(tmp_path):
        pass
    lock.rmdir()
    (tmp_path / "elsewhere").write_text("")
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match=r"daemon\.lock"), locked_state_dir(tmp_path):
        pass


@POSIX
def test_a_token_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "token").mkdir()
    with pytest.raises(ConfigError, match="not a regular file"):
        ensure_token(tmp_path)


@POSIX
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with locked_state_dir(folder):
        write_runtime(folder, me())
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        else:
            folder.chmod(0)
        try:
            assert find_daemon(folder) is None
            message = no_daemon(folder).message
            with pytest.raises(ConfigError, match=r"cannot read .*token: Permission denied"):
                read_token(folder)
        finally:
            if is_root:
                os.seteuid(0)
            else:
                folder.chmod(0o700)
    assert message.startswith(f"the state folder {folder} is closed to this user: ")


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write"):
        ensure_token(tmp_path / "gone")
    (tmp_path / "daemon.json").mkdir()
    with pytest.raises(ConfigError, match=r"daemon\.json"):
        write_runtime(tmp_path, me())
    assert [path.name for path in tmp_path.iterdir()] == ["daemon.json"]


def test_the_token_is_made_once(tmp_path: Path) -> None:
    assert read_token(tmp_path) is None
    token = ensure_token(tmp_path)
    assert len(token) >= 43
    assert ensure_token(tmp_path) == read_token(tmp_path) == token
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


@POSIX
def test_the_token_is_private(tmp_path: Path) -> None:
    ensure_token(tmp_path)
    assert mode(tmp_path / "token") == 0o600
    for bits in (0o640, 0o604, 0o620, 0o666):
        (tmp_path / "token").chmod(bits)
        with pytest.raises(ConfigError, match="chmod 600"):
            ensure_token(tmp_path)


@POSIX
def test_a_planted_token_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("x" * 43)
    (tmp_path / "elsewhere").chmod(0o600)
    (tmp_path / "token").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError):
        ensure_token(tmp_path)
    (tmp_path / "token").unlink()
    os.mkfifo(tmp_path / "token", 0o600)
    with pytest.raises(ConfigError, match="regular file"):
        ensure_token(tmp_path)


@pytest.mark.parametrize("content", ["", "short", "x" * 20 + "\n", "x" * 22 + "é", "x" * 22 + "\n" + "y" * 22])
def test_a_token_that_is_none(tmp_path: Path, content: str) -> None:
    write_private(tmp_path / "token", content.encode())
    with pytest.raises(ConfigError, match="delete it"):
        ensure_token(tmp_path)


def test_clients_find_a_daemon_that_runs(tmp_path: Path) -> None:
    assert find_daemon(tmp_path) is None
    token = ensure_token(tmp_path)
    write_runtime(tmp_path, me())
    assert find_daemon(tmp_path) == structs.replace(me(), token=token)
    assert token not in (tmp_path / "daemon.json").read_text()
    if os.name != "nt":
        assert mode(tmp_path / "daemon.json") == 0o600
    remove_runtime(tmp_path, os.getpid() + 1)
    assert find_daemon(tmp_path) is not None
    remove_runtime(tmp_path, os.getpid())
    assert list(tmp_path.iterdir()) == [tmp_path / "token"]


def test_a_daemon_takes_its_address_back_whatever_became_of_the_token(tmp_path: Path) -> None:
    write_runtime(tmp_path, me())
    (tmp_path / "token").write_text("no token")
    with pytest.raises(ConfigError):
        find_daemon(tmp_path)
    remove_runtime(tmp_path, os.getpid())
    assert list(tmp_path.iterdir()) == [tmp_path / "token"]


def test_a_daemon_that_is_gone_is_not_found(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    for stale in (
        structs.replace(me(), pid=child.pid),
        # Another process has this pid now.
        structs.replace(me(), started_at_s=me().started_at_s - 60),
    ):
        write_runtime(tmp_path, stale)
        assert find_daemon(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        json.dumps({**structs.asdict(me()), "pid": "1"}),
        json.dumps({**structs.asdict(me()), "pid": -1}),
        json.dumps({**structs.asdict(me()), "url": None}),
        json.dumps({**structs.asdict(me()), "started_at_s": 1e308}),
        "\ud800".encode("utf-16", "surrogatepass").decode("latin-1"),
    ],
)
def test_a_broken_file_is_no_daemon(tmp_path: Path, content: str) -> None:
    write_private(tmp_path / "daemon.json", content.encode("latin-1"))
    assert find_daemon(tmp_path) is None


@POSIX
def test_a_file_that_others_could_write_is_not_believed(tmp_path: Path) -> None:
    write_runtime(tmp_path, me())
    (tmp_path / "daemon.json").chmod(0o606)
    assert find_daemon(tmp_path) is None


def test_writing_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_private(path, b"one")
    write_private(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


@POSIX
def test_a_folder_with_other_things_is_not_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "thesis.txt").touch()
    with (
        pytest.raises(StartError, match="holds other things; choose one with --state-dir, or run `chmod 700 "),
        locked_state_dir(folder),
    ):
        pass
    assert mode(folder) == 0o777
    (folder / LOCK_FILE).touch()
    with locked_state_dir(folder):
        assert mode(folder) == 0o700, "it was a state folder before"


ANSWERS: Totals = {("batch", "local"): {"outcome:met": [7]}}


def restored(folder: Path) -> list[int]:
    """Return the answers in each window of a ledger that is restored from the file."""
    ledger = SloLedger(dict)
    SloFile(folder, ledger)
    return [figures.num_answers for figures in ledger.figures()]


async def test_the_ledger_of_latency_targets_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, counted = tmp_path / SLO_FILE, dict[tuple[str, str], dict[str, list[int]]]()
    file = SloFile(tmp_path, SloLedger(lambda: counted))
    await file.close()
    assert not path.exists()  # nothing to keep
    counted.update(ANSWERS)
    await file.close()
    assert restored(tmp_path) == [7, 7]
    assert not caplog.messages
    content = path.read_bytes()
    for damage in (content[:-9], b"\0" * len(content)):
        path.write_bytes(damage)
        assert restored(tmp_path) == []
        assert f"{path} is not used, and its figures are lost" in caplog.messages[-1]
    path.unlink()
    path.mkdir()  # it can be neither read nor written
    file = SloFile(tmp_path, SloLedger(lambda: counted))
    counted["batch", "local"] = {"outcome:met": [8]}
    await file.close()
    counted["batch", "local"] = {"outcome:met": [9]}
    await file.close()
    assert len([line for line in caplog.messages if "lost at the next restart" in line]) == 1
