"""C1: on every wire, a client learns nothing of another client's cached prompts: not by counts, and not by less work.

The engine's own count stands for the time to the first token: it says how much of a prompt was not computed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect

from edgeagent.credentials.keys import Scope, add_client
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.integration.leaks import status_of
from tests.patience import patient

SENTENCE = "The {} has a small garden with seven old apple trees. "
NUM_SENTENCES = 16
# More than the beginnings that a client's own prompts on several wires share, and far less than a prompt.
MANY = 64


@dataclass(frozen=True)
class Wire:
    """A route that takes a prompt. `cached` reads the answer's count of cached tokens; None if it has none."""

    path: str
    body: Callable[[str], dict[str, Any]]
    cached: Callable[[dict[str, Any]], int] | None


def messages(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def of_usage(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def of_response(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["input_tokens_details"]["cached_tokens"])


WIRES = {
    "responses": Wire("/v1/responses", lambda text: {"input": text, "max_output_tokens": 1}, of_response),
    "socket": Wire("ws", lambda text: {"input": text, "max_output_tokens": 1}, of_response),
    "chat": Wire("/v1/chat/completions", lambda text: {**messages(text), "max_tokens": 1}, of_usage),
    "completions": Wire("/v1/completions", lambda text: {"prompt": text, "max_tokens": 1}, of_usage),
    "llama-server": Wire(
        "/completion", lambda text: {"prompt": text, "n_predict": 1}, lambda got: got["tokens_cached"]
    ),
    "ollama chat": Wire(
        "/api/chat", lambda text: {**messages(text), "stream": False, "options": {"num_predict": 1}}, None
    ),
    "ollama generate": Wire(
        "/api/generate", lambda text: {"prompt": text, "stream": False, "options": {"num_predict": 1}}, None
    ),
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    state_dir = tmp_path_factory.mktemp("isolated") / "state"
    state_dir.mkdir(mode=0o700)
    TOKENS.update({name: add_client(state_dir, name, [Scope.INFER]) for name in ("me", "them")})
    running = start_daemon(state_dir, "builtin")
    yield running
    stop_daemon(running)


TOKENS: dict[str, str] = {"owner": ""}


def ask(daemon: Daemon, wire: Wire, text: str, client: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {TOKENS[client]}"} if TOKENS[client] else {}
    body = {"model": "builtin", "temperature": 0, **wire.body(text)}
    if wire.path == "ws":
        url = f"ws://127.0.0.1:{daemon.port}/v1/responses"
        with connect(url, additional_headers=headers) as socket:
            socket.send(json.dumps({"type": "response.create", **body}))
            while True:
                event = json.loads(socket.recv(timeout=patient(60)))
                if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                    return dict(event["response"])
    reply = httpx2.post(f"{daemon.url}{wire.path}", json=body, headers=headers, timeout=patient(60))
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


class Counts:
    """How many prompt tokens a client has sent, and how many of them were found: on the wires, and by the engine."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._num_sent = self._totals()[0]

    def ask_on_all_wires(self, client: str) -> tuple[dict[str, int], int]:
        """Return the counts that the wires give, and that of the engine for all of them together."""
        before = self._totals()[1]
        on_wires = {}
        for name, wire in WIRES.items():
            answer = ask(self._daemon, wire, SENTENCE.format(name) * NUM_SENTENCES, client)
            self._num_sent += next(found for key in SENT if (found := find(answer, key)) is not None)
            if wire.cached is not None:
                on_wires[name] = wire.cached(answer)
        deadline_s = time.monotonic() + patient(20)
        while (totals := self._totals())[0] < self._num_sent:  # the worker tells it once a second
            assert time.monotonic() < deadline_s, (totals, self._num_sent)
            time.sleep(0.05)
        return on_wires, totals[1] - before

    def _totals(self) -> tuple[int, int]:
        worker = status_of(self._daemon.url)["models"][0]["worker"]
        if worker is None:  # it has not reported yet
            return 0, 0
        return int(worker["num_prompt_tokens_total"]), int(worker["num_cached_tokens_total"])


SENT = ("input_tokens", "prompt_tokens", "tokens_evaluated", "prompt_eval_count")


def find(answer: dict[str, Any], key: str) -> int | None:
    value = answer.get(key, answer.get("usage", {}).get(key))
    return None if value is None else int(value)


def test_what_a_client_has_asked_helps_no_other(daemon: Daemon) -> None:
    counts = Counts(daemon)
    for client in TOKENS:
        on_wires, in_engine = counts.ask_on_all_wires(client)
        assert max(on_wires.values()) < MANY and in_engine < MANY * len(WIRES), client
    for client in TOKENS:  # and each finds its own
        on_wires, in_engine = counts.ask_on_all_wires(client)
        assert min(on_wires.values()) > 2 * MANY and in_engine > 2 * MANY * len(WIRES), client


def test_prompts_in_flight_help_no_other(daemon: Daemon) -> None:
    wire, text = WIRES["chat"], SENTENCE.format("one in flight") * NUM_SENTENCES
    answers: dict[str, dict[str, Any]] = {}

    def run(client: str) -> None:
        answers[client] = ask(daemon, wire, text, client)

    threads = [threading.Thread(target=run, args=(client,)) for client in TOKENS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(of_usage(answer) for answer in answers.values()) < MANY
