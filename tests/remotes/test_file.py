"""remotes.json: written privately and atomically, read strictly, and followed by every process that read it."""

from __future__ import annotations

import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from edgeagent import state_files
from edgeagent.errors import ConfigError
from edgeagent.remotes import REMOTES_FILE, Budget, EndpointConfig, Key, Limits, Price, Remote, Tls
from edgeagent.remotes.file import MAX_REMOTES, RemotesFile, add_remote, load_remotes, remove_remote
from edgeagent.runtime_file import write_private
from edgeagent.state_files import changing


def remote(name: str = "gpu", url: str = "https://gpu.example/v1", **fields: Any) -> Remote:
    return Remote(name, (EndpointConfig(url),), **fields)


def write(folder: Path, *rows: dict[str, Any]) -> None:
    write_private(folder / REMOTES_FILE, json.dumps({"remotes": rows}).encode())


ROW: dict[str, Any] = {"name": "gpu", "endpoints": [{"url": "https://gpu.example/v1"}]}


def test_what_is_added_is_read_back_whole(tmp_path: Path) -> None:
    written = add_remote(
        tmp_path,
        Remote(
            "gpu",
            (EndpointConfig("https://a.example", "eu"), EndpointConfig("https://b.example:8443/llm/v1/", "us")),
            key=Key("env", "GPU_KEY"),
            models={"builtin": "meta/llama"},
            context_length=131072,
            continues="inexact",
            tls=Tls(ca_file="/etc/ca.pem", pin="AB:" * 31 + "CD"),
            proxy="http://proxy.example:3128",
            price=Price(0.5, 1.5),
            budget=Budget(tokens=1000, client_money=2.5),
            limits=Limits(max_concurrent=8, first_token_s=5.0),
        ),
    )
    assert load_remotes(tmp_path) == (written,)
    assert [each.url for each in written.endpoints] == ["https://a.example/v1", "https://b.example:8443/llm/v1"]
    assert written.tls.pin == "ab" * 31 + "cd"
    if os.name == "posix":
        assert stat.S_IMODE((tmp_path / REMOTES_FILE).stat().st_mode) == 0o600


def test_a_remote_replaces_its_namesake_in_its_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        add_remote(tmp_path, remote(name))
    add_remote(tmp_path, remote("a", "https://other.example"))
    assert [(each.name, each.endpoints[0].url) for each in load_remotes(tmp_path)] == [
        ("a", "https://other.example/v1"),
        ("b", "https://gpu.example/v1"),
    ]
    remove_remote(tmp_path, "a")
    assert [each.name for each in load_remotes(tmp_path)] == ["b"]
    with pytest.raises(ConfigError, match="no remote is named 'a'; there is b"):
        remove_remote(tmp_path, "a")


def test_there_is_a_bound_on_remotes(tmp_path: Path) -> None:
    write(tmp_path, *({**ROW, "name": f"r{index}"} for index in range(MAX_REMOTES)))
    with pytest.raises(ConfigError, match=f"there are {MAX_REMOTES} remotes"):
        add_remote(tmp_path, remote("more"))
    write(tmp_path, *({**ROW, "name": f"r{index}"} for index in range(MAX_REMOTES + 1)))
    with pytest.raises(ConfigError, match=f"at most {MAX_REMOTES} remotes"):
        load_remotes(tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"name": "gpu"}], "remote 'gpu': object missing required field `endpoints`"),
        ([{"endpoints": []}], r"remotes\[0\]: object missing required field `name`"),
        ([{**ROW, "modles": {}}], "remote 'gpu': object contains unknown field `modles`"),
        ([{**ROW, "limits": {"connect_s": "3"}}], "remote 'gpu': limits.connect_s: expected `float`, got `str`"),
        ([{**ROW, "key": {"source": "argv", "name": "x"}}], "remote 'gpu': key.source: invalid enum value 'argv'"),
        ([{**ROW, "endpoints": [{"url": "ftp://x"}]}], r"remote 'gpu': endpoints\[0\].url: must begin with https"),
        ([{**ROW, "continues": "maybe"}], "remote 'gpu': continues: invalid enum value 'maybe'"),
        ([ROW, ROW], "two remotes are named 'gpu'"),
        ([[]], r"remotes\[0\]: expected `object`, got `array`"),
    ],
)
def test_a_wrong_row_is_named_with_its_field(rows: list[Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, *rows)
    with pytest.raises(ConfigError, match=message) as raised:
        load_remotes(tmp_path)
    assert str(tmp_path / REMOTES_FILE) in raised.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"remotes": 1}', b'{"remotes": [], "x": 1}', b"[" * 10_000])
def test_what_is_no_file_of_remotes_is_refused(content: bytes, tmp_path: Path) -> None:
    write_private(tmp_path / REMOTES_FILE, content)
    with pytest.raises(ConfigError, match=f"{REMOTES_FILE}: .*fix it, or delete the file"):
        load_remotes(tmp_path)


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    write_private(tmp_path / REMOTES_FILE, b" " * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="has more than"):
        load_remotes(tmp_path)


def test_changes_are_noticed(tmp_path: Path) -> None:
    file = RemotesFile(tmp_path)
    assert (file.remotes, file.trouble, file.revision) == ((), "", 0)
    added = add_remote(tmp_path, remote())
    assert file.remotes == (added,) and file.find("gpu") == added and file.find("x") is None
    first = file.revision
    assert first != 0 and file.revision == first
    remove_remote(tmp_path, "gpu")
    assert not file.remotes and file.find("gpu") is None and file.revision != first


def test_the_same_remote_added_again_is_a_change(tmp_path: Path) -> None:
    added = add_remote(tmp_path, remote())
    file = RemotesFile(tmp_path)
    first = file.revision
    add_remote(tmp_path, remote())
    assert file.revision != first and file.remotes == (added,)


def test_the_order_of_remotes_is_part_of_the_revision(tmp_path: Path) -> None:
    write(tmp_path, ROW, {**ROW, "name": "b"})
    file = RemotesFile(tmp_path)
    first = file.revision
    write(tmp_path, {**ROW, "name": "b"}, ROW)
    assert file.revision != first and [each.name for each in file.remotes] == ["b", "gpu"]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_while_the_file_cannot_be_trusted_there_is_no_remote(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    add_remote(tmp_path, remote())
    file = RemotesFile(tmp_path)
    before = file.revision
    (tmp_path / REMOTES_FILE).chmod(0o644)
    assert file.remotes == () and file.find("gpu") is None
    assert "open to other users" in file.trouble and file.revision != before
    (tmp_path / REMOTES_FILE).chmod(0o600)
    assert len(file.remotes) == 1 and file.trouble == ""
    tmp_path.chmod(0o777)
    assert file.remotes == () and "other users can replace files" in file.trouble
    tmp_path.chmod(0o700)
    assert len(file.remotes) == 1
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in said] == [
        "no remote is used",
        "remotes are used again",
        "no remote is used",
        "remotes are used again",
    ]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_what_could_not_be_read_is_tried_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason may be another than the file, such as too many open files; but reading it costs time."""
    now_s, num_reads = 0.0, 0

    def failing(state_dir: Path) -> tuple[Remote, ...]:
        nonlocal num_reads
        num_reads += 1
        raise ConfigError("too many open files")

    add_remote(tmp_path, remote())
    file = RemotesFile(tmp_path, lambda: now_s)
    monkeypatch.setattr("edgeagent.remotes.file.load_remotes", failing)
    assert file.remotes == () and file.trouble and num_reads == 1
    now_s = 1.0
    assert file.remotes == () and num_reads == 2
    monkeypatch.undo()
    assert file.remotes == ()
    now_s = 2.0
    assert len(file.remotes) == 1 and not file.trouble


def test_changes_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes must not overlap: an addition could otherwise write back a remote that was just removed."""
    add_remote(tmp_path, remote("removed"))
    with ThreadPoolExecutor() as pool:
        with changing(tmp_path / "remotes.lock", "edgeagent remote"):
            adding = pool.submit(add_remote, tmp_path, remote("added"))
            assert not wait([adding], timeout=0.05).done
            write(tmp_path)
        adding.result()
    assert [each.name for each in load_remotes(tmp_path)] == ["added"]
    monkeypatch.setattr(state_files, "_LOCK_TIMEOUT_S", 0.0)
    lock = tmp_path / "remotes.lock"
    with changing(lock, "edgeagent remote"), pytest.raises(ConfigError, match="another `edgeagent remote`"):
        remove_remote(tmp_path, "added")


def test_a_protocol_of_an_earlier_version_is_ignored(tmp_path: Path) -> None:
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("https://gpu.example"),)))
    path = tmp_path / REMOTES_FILE
    said = json.loads(path.read_text())
    said["remotes"][0]["wire"] = "responses"
    path.write_text(json.dumps(said))
    assert [remote.name for remote in load_remotes(tmp_path)] == ["gpu"]
