"""Two whole daemons, the second as a remote of the first: which requests leave, which continue there, which stay."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from edgeagent.remotes.file import remove_remote
from edgeagent.runtime_file import write_private
from edgeagent.store.file_records import file_sha256
from tests.cluster.endless_model import LOCAL_NAME, write_endless_model
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kill -9")

HOME_CONTEXT = 1024
# Long enough to break something midway: an answer never ends by itself.
LONG, SHORT = 800, 8
# Cut at any point, this answer's text tokenizes to the tokens that were drawn, and no two tokens are almost equally
# likely. For other prompts, "." and a line end may be two drawn tokens where the text gives one, so another daemon may
# continue differently.
PROMPT = "no"
# Exceeds the first daemon's context, but not the second one's.
LONG_PROMPT = "word " * (HOME_CONTEXT + 100)
LOCAL_FIRST, LOCAL_ONLY = {"route": "prefer_local"}, {"route": "local_only"}


@dataclass(slots=True)
class Pair:
    """The daemon that receives requests, the daemon that is its remote, the remote's key, and the model of both."""

    home: Daemon
    away: Daemon
    key_file: Path
    model: Path


@dataclass(slots=True)
class Heard:
    """The result of a streamed answer."""

    headers: httpx.Headers
    events: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""

    @property
    def told_first(self) -> dict[str, Any]:
        """The placement that was reported before the first text."""
        told: dict[str, Any]
        before = itertools.takewhile(lambda event: not piece_of(event), self.events)
        (told,) = [event["edgeagent"] for event in before if "edgeagent" in event]
        return told

    @property
    def told_last(self) -> dict[str, Any]:
        """The placement in the terminal event."""
        events = [event.get("response", event) for event in self.events]
        return next(event["edgeagent"] for event in reversed(events) if event.get("edgeagent"))

    @property
    def ids(self) -> set[str]:
        """The ids of the answer."""
        return {event["id"] for event in self.events if "id" in event}

    @property
    def finish_reason(self) -> str:
        """The finish reason of a chat completion."""
        (reason,) = [c["finish_reason"] for e in self.events for c in e.get("choices", ()) if c["finish_reason"]]
        return str(reason)


def piece_of(event: dict[str, Any]) -> str:
    """Return the text of an event."""
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    return "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    model = folder / f"{LOCAL_NAME}.gguf"
    write_endless_model(model)
    # Each daemon would measure which form of attention is faster, and the two forms give different answers.
    plain = (str(model), "--flash-attention", "off")
    with ThreadPoolExecutor() as threads:
        home = threads.submit(
            start_daemon, folder / "home", *plain, "--ctx", str(HOME_CONTEXT), "--route", "prefer_remote"
        )
        away = threads.submit(start_daemon, folder / "away", *plain, "--ctx", "8192", "--token-required")
    token = away.result().run("token", "add", "home").split()[-1]
    write_private(folder / "key", token.encode())
    both = Pair(home.result(), away.result(), folder / "key", model)
    yield both
    stop_daemon(both.home)
    if both.away.process.poll() is None:
        stop_daemon(both.away)


@pytest.fixture
def allowed(pair: Pair) -> Iterator[Pair]:
    """Both daemons, while the first may use the second."""
    models = ("--model", f"{LOCAL_NAME}={LOCAL_NAME}", "--model", f"elsewhere={LOCAL_NAME}")
    with remote(pair, pair.away.url, *models):
        yield pair


@contextmanager
def remote(pair: Pair, url: str, *options: str, key: bool = True) -> Iterator[None]:
    """Add a remote to the first daemon, and remove it at the end."""
    keys = ("--key-file", str(pair.key_file)) if key else ()
    pair.home.run("remote", "add", "desk", url, *keys, *options, "--limit", f"first_token_s={patient(15):g}", "--yes")
    try:
        yield
    finally:
        remove_remote(pair.home.state_dir, "desk")


@pytest.fixture(scope="module")
def undisturbed(pair: Pair) -> str:
    """Return what the first daemon answers alone."""
    heard = chat(pair.home, PROMPT, LONG, edgeagent=LOCAL_ONLY)
    assert heard.finish_reason == "length"
    return heard.text


def chat(daemon: Daemon, prompt: str, max_tokens: int, **rest: Any) -> Heard:
    """Stream a chat completion."""
    fields = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, **rest}
    return ask(daemon, "/v1/chat/completions", stream_options={"include_usage": True}, **fields)


def ask(daemon: Daemon, path: str, *, then: Callable[[], None] | None = None, **fields: Any) -> Heard:
    """Stream a greedy answer; `then` is called at its first text."""
    body = {"model": LOCAL_NAME, "stream": True, "temperature": 0, **fields}
    with httpx.stream("POST", f"{daemon.url}{path}", json=body, timeout=patient(60.0), trust_env=False) as reply:
        assert reply.status_code == 200, reply.read()
        heard = Heard(reply.headers)
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            heard.events.append(event)
            heard.text += piece_of(event)
            if heard.text and then is not None:
                then = then()
    return heard


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"model": "elsewhere"}, "model_unknown"),
        ({"messages": [{"role": "user", "content": LONG_PROMPT}]}, "context_too_long"),
    ],
    ids=["no such model", "too long"],
)
def test_what_the_first_cannot_do_goes_over(allowed: Pair, fields: dict[str, Any], reason: str) -> None:
    heard = chat(allowed.home, PROMPT, SHORT, edgeagent=LOCAL_FIRST, **fields)
    assert heard.text and heard.finish_reason == "length"
    place = {
        "served_by": "remote:desk",
        "reason": reason,
        "model": LOCAL_NAME,
        "host": f"127.0.0.1:{allowed.away.port}",
    }
    assert heard.told_first == place
    assert {name: heard.told_last[name] for name in place} == place
    # Headers wait at most 2 s for the first token; a long prompt on a busy machine takes longer.
    assert heard.headers.get("x-edgeagent-served-by", "remote:desk") == "remote:desk"
    assert heard.headers.get("x-edgeagent-reason", reason) == reason


def test_a_response_says_it_too(allowed: Pair) -> None:
    heard = ask(allowed.home, "/v1/responses", model="elsewhere", input=PROMPT, max_output_tokens=16)
    assert heard.text and heard.events[-1]["type"] == "response.incomplete"
    assert heard.headers["x-edgeagent-served-by"] == heard.told_first["served_by"] == "remote:desk"
    assert heard.headers["x-edgeagent-reason"] == heard.told_first["reason"]
    assert heard.told_last["route"] == "remote:desk"


def test_without_the_key_of_the_second_nothing_comes(pair: Pair) -> None:
    with remote(pair, pair.away.url, key=False), pytest.raises(AssertionError, match="refused the key"):
        chat(pair.home, PROMPT, SHORT, model="elsewhere")
    asked = httpx.post(f"{pair.away.url}/v1/chat/completions", json={}, trust_env=False)
    assert asked.status_code == 401


def killing(daemon: Daemon) -> Callable[[], None]:
    """Return a function that kills the worker at once, before it has computed a long answer to its end."""
    worker = psutil.Process(daemon.worker_pid())
    return lambda: worker.kill()


def test_an_answer_goes_on_when_its_worker_is_killed(allowed: Pair, undisturbed: str) -> None:
    heard = chat(allowed.home, PROMPT, LONG, edgeagent=LOCAL_FIRST, then=killing(allowed.home))
    assert heard.text == undisturbed and heard.finish_reason == "length"
    assert len(heard.ids) == 1
    assert heard.told_first["served_by"] == "local"
    assert heard.told_first["model_sha256"] == file_sha256(allowed.model)
    # It continues where that is sooner: at the remote, or here with a new worker.
    assert [move["from"] for move in heard.told_last["handovers"]] == ["local"]
    assert heard.told_last["reason"] in ("local_failed", "prefer_local")


def test_what_is_local_only_opens_no_connection(pair: Pair, undisturbed: str) -> None:
    """Connections to the remote would wait in this socket's queue."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with remote(pair, url, "--model", f"{LOCAL_NAME}=m", "--model", "elsewhere=m"):
            with pytest.raises(AssertionError, match="local_unavailable"):
                chat(pair.home, PROMPT, SHORT, edgeagent=LOCAL_ONLY, model="elsewhere")
            heard = chat(pair.home, PROMPT, LONG, edgeagent=LOCAL_ONLY, then=killing(pair.home))
            assert heard.text == undisturbed
            with pytest.raises(BlockingIOError):
                listening.accept()


@pytest.fixture(scope="module")
def poor(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path]]:
    """A daemon with its own copy of the model, which may use the second daemon."""
    folder = tmp_path_factory.mktemp("poor")
    model = folder / pair.model.name
    shutil.copy(pair.model, model)
    config = folder / "config.toml"
    config.write_text("[tiers.interactive]\nfirst_token_s = 1\n")
    flags = ("--ctx", str(HOME_CONTEXT), "--route", "prefer_local", "--config", str(config))
    daemon = start_daemon(folder / "state", str(model), "--flash-attention", "off", *flags)
    options = ("--key-file", str(pair.key_file), "--yes")
    daemon.run("remote", "add", "desk", pair.away.url, *options)
    yield daemon, model
    stop_daemon(daemon)


@pytest.mark.slow(seconds=5)
def test_a_process_that_is_stopped_is_not_waited_for(poor: tuple[Daemon, Path]) -> None:
    daemon, _ = poor
    worker = daemon.worker_pid()
    os.kill(worker, signal.SIGSTOP)
    try:
        heard = chat(daemon, "Another conversation.", SHORT)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert heard.finish_reason == "length" and heard.told_first["served_by"] == "remote:desk"
    assert heard.told_first["reason"] in ("local_late", "first_token"), "a busy machine predicts that it is slow"


@pytest.mark.slow(seconds=3)
def test_an_answer_goes_on_although_the_file_has_gone(poor: tuple[Daemon, Path], undisturbed: str) -> None:
    daemon, model = poor
    kill = killing(daemon)

    def lose() -> None:
        model.unlink()
        kill()

    heard = chat(daemon, PROMPT, LONG, edgeagent=LOCAL_FIRST, then=lose)
    assert heard.text == undisturbed and heard.finish_reason == "length"
    assert [(move["from"], move["to"]) for move in heard.told_last["handovers"]][-1] == ("local", "remote:desk")
    later = chat(daemon, PROMPT, SHORT)
    assert later.finish_reason == "length" and later.told_first["served_by"] == "remote:desk"


def test_an_answer_comes_home_when_the_second_daemon_is_killed(allowed: Pair, undisturbed: str) -> None:
    heard = chat(allowed.home, PROMPT, LONG, then=allowed.away.kill)
    assert heard.text == undisturbed and heard.finish_reason == "length"
    assert heard.told_first["served_by"] == "remote:desk" and heard.told_last["route"] == "local"
    assert [(move["from"], move["to"]) for move in heard.told_last["handovers"]] == [("remote:desk", "local")]
    assert len(heard.ids) == 1
