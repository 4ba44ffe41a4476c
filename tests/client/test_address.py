"""The address to which the client connects."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from edgeagent.client.address import Address, address_of_daemon, is_loopback
from edgeagent.errors import BackendUnavailable
from edgeagent.runtime_file import TOKEN_FILE, Runtime, write_private, write_runtime


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8127", "ws://127.0.0.1:8127/v1/responses"),
        ("http://127.0.0.1:8127/v1/", "ws://127.0.0.1:8127/v1/responses"),
        ("https://box.example/v1", "wss://box.example/v1/responses"),
        ("ws://localhost:1/v1/responses", "ws://localhost:1/v1/responses"),
        ("wss://box.example", "wss://box.example/v1/responses"),
    ],
)
def test_any_form_of_the_url_leads_to_the_responses_socket(url: str, expected: str) -> None:
    assert Address(url).websocket_url == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ws://127.0.0.1:1/x", True),
        ("ws://127.9.9.9/x", True),
        ("ws://[::1]:1/x", True),
        ("ws://localhost/x", True),
        ("ws://localhost.example/x", False),
        ("ws://10.0.0.1/x", False),
    ],
)
def test_loopback_is_told_from_the_network(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    write_private(tmp_path / TOKEN_FILE, b"a-token-of-more-than-22-characters")
    return tmp_path


def _publish(state_dir: Path, pid: int, started_at_s: float) -> None:
    write_runtime(state_dir, Runtime(pid, started_at_s, 8127, "http://127.0.0.1:8127", "0.1.0"))


def test_a_running_daemon_is_found_with_its_token(state_dir: Path) -> None:
    _publish(state_dir, os.getpid(), psutil.Process().create_time())
    assert address_of_daemon(state_dir) == Address("http://127.0.0.1:8127", "a-token-of-more-than-22-characters")
    assert address_of_daemon(state_dir, "another").token == "another"


def test_the_token_is_not_for_whoever_has_the_port_of_a_dead_daemon(state_dir: Path) -> None:
    _publish(state_dir, os.getpid(), psutil.Process().create_time() - 60)
    with pytest.raises(BackendUnavailable, match="edgeagent serve"):
        address_of_daemon(state_dir)


def test_no_daemon_is_an_error_that_says_what_to_do(state_dir: Path) -> None:
    with pytest.raises(BackendUnavailable, match="edgeagent serve"):
        address_of_daemon(state_dir)


def test_the_configured_state_folder_is_looked_into(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(state_dir, os.getpid(), psutil.Process().create_time())
    monkeypatch.setenv("EDGEAGENT_STATE_DIR", str(state_dir))
    assert address_of_daemon().url == "http://127.0.0.1:8127"
