"""`edgeagent kiosk` with a real daemon, model and browser: each part is killed, and all comes back without a hand.

KIOSK_KILLS says how many kills: `KIOSK_KILLS=100 make test-page PYTEST_ARGS="-s -k kills"` prints how long each took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from edgeagent.runtime_file import find_daemon
from tests.page.conftest import CHROMIUM
from tests.page.test_kiosk import MARKER, files_with
from tests.patience import patient

NUM_KILLS = int(os.environ.get("KIOSK_KILLS", "3"))
pytestmark = pytest.mark.slow(seconds=10 + 12 * NUM_KILLS)
RESTART_S = 2.0
"""After this time systemd starts the daemon again: RestartSec in packaging/systemd."""
KIOSK = """
[kiosk]
questions = ["What can you do?"]
instructions = "You are the guide of the museum. It closes at six."
max_output_tokens = 24
"""


@dataclass
class Parts:
    """The processes of a kiosk, and where they keep files."""

    folder: Path
    port: int = 0
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("EDGEAGENT_")}
        environment["XDG_RUNTIME_DIR"] = str(self.folder / "run")
        options = ["--state-dir", str(self.folder / "state"), "--config", str(self.folder / "config.toml")]
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-m", "edgeagent", *words, *options]
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def serve(self) -> subprocess.Popen[bytes]:
        process = self.start("daemon", "serve", "--threads", "1", "--port", str(self.port))
        self.port = until(lambda: find_daemon(self.folder / "state")).port
        return process

    def page(self, code: str) -> Any:
        """Return what the page answers to a piece of JavaScript; None if there is no page now."""
        for file in self.folder.glob("run/*/profile/DevToolsActivePort"):
            # A browser that is starting has an empty file.
            with suppress(OSError, ValueError, LookupError, StopIteration, WebSocketException):
                port = file.read_text().split()[0]
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=5) as listed:
                    pages = json.load(listed)
                address = next(page["webSocketDebuggerUrl"] for page in pages if page["url"].endswith("/kiosk"))
                with connect(address, open_timeout=5) as socket:
                    asked = {
                        "id": 1,
                        "method": "Runtime.evaluate",
                        "params": {"expression": code, "returnByValue": True},
                    }
                    socket.send(json.dumps(asked))
                    return json.loads(socket.recv(timeout=5))["result"]["result"]["value"]
        return None


def until(found: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Return what `found` returns as soon as it is true."""
    deadline = time.monotonic() + patient(seconds)
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come back"
        time.sleep(0.05)
    return value


ASK = """(() => {
  const field = document.querySelector("#message");
  if (!field || !document.querySelector("#offline").hidden || document.querySelector("#send").hidden) return false;
  field.value = %s;
  document.querySelector("#send").click();
  return true;
})()"""
ANSWER = """document.querySelector("#stop")?.hidden && [...document.querySelectorAll(".markdown")].at(-1)?.innerText"""
SEEN = "document.documentElement.outerHTML + document.querySelector('textarea')?.value"


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "config.toml").write_text(KIOSK)
    found = Parts(tmp_path)
    yield found
    for process in reversed(found.started):
        process.terminate()
        process.wait(patient(20))
    assert list((tmp_path / "run").glob("edgeagent-kiosk-*")) == []


def test_all_comes_back_after_kills(parts: Parts) -> None:
    daemon = parts.serve()
    browser = parts.start(
        "kiosk", "kiosk", "--browser", f"{CHROMIUM} --headless=new --no-sandbox --remote-debugging-port=0"
    )

    def children(parent: subprocess.Popen[bytes], mark: str) -> list[psutil.Process]:
        found = psutil.Process(parent.pid).children(recursive=True)
        return [each for each in found if each.is_running() and mark in " ".join(each.cmdline())]

    def say(text: str) -> str:
        until(lambda: parts.page(ASK % json.dumps(text)))
        return str(until(lambda: parts.page(ANSWER)))

    for number in range(NUM_KILLS):
        say(f"My name is {MARKER}.")
        assert MARKER in parts.page(SEEN)
        victim = ("page", "worker", "daemon")[number % 3]
        began_s = time.monotonic()
        if victim == "page":
            for process in children(browser, "--type=renderer"):
                process.kill()
            until(lambda: parts.page(SEEN) is None)
        elif victim == "worker":
            for process in children(daemon, "edgeagent.worker.child"):
                process.kill()
        else:
            daemon.kill()
            daemon.wait()
            time.sleep(RESTART_S)
            daemon = parts.serve()
        answer = say("When does it close?")
        print(f"{victim}: {time.monotonic() - began_s:.1f} s until the next answer: {answer[:40]!r}")
        if victim == "page":
            assert MARKER not in parts.page(SEEN)
        else:  # the visitor is still there
            assert MARKER in parts.page(SEEN)
            parts.page("document.querySelector('#again').click()")
            until(lambda: parts.page("document.querySelector('.attract') !== null"))
        assert MARKER not in parts.page(SEEN)
        owner = (parts.folder / "state" / "token").read_text().strip()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{parts.port}/edgeagent/conversations", headers={"Authorization": f"Bearer {owner}"}
        )
        with urllib.request.urlopen(asked) as listed:
            assert json.load(listed)["data"] == []
        assert files_with(MARKER, parts.folder) == []
