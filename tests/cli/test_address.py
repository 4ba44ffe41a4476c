"""`edgeagent address`: what applications in other languages find the daemon by."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from edgeagent.cli import main
from edgeagent.runtime_file import TOKEN_FILE, Runtime, write_private, write_runtime


def test_the_address_is_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token = "a-token-of-more-than-22-characters"
    write_private(tmp_path / TOKEN_FILE, token.encode())
    started_at_s = psutil.Process().create_time()
    write_runtime(tmp_path, Runtime(os.getpid(), started_at_s, 8127, "https://127.0.0.1:8127", "0.1.0", None, "/c.pem"))
    assert main(["address", "--state-dir", str(tmp_path)]) == 0
    address = {"url": "https://127.0.0.1:8127", "token": token, "certificate": "/c.pem"}
    assert json.loads(capsys.readouterr().out) == address


def test_without_a_daemon_the_error_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["address", "--state-dir", str(tmp_path)]) == 1
    assert "start one with `edgeagent serve`" in capsys.readouterr().err
