"""`edgeagent cache`, with and without a running daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgeagent.cache_folder import RootRecord, list_parts
from edgeagent.cli import cache, main
from edgeagent.cli.link import address_of
from edgeagent.credentials.keys import Scope, add_client
from edgeagent.engine.cache.block import Importance
from edgeagent.runtime_file import Runtime
from tests.engine.cache.disk.stores import close_now, make_chain, make_store

TIER = {
    "num_blocks": 3,
    "num_bytes": 5 << 20,
    "max_bytes": 100 << 20,
    "num_hits": 7,
    "num_misses": 2,
    "num_offered": 9,
    "num_dropped": 1,
    "num_evicted": 4,
    "read_bytes_per_s": 750_000_000,
    "trouble": None,
}


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    for client in ("kiosk", ""):
        store, chain = make_store(tmp_path / "cache"), make_chain(2, partition=client)
        store.describe_partition(chain[0].root, RootRecord("tiny", client))
        for block in chain:
            store.offer(block, Importance.NORMAL)
        close_now(store)
    return tmp_path


class Daemon:
    """Answers the commands' requests and records them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.worker: dict[str, Any] | None = {
            "memory_cache": TIER,
            "disk_cache": {**TIER, "trouble": "the disk is full"},
        }
        runtime = Runtime(1, 0.0, 1, "http://127.0.0.1:1", "0", "token")
        monkeypatch.setattr(cache, "find_daemon", lambda _: runtime)
        monkeypatch.setattr(cache, "daemon_of", lambda _: address_of(runtime))
        monkeypatch.setattr(cache, "ask", self.ask)

    def ask(self, address: object, path: str, method: str = "GET", *, body: Any = None, timeout_s: Any = None) -> Any:
        self.asked.append((path, body))
        if path.endswith("/status"):
            return {"models": [{"name": "tiny", "worker": self.worker}]}
        return {"num_prompt_tokens": 900, "num_cached_tokens": 100}


def run(state_dir: Path, *arguments: str) -> int:
    return main(["cache", *arguments, "--state-dir", str(state_dir)])


def test_list(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state_dir, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["model", "client", "blocks", "tokens", "size", "unused", "for"]
    assert {tuple(line.split()[:4]) for line in lines[1:]} == {("tiny", "kiosk", "2", "512"), ("tiny", "-", "2", "512")}
    assert run(state_dir, "list", "--json") == 0
    assert {row["client"] for row in json.loads(capsys.readouterr().out)} == {"kiosk", ""}


def test_list_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "list") == 0
    assert "Nothing is kept" in capsys.readouterr().out


def test_purge_without_a_daemon(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state_dir, "purge", "--client", "kiosk") == 0
    assert [part.record for part in list_parts(state_dir / "cache")] == [RootRecord("tiny", "")]
    capsys.readouterr()
    assert run(state_dir, "purge", "--client", "", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"client": ""}
    assert list_parts(state_dir / "cache") == []


def test_purge_leaves_other_files_alone(state_dir: Path) -> None:
    (state_dir / "cache" / "notes.txt").write_text("mine")
    assert run(state_dir, "purge") == 0
    assert (state_dir / "cache" / "notes.txt").exists()
    assert not list((state_dir / "cache").glob("*.kv"))


def test_a_client_is_purged_with_what_is_nobodys(state_dir: Path) -> None:
    for path in (state_dir / "cache").glob("*.about"):
        if "kiosk" in path.read_text():
            path.unlink()
    assert run(state_dir, "purge", "--client", "another") == 0
    assert [part.record for part in list_parts(state_dir / "cache")] == [RootRecord("tiny", "")]


def test_a_purge_of_a_client_that_is_none_says_so(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state_dir, "purge", "--client", "kiosque") == 0
    assert "No client is named 'kiosque'" in capsys.readouterr().err
    assert run(state_dir, "purge", "--client", "kiosk") == 0
    assert capsys.readouterr().err == ""


def test_purge_with_a_daemon_is_the_daemons(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(monkeypatch)
    assert run(state_dir, "purge") == 0
    assert run(state_dir, "purge", "--client", "kiosk") == 0
    assert daemon.asked == [("/edgeagent/cache/purge", {}), ("/edgeagent/cache/purge", {"client": "kiosk"})]
    assert len(list_parts(state_dir / "cache")) == 2


def test_stats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = Daemon(monkeypatch)
    assert run(tmp_path, "stats") == 0
    output = capsys.readouterr().out
    assert output.splitlines()[1].split() == [
        "tiny",
        "memory",
        "3",
        "5.2",
        "MB",
        "104.9",
        "MB",
        "7",
        "2",
        "1",
        "4",
        "750.0",
        "MB/s",
    ]
    assert "tiny, disk: the disk is full" in output
    assert run(tmp_path, "stats", "--json") == 0
    assert [row["tier"] for row in json.loads(capsys.readouterr().out)] == ["memory", "disk"]
    daemon.worker = None
    assert run(tmp_path, "stats") == 0
    assert "Nothing is loaded" in capsys.readouterr().out


def test_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    daemon = Daemon(monkeypatch)
    (tmp_path / "prompt.txt").write_text("Be brief.")
    (tmp_path / "prompt.json").write_text('{"prompt": "Once"}')
    add_client(tmp_path, "kiosk", [Scope.INFER])
    assert run(tmp_path, "warm", str(tmp_path / "prompt.txt"), "--pin", "--client", "kiosk") == 0
    assert "900 tokens are kept; 800 of them were computed now." in capsys.readouterr().out
    assert run(tmp_path, "warm", str(tmp_path / "prompt.json")) == 0
    messages = [{"role": "system", "content": "Be brief."}]
    assert [body for _, body in daemon.asked] == [
        {"messages": messages, "client": "kiosk", "pin": True},
        {"prompt": "Once", "client": "", "pin": False},
    ]


def test_warm_for_a_client_that_nobody_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(monkeypatch)
    (tmp_path / "prompt.txt").write_text("Be brief.")
    assert run(tmp_path, "warm", str(tmp_path / "prompt.txt"), "--client", "kisok") == 2
    assert "no client is named 'kisok'" in capsys.readouterr().err
    assert run(tmp_path, "warm", str(tmp_path / "prompt.txt"), "--client", "uid:x") == 2
    assert daemon.asked == []
    # Another user of this machine has a partition of its own, and no token.
    assert run(tmp_path, "warm", str(tmp_path / "prompt.txt"), "--client", "uid:1001") == 0
    assert [body["client"] for _, body in daemon.asked] == ["uid:1001"]


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff", b"", b" \n"])
def test_warm_with_a_file_that_is_none(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompt.json").write_bytes(content)
    assert run(tmp_path, "warm", str(tmp_path / "prompt.json")) == 2
    assert run(tmp_path, "warm", str(tmp_path / "missing.txt")) == 2
    assert "codec" not in capsys.readouterr().err


def test_what_needs_a_daemon_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "prompt.txt").write_text("Be brief.")
    assert run(tmp_path, "stats") == 1
    assert run(tmp_path, "warm", str(tmp_path / "prompt.txt")) == 1
    assert "no daemon runs" in capsys.readouterr().err
