"""`edgeagent serve`: the configuration that reaches the daemon, and its end when its parent process ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

import edgeagent.daemon
from edgeagent.cli import main
from edgeagent.config import Config


def test_the_daemon_gets_the_configuration_and_gives_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Config] = []

    def serve(config: Config) -> int:
        served.append(config)
        return 3

    monkeypatch.setattr(edgeagent.daemon, "serve", serve)
    assert main(["serve", "tiny.gguf", "--draft", "small.gguf", "--port", "0", "--parallel", "2"]) == 3
    (config,) = served
    assert (config.model, config.draft) == ("tiny.gguf", "small.gguf")
    assert (config.server.port, config.engine.parallel) == (0, 2)


def test_without_a_model_it_serves_the_bundled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Config] = []
    monkeypatch.setattr(edgeagent.daemon, "serve", served.append)
    assert main(["serve"]) == 0
    assert served[0].model == "builtin"


DAEMON_UNTIL_SIGTERM = """
import signal, sys, time
import edgeagent.daemon
from edgeagent.cli import main

def serve(config):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print("up", flush=True)
    time.sleep(60)

edgeagent.daemon.serve = serve
sys.exit(main(["serve", "--until-stdin-closes"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a sleeping main thread notices no signal there")
def test_a_daemon_for_the_occasion_ends_when_its_input_closes() -> None:
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON_UNTIL_SIGTERM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert daemon.stdin is not None and daemon.stdout is not None
    assert daemon.stdout.readline().strip() == b"up"
    assert daemon.poll() is None
    daemon.stdin.close()
    assert daemon.wait() == 7
    daemon.stdout.close()
