"""`edgeagent kiosk` with a real daemon: a browser that ends is started again, with a link of its own."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from edgeagent.cli import main
from edgeagent.credentials.keys import Scope, add_client, clients
from edgeagent.types import RouteMode
from tests.integration.conftest import Daemon
from tests.patience import patient

# A browser that shows nothing: it notes its arguments, uses the link, and crashes.
BROWSER = """
import json, sys, urllib.request
address, _, secret = sys.argv[-1].partition("/kiosk#link=")
body = json.dumps({"secret": secret}).encode()
asked = urllib.request.Request(address + "/edgeagent/page/token", body, {"content-type": "application/json"})
with urllib.request.urlopen(asked) as answer, open(LOG, "a") as log:
    print(json.dumps([*sys.argv, json.load(answer)["token"]]), file=log)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs groups of processes")
def test_a_browser_that_ends_is_started_again(daemon: Daemon, tmp_path: Path) -> None:
    script, log = tmp_path / "browser.py", tmp_path / "log"
    script.write_text(f"LOG = {str(log)!r}\n{BROWSER}")
    command = [sys.executable, "-m", "edgeagent", "kiosk", "--name", "hall", "--state-dir", str(daemon.state_dir)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    browser = ["--browser", shlex.join([sys.executable, str(script), "--mine"])]
    kiosk = subprocess.Popen([*command, *browser], env=environment, stderr=subprocess.PIPE)
    deadline = time.monotonic() + patient(60)
    while not log.exists() or log.read_text().count("\n") < 3:
        assert kiosk.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    kiosk.send_signal(signal.SIGHUP)  # as a terminal that is closed
    _, told = kiosk.communicate(timeout=patient(20))
    assert (kiosk.returncode, b"started again" in told) == (0, True)
    starts = [json.loads(line) for line in log.read_text().splitlines()]
    assert all(start[1] == "--mine" and "--kiosk" in start for start in starts)
    assert len({start[-2] for start in starts}) == len(starts) and len({start[-1] for start in starts}) == 1
    assert not list(tmp_path.glob("edgeagent-kiosk-*"))
    headers = {"authorization": f"Bearer {starts[0][-1]}"}
    assert httpx.get(f"{daemon.url}/edgeagent/kiosk", headers=headers).json()["num_pages"] == 0
    assert httpx.get(f"{daemon.url}/v1/models", headers=headers).status_code == 403
    daemon.run("token", "remove", "hall")


def test_the_token_keeps_its_limits_and_no_other_client_loses_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from edgeagent.cli.kiosk import _token_of

    add_client(tmp_path, "kiosk", [Scope.KIOSK], RouteMode.LOCAL_ONLY)
    assert _token_of(tmp_path, "kiosk") != _token_of(tmp_path, "kiosk")
    assert [(each.label, each.scopes, each.route) for each in clients(tmp_path)] == [
        ("kiosk", frozenset({Scope.KIOSK}), RouteMode.LOCAL_ONLY)
    ]
    add_client(tmp_path, "app", [Scope.INFER])
    options = ["--state-dir", str(tmp_path), "--browser", sys.executable]
    assert main(["kiosk", "--name", "app", *options]) == 2
    assert "choose another name" in capsys.readouterr().err
    assert main(["kiosk", "--url", "http://127.0.0.1:1", *options]) == 2
    assert "--token-file" in capsys.readouterr().err
    assert main(["kiosk", "--browser", "no-such-browser"]) == 2
    assert "no browser no-such-browser" in capsys.readouterr().err
    assert main(["kiosk", "--browser", "'chromium"]) == 2
    assert "No closing quotation" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"two tokens", "é".encode()])
def test_a_token_file_without_a_token_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "token.txt").write_bytes(content)
    words = ["--url", "http://127.0.0.1:1", "--token-file", str(tmp_path / "token.txt"), "--browser", sys.executable]
    assert main(["kiosk", *words]) == 2
    assert "has no token" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["127.0.0.1:8127", "http://127.0.0.1:99999", "ftp://a", "http://"])
def test_a_wrong_url_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    (tmp_path / "token.txt").write_text("edge_x")
    words = ["--url", url, "--token-file", str(tmp_path / "token.txt"), "--browser", sys.executable]
    assert main(["kiosk", *words]) == 2
    assert f"not {url!r}" in capsys.readouterr().err
