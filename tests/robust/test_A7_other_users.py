"""A7: real programs of this user and another, without a token, on the loopback port of a real daemon process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeagent.credentials.keys import CLIENTS_FILE, Scope, add_client, ensure_token
from edgeagent.runtime_file import TOKEN_FILE
from tests.patience import patient
from tests.robust.fake_serve import Process, serving

OTHER_UID = 54321
# The other user's program: its input is a list of [method, path, body, key], its output the statuses and bodies.
ASK = """
import http.client, json, sys
port, requests, timeout_s = int(sys.argv[1]), json.loads(sys.argv[2]), float(sys.argv[3])
answers = []
for method, path, body, key in requests:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    headers = {"Content-Type": "application/json"} | ({"Authorization": "Bearer " + key} if key else {})
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    answers.append([answer.status, answer.read().decode()])
print(json.dumps(answers))
"""
OWNERS = [
    ("GET", "/edgeagent/status", None),
    ("GET", "/metrics", None),
    ("GET", "/props", None),
    ("GET", "/slots", None),
    ("GET", "/api/ps", None),
    ("POST", "/api/pull", {"model": "org/repo", "stream": False}),
    ("POST", "/v1/models/pull", {"model": "org/repo", "stream": False}),
    ("DELETE", "/api/delete", {"model": "fake"}),
    ("POST", "/api/copy", {"source": "fake", "destination": "theirs"}),
    ("POST", "/edgeagent/cache/purge", {}),
    ("POST", "/edgeagent/cache/warm", {"prompt": "x"}),
    ("POST", "/edgeagent/reload", None),
    ("POST", "/edgeagent/load?model=fake", None),
    ("POST", "/edgeagent/unload?model=fake", None),
    ("POST", "/edgeagent/stop", None),
]
EVERYBODYS = [
    ("GET", "/health", None),
    ("GET", "/ready", None),
    ("GET", "/v1/models", None),
    ("GET", "/api/tags", None),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with serving(tmp_path_factory.mktemp("daemon") / "state") as process:
        yield process


def as_other_user(daemon: Process, *requests: tuple[str, str, Any, str | None]) -> list[tuple[int, str]]:
    """Send requests from a process of another user and return statuses and bodies."""
    if sys.platform != "linux" or not shutil.which("setpriv"):
        pytest.skip("needs Linux and setpriv")
    if os.getuid() != 0:
        pytest.skip("becoming another user takes root")
    become = ["setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups", "/usr/bin/env", "python3"]
    command = [*become, "-c", ASK, str(daemon.runtime.port), json.dumps(requests), str(patient(30))]
    return [(status, body) for status, body in json.loads(subprocess.check_output(command, cwd="/"))]


def ask(daemon: Process, method: str, path: str, body: Any = None, key: str | None = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.request(method, daemon.runtime.url + path, json=body, headers=headers)


@pytest.mark.parametrize("key", [None, "sk-unused"])
def test_another_user_may_infer_and_nothing_else(daemon: Process, key: str | None) -> None:
    answers = as_other_user(daemon, *((*request, key) for request in (*EVERYBODYS, *OWNERS)))
    statuses = [status for status, _ in answers]
    assert statuses == [200] * len(EVERYBODYS) + [401] * len(OWNERS)
    for _, body in answers[len(EVERYBODYS) :]:
        assert "token" in body
    assert daemon.process.poll() is None


def test_another_user_with_a_token_may_what_it_says(daemon: Process) -> None:
    token = add_client(daemon.state_dir, "watcher", [Scope.ADMIN])
    answers = as_other_user(daemon, ("GET", "/metrics", None, token), ("GET", "/v1/models", None, token))
    assert [status for status, _ in answers] == [200, 403]


def test_users_do_not_see_each_others_responses(daemon: Process) -> None:
    mine = ask(daemon, "POST", "/v1/responses", {"input": "secret"}).json()["id"]
    [(status, body)] = as_other_user(daemon, ("POST", "/v1/responses", {"input": "theirs"}, None))
    assert status == 200
    theirs = json.loads(body)["id"]
    answers = as_other_user(
        daemon,
        ("GET", f"/v1/responses/{mine}", None, None),
        ("DELETE", f"/v1/responses/{mine}", None, None),
        ("POST", f"/v1/responses/{mine}/cancel", None, None),
        ("GET", f"/v1/responses/{mine}/input_items", None, None),
        ("POST", "/v1/responses", {"input": "go on", "previous_response_id": mine}, None),
        ("GET", f"/v1/responses/{theirs}", None, None),
    )
    assert [status for status, _ in answers] == [404, 404, 404, 404, 400, 200]
    assert ask(daemon, "GET", f"/v1/responses/{mine}").status_code == 200
    assert ask(daemon, "GET", f"/v1/responses/{theirs}").status_code == 404


def test_the_own_user_is_the_owner_without_a_token(daemon: Process) -> None:
    for method, path, body in (*EVERYBODYS, ("GET", "/edgeagent/status", None), ("GET", "/metrics", None)):
        for key in (None, "sk-unused", daemon.runtime.token):
            assert ask(daemon, method, path, body, key).status_code == 200, (path, key)
    assert ask(daemon, "POST", "/edgeagent/cache/purge", {}).status_code == 200


def test_a_page_in_the_own_users_browser_is_not(daemon: Process) -> None:
    url = f"{daemon.runtime.url}/edgeagent/status"
    old = {"User-Agent": "Mozilla/5.0 (an old browser that hides where it is)"}
    assert httpx.get(url, headers=old).status_code == 401
    assert httpx.post(f"{daemon.runtime.url}/edgeagent/stop", headers=old).status_code == 401
    typed = old | {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}
    assert httpx.get(url, headers=typed).status_code == 200
    assert httpx.get(url, headers=typed | {"Origin": "null"}).status_code == 403
    # An extension with access to this machine also reports that no site sent the request.
    for mode in ("cors", "no-cors", "same-origin"):
        assert httpx.get(url, headers=typed | {"Sec-Fetch-Mode": mode}).status_code == 401
    assert httpx.get(url, headers=old | {"Sec-Fetch-Site": "none"}).status_code == 401
    assert httpx.get(f"{daemon.runtime.url}/v1/models", headers=old).status_code == 200
    # Node's fetch runs in a program, not in a page.
    assert httpx.get(url, headers={"User-Agent": "node", "Sec-Fetch-Mode": "cors"}).status_code == 200


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
@pytest.mark.parametrize("name", [TOKEN_FILE, CLIENTS_FILE])
def test_files_that_others_could_have_read_widen_nothing(daemon: Process, name: str) -> None:
    infer = add_client(daemon.state_dir, "kiosk", [Scope.INFER])
    owner = daemon.runtime.token
    assert owner is not None
    mine = ask(daemon, "POST", "/v1/responses", {"input": "secret"}, owner).json()["id"]
    (daemon.state_dir / name).chmod(0o644)
    try:
        for key in (infer, owner, "edge_" + "x" * 43):
            for path in ("/edgeagent/status", "/metrics", "/v1/models", f"/v1/responses/{mine}"):
                refused = ask(daemon, "GET", path, None, key)
                assert refused.status_code == 401
                message = refused.json()["error"]["message"]
                assert f"{name} is open to other users" in message and "chmod 600" in message
                assert str(daemon.state_dir) not in message
            assert ask(daemon, "GET", "/health", None, key).status_code == 200
        # The owner sees the reason through access that needs no token.
        trouble = ask(daemon, "GET", "/edgeagent/status").json()["token_trouble"]
        assert f"chmod 600 {daemon.state_dir / name}" in trouble
        answers = as_other_user(
            daemon,
            ("GET", "/v1/models", None, None),
            ("GET", "/edgeagent/status", None, None),
            ("GET", f"/v1/responses/{mine}", None, None),
            ("GET", "/v1/models", None, infer),
        )
        assert [status for status, _ in answers] == [200, 401, 404, 401]
    finally:
        (daemon.state_dir / name).chmod(0o600)
    assert ask(daemon, "GET", "/edgeagent/status", None, owner).json()["token_trouble"] is None
    assert ask(daemon, "GET", "/v1/models", None, infer).status_code == 200
    log = daemon.state_dir.with_suffix(".log").read_text()
    assert log.count(f"every token is refused: {daemon.state_dir / name} is open to other users") == 1
    assert "tokens are accepted again" in log


@pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
def test_a_daemon_does_not_start_with_such_files(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir(0o700)
    ensure_token(state_dir)
    add_client(state_dir, "kiosk", [Scope.INFER])
    for name in (TOKEN_FILE, CLIENTS_FILE):
        (state_dir / name).chmod(0o640)
        with pytest.raises(AssertionError, match=f"{name} .*chmod 600"), serving(state_dir):
            pass
        (state_dir / name).chmod(0o600)
