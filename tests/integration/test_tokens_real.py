"""The identity of clients of a real daemon: a token that is removed while its stream runs, and another user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import httpx
import pytest

from edgeagent.cli import main
from edgeagent.credentials.keys import Scope, add_client
from tests.integration.conftest import Daemon
from tests.integration.test_daemon_real import long_request
from tests.patience import patient


def test_a_token_removed_while_its_stream_runs(daemon: Daemon) -> None:
    token = add_client(daemon.state_dir, "leaver", [Scope.INFER])
    headers = {"Authorization": f"Bearer {token}"}
    create = long_request(daemon)
    body = {**{name: value for name, value in create.items() if name != "type"}, "stream": True}
    kinds: list[str] = []
    with httpx.stream("POST", f"{daemon.url}/v1/responses", json=body, headers=headers, timeout=patient(60)) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            kinds.append(event["type"])
            if len(kinds) == 8:
                assert kinds[-1] == "response.output_text.delta"
                assert main(["token", "remove", "leaver", "--state-dir", str(daemon.state_dir)]) == 0
            last = event
    assert kinds[-1] == "response.incomplete"
    assert last["response"]["status"] == "cancelled"
    assert last["response"]["usage"]["output_tokens"] < body["max_output_tokens"]
    assert httpx.get(f"{daemon.url}/v1/models", headers=headers).status_code == 401
    assert httpx.get(f"{daemon.url}/v1/models").status_code == 200


ASK = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
connection.request("POST", "/v1/chat/completions", sys.argv[2], {"Content-Type": "application/json"})
print(connection.getresponse().read().decode())
"""


def num_cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("setpriv"), reason="needs Linux and setpriv")
def test_another_user_does_not_find_what_is_cached(daemon: Daemon) -> None:
    if os.getuid() != 0:
        pytest.skip("becoming another user takes root")
    text = "The secret of this machine's owner is kept in the third drawer of the old desk by the window. " * 8
    body: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0}

    def mine() -> int:
        return num_cached(httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(60)).json())

    def theirs() -> int:
        become = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", "/usr/bin/env", "python3"]
        command = [*become, "-c", ASK, str(daemon.port), json.dumps(body)]
        return num_cached(json.loads(subprocess.check_output(command, cwd="/")))

    assert mine() == 0
    assert mine() > 50
    assert theirs() == 0
    # The other user has a cache of their own, and the owner's cache still holds the prompt.
    assert theirs() > 50
    assert mine() > 50
