"""`edgeagent remote test` against a scripted server on loopback."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edgeagent.cli import main, remote
from edgeagent.egress import PROBE, Row
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.errors import ConfigError
from edgeagent.remotes import EndpointConfig, Key, Limits, Remote
from edgeagent.remotes.file import add_remote
from edgeagent.runtime_file import Runtime

Output = pytest.CaptureFixture[str]
SECRET = "sk-hush-0123456789"
MODELS = {"object": "list", "data": [{"id": "big", "owned_by": "vllm"}, {"id": "small", "owned_by": "vllm"}]}
CHAT = {"choices": [{"message": {"content": "Hi"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}


class Handler(BaseHTTPRequestHandler):
    """Answers a path with what its server holds for it, and records what it received."""

    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.path, self.headers.get("Authorization"), body))  # type: ignore[attr-defined]
        status, answer = self.server.answers.get(self.path, (404, {"error": {"message": "no such path"}}))  # type: ignore[attr-defined]
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 302:
            self.send_header("Location", "http://169.254.169.254/")
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.answers = {"/v1/models": (200, MODELS), "/v1/chat/completions": (200, CHAT)}
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def requests(folder: Path) -> list[Row]:
    """Return the rows of requests, without those of probes."""
    return [row for row in read_rows(folder_of(folder)) if row.reason != PROBE]


def url(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_port}/v1"


def checked(folder: Path, capsys: Output, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the findings for the one endpoint."""
    status = main(["remote", "test", "gpu", "--json", "--state-dir", str(folder)])
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err
    (found,) = json.loads(output.out)["endpoints"]
    return status, found


def test_a_remote_that_does(server: Any, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_KEY", SECRET)
    add_remote(
        tmp_path, Remote("gpu", (EndpointConfig(url(server), "lab"),), Key("env", "GPU_KEY"), {"builtin": "small"})
    )
    assert main(["remote", "test", "gpu", "--state-dir", str(tmp_path)]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert re.sub(r"[\d.]+ ms", "N ms", first) == f"{url(server)} (lab): name N ms, connect N ms, models N ms"
    assert (second, third.split(":")[0]) == ("  it serves big, small", "  one token from small")
    assert [path for path, _, _ in server.asked] == ["/v1/models", "/v1/chat/completions"]
    assert {key for _, key, _ in server.asked} == {f"Bearer {SECRET}"}
    sent = json.loads(server.asked[1][2])
    assert sent == {"model": "small", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    (row,) = requests(tmp_path)
    assert (row.outcome, row.reason, row.model, row.host) == (
        "completed",
        "remote_test",
        "small",
        f"127.0.0.1:{server.server_port}",
    )
    assert (row.num_prompt_tokens, row.num_output_tokens, row.num_bytes) == (9, 1, len(server.asked[1][2]))


def test_in_json(server: Any, tmp_path: Path, capsys: Output) -> None:
    add_remote(tmp_path, Remote("gpu", (EndpointConfig(url(server)),)))
    status, found = checked(tmp_path, capsys)
    assert (status, found["problem"], found["model"], found["models"]) == (0, "", "big", ["big", "small"])
    assert found["tls_s"] is None and found["token_s"] > 0


@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        (
            "/v1/models",
            (401, {"error": {"message": "bad key"}}),
            "(HTTP 401); no key is sent; it says: bad key",
        ),
        ("/v1/models", (404, b""), "is the base URL right?"),
        ("/v1/models", (302, b""), "it redirects (HTTP 302), which is never followed"),
        ("/v1/models", (500, {"error": "bro\x1bken"}), "it answers with HTTP 500; it says: bro ken"),
        ("/v1/models", (200, b"<html>"), "its /models is not OpenAI's list"),
        ("/v1/models", (200, {"data": [1]}), "its /models is not OpenAI's list"),
        ("/v1/models", (200, {"data": []}), "it serves no model"),
        ("/v1/chat/completions", (503, {"error": {"message": "full"}}), "HTTP 503; it says: full"),
        ("/v1/chat/completions", (200, {"hello": 1}), "its answer is not OpenAI's"),
        ("/v1/chat/completions", (200, b"[]"), "its answer is not OpenAI's"),
    ],
)
def test_what_is_wrong_is_told(
    path: str, answer: tuple[int, Any], problem: str, server: Any, tmp_path: Path, capsys: Output
) -> None:
    server.answers[path] = answer
    add_remote(tmp_path, Remote("gpu", (EndpointConfig(url(server)),)))
    status, found = checked(tmp_path, capsys)
    assert status == 1 and problem in found["problem"]
    outcomes = [row.outcome for row in requests(tmp_path)]
    assert outcomes == ([] if path == "/v1/models" else [{503: "server_error"}.get(answer[0], "garbled")])


def test_a_model_that_it_does_not_have(server: Any, tmp_path: Path, capsys: Output) -> None:
    add_remote(tmp_path, Remote("gpu", (EndpointConfig(url(server)),), models={"builtin": "huge", "tiny": "small"}))
    status, found = checked(tmp_path, capsys)
    assert (status, found["problem"]) == (1, "it does not serve huge; it has big, small")
    assert found["model"] == "small", "the other alias was tried all the same"


def test_nobody_is_there(server: Any, tmp_path: Path, capsys: Output) -> None:
    add_remote(tmp_path, Remote("gpu", (EndpointConfig("http://127.0.0.1:1/v1"), EndpointConfig(url(server)))))
    assert main(["remote", "test", "gpu", "--state-dir", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "http://127.0.0.1:1/v1: not reached"
    assert lines[1].startswith("  problem: no connection: ")
    assert lines[-1].startswith("  one token from big"), "the other endpoint was tried all the same"


def test_a_server_without_an_answer(server: Any, tmp_path: Path, capsys: Output) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"http://127.0.0.1:{silent.getsockname()[1]}"
        add_remote(tmp_path, Remote("gpu", (EndpointConfig(place),), limits=Limits(first_token_s=0.05)))
        assert "no answer within 0.05 s" in checked(tmp_path, capsys)[1]["problem"]


def test_local_only_lets_no_test_leave(
    server: Any, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_remote(tmp_path, Remote("gpu", (EndpointConfig(url(server)),)))
    monkeypatch.setenv("EDGEAGENT_ROUTE", "local_only")
    assert main(["remote", "test", "gpu", "--state-dir", str(tmp_path)]) == 2
    assert "nothing leaves this machine, not even a test" in capsys.readouterr().err
    assert server.asked == []


def test_a_running_daemon_makes_the_test(
    server: Any, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key, its mode and its ledger count, not those of this process."""
    add_remote(tmp_path, Remote("gpu", (EndpointConfig(url(server)),), Key("env", "GPU_KEY")))
    monkeypatch.setenv("GPU_KEY", SECRET)
    asked = []

    def ask(address: object, path: str, method: str, *, timeout_s: float) -> dict[str, Any]:
        asked.append((method, path))
        raise ConfigError("GPU_KEY, which is not set")

    monkeypatch.setattr(remote, "find_daemon", lambda _: Runtime(1, 1.0, 1, "http://127.0.0.1:1", "0"))
    monkeypatch.setattr(remote, "ask", ask)
    assert main(["remote", "test", "gpu", "--state-dir", str(tmp_path)]) == 2
    assert "not set" in capsys.readouterr().err
    assert asked == [("POST", "/edgeagent/egress/test?remote=gpu")]
    assert server.asked == [] and requests(tmp_path) == []


def test_a_missing_key_or_remote_is_told_before_anything_is_sent(
    server: Any, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPU_KEY", raising=False)
    add_remote(tmp_path, Remote("gpu", (EndpointConfig(url(server)),), Key("env", "GPU_KEY")))
    assert main(["remote", "test", "gpu", "--state-dir", str(tmp_path)]) == 2
    assert "GPU_KEY, which is not set" in capsys.readouterr().err
    assert main(["remote", "test", "other", "--state-dir", str(tmp_path)]) == 2
    assert "no remote is named 'other'; there is gpu" in capsys.readouterr().err
    assert server.asked == []
