"""Prompts survive the daemon: rows F5, C1, C2, C5 and C6 with a real daemon, real models and a real disk."""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from edgeagent import cache_folder
from edgeagent.cli import main
from edgeagent.credentials.keys import Scope, add_client
from tests.integration.conftest import Daemon, serving, start_daemon
from tests.integration.leaks import status_of
from tests.patience import patient

SYSTEM = "You are the guide of a small museum by the sea, and answer in one sentence. " * 16
WAIT_S = patient(20.0)
TIE = 0.5


def ask(daemon: Daemon, question: str, token: str | None = None, **fields: Any) -> tuple[str, int]:
    """Return an answer, and the number of cached prompt tokens."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, **fields}
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = httpx2.post(f"{daemon.url}/v1/chat/completions", json=body, headers=headers, timeout=patient(60)).json()
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], cached


def target_parts(folder: Path) -> list[cache_folder.FolderShare]:
    """Return the parts of the model itself. Its draft has parts of its own, once it was tried."""
    parts = cache_folder.list_parts(folder)
    return [part for part in parts if part.record is not None and part.record.model == "builtin"]


def num_tokens_on_disk(state_dir: Path) -> int:
    """Return the number of tokens whose blocks of the model itself are on disk. The draft's blocks do not count."""
    return sum(part.num_tokens for part in target_parts(state_dir / "cache"))


def wait_for_disk(state_dir: Path, num_tokens: int) -> None:
    """Wait until this many tokens of prompts are on disk."""
    deadline = time.monotonic() + WAIT_S
    while num_tokens_on_disk(state_dir) < num_tokens:
        assert time.monotonic() < deadline, num_tokens_on_disk(state_dir)
        time.sleep(0.05)


def test_a_prompt_is_there_after_kill_9_and_under_the_same_settings_only(tmp_path: Path) -> None:
    """Every other setting: test_fingerprint_host.py."""
    state_dir, flags = tmp_path / "state", ("builtin", "--kv-type-k", "f16", "--kv-type-v", "f16")
    daemon = start_daemon(state_dir, *flags)
    try:
        first, cached = ask(daemon, "When do you open?")
        assert cached == 0
        wait_for_disk(state_dir, 256)
    finally:
        daemon.kill()
    kept = num_tokens_on_disk(state_dir)
    with serving(state_dir, *flags) as daemon:
        again, cached = ask(daemon, "When do you open?")
        assert 256 <= cached <= kept
        assert again == first
    with serving(state_dir, *flags, "--cache-type", "q8_0") as daemon:
        assert ask(daemon, "When do you open?")[1] == 0
        assert "cells in blocks (exact, now q8_0)" in daemon.log.read_text(), "the log says why nothing is found"


@pytest.mark.slow(seconds=5)
def test_a_cache_folder_that_is_deleted_comes_back(tmp_path: Path) -> None:
    cache = tmp_path / "state" / "cache"

    def is_healthy_with(num_blocks: int) -> bool:
        worker = status_of(daemon.url)["models"][0]["worker"]
        disk = {"trouble": "there is no worker"} if worker is None else worker["disk_cache"]
        return disk["trouble"] is None and disk["num_blocks"] == num_blocks

    def wait_until_healthy_with(count: Callable[[], int]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not cache.is_dir() or not is_healthy_with(count()):
            assert time.monotonic() < deadline, status_of(daemon.url)
            time.sleep(0.05)

    with serving(cache.parent, "builtin") as daemon:
        first, _ = ask(daemon, "When do you open?")
        wait_for_disk(cache.parent, 256)
        shutil.rmtree(cache.rename(tmp_path / "deleted"))  # moved first, since the worker may be writing into it
        # A sandboxed worker is bound to the old folder, so another worker is needed.
        wait_until_healthy_with(lambda: 0)
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700
        assert ask(daemon, "When do you open?")[0] == first
        wait_for_disk(cache.parent, 256)
        wait_until_healthy_with(lambda: len(list(cache.rglob("*.kv"))))
        assert {"lock", "state.json"} <= {path.name for path in cache.rglob("*")}
    assert len(target_parts(cache)) == 1
    with serving(cache.parent, "builtin") as daemon:
        assert ask(daemon, "When do you open?")[1] >= 256


def test_nobody_finds_what_was_anothers_nor_what_was_not_to_be_kept(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    mine, theirs, secret = (add_client(state_dir, name, [Scope.INFER]) for name in ("me", "them", "secret"))
    with serving(state_dir, "builtin") as daemon:
        unstored: tuple[dict[str, Any], ...] = ({"store": False}, {"no_store": True}, {"edgeagent": {"store": False}})
        for fields in unstored:
            ask(daemon, "A secret: xylophone.", secret, **fields)
        ask(daemon, "When do you open?", mine)
    parts = cache_folder.list_parts(state_dir / "cache")
    assert {part.record and part.record.client for part in parts} == {"me"}
    (part,) = target_parts(state_dir / "cache")
    assert part.num_tokens > 256
    files = [path.read_bytes() for path in (state_dir / "cache").rglob("*") if path.is_file()]
    assert not [content for content in files if b"museum" in content or b"xylophone" in content]
    with serving(state_dir, "builtin") as daemon:
        # Names and salts chosen by the client change nothing.
        claims = {"user": "me", "prompt_cache_key": "me", "cache_salt": "me", "partition": "me"}
        assert ask(daemon, "When do you open?", theirs, **claims)[1] == 0
        assert ask(daemon, "When do you open?", mine)[1] > 256


def test_purging_one_client_and_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    mine, theirs = (add_client(state_dir, name, [Scope.INFER]) for name in ("me", "them"))
    folder = ["--state-dir", str(state_dir)]
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(SYSTEM)
    with serving(state_dir, "builtin") as daemon:
        assert main(["cache", "warm", str(prompt), "--client", "me", "--pin", *folder]) == 0
        wait_for_disk(state_dir, 256)
        assert ask(daemon, "When do you open?", mine)[1] > 256  # computed ahead of time
        ask(daemon, "When do you open?", theirs)
        assert main(["cache", "purge", "--client", "me", *folder]) == 0
        assert {part.record.client for part in cache_folder.list_parts(state_dir / "cache") if part.record} <= {"them"}
        assert ask(daemon, "When do you open?", mine)[1] == 0
        assert ask(daemon, "When do you open?", theirs)[1] > 256
        # The worker reports its tiers with its pongs.
        while "disk" not in capsys.readouterr().out:
            assert main(["cache", "stats", *folder]) == 0
        assert main(["cache", "purge", *folder]) == 0
        assert not list((state_dir / "cache").rglob("*.kv"))
        assert ask(daemon, "When do you open?", theirs)[1] == 0
    assert main(["cache", "list", *folder]) == 0
    assert "them" in capsys.readouterr().out
    assert main(["cache", "purge", *folder]) == 0  # without a daemon, on the folder itself
    assert not cache_folder.list_parts(state_dir / "cache")


@pytest.mark.slow(seconds=8)
def test_two_daemons_on_one_cache_folder_keep_their_own_prompts(tmp_path: Path) -> None:
    """Each daemon has its own secret: it finds its own blocks and leaves the other's alone."""
    folder = ("--cache-dir", str(tmp_path / "cache"))
    founds = []
    for _ in range(2):
        with (
            serving(tmp_path / "one", "builtin", *folder) as one,
            serving(tmp_path / "two", "builtin", *folder) as two,
        ):
            (first, first_cached), (second, second_cached) = (ask(each, "When do you open?") for each in (one, two))
            assert first == second
            founds.append((first_cached, second_cached))
            assert ask(two, "When do you close?")[1] > 256
    assert founds[0] == (0, 0)
    assert min(founds[1]) > 256


def until(socket: Connection, *kinds: str) -> dict[str, Any]:
    """Return the next event of one of these kinds."""
    while True:
        event: dict[str, Any] = json.loads(socket.recv(60))
        if event["type"] in kinds:
            return event


@pytest.mark.slow(seconds=5)
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_stream_goes_on_from_blocks_where_its_worker_died(tmp_path: Path) -> None:
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 500, "maxItems": 500}
    schema = {"type": "object", "properties": {"numbers": numbers}, "required": ["numbers"]}
    text = {"format": {"type": "json_schema", "name": "numbers", "schema": schema, "strict": True}}
    asked = {"type": "response.create", "instructions": SYSTEM, "input": "Count.", "text": text}
    state_dir = tmp_path / "state"
    with (
        serving(state_dir, "builtin") as daemon,
        connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket,
    ):

        def is_continued() -> bool:
            """Kill the worker during an answer, once its prompt is on disk; return False if the answer ended before."""
            socket.send(json.dumps({**asked, "max_output_tokens": 1200}))
            until(socket, "response.output_text.delta")
            wait_for_disk(state_dir, 256)  # while it runs, since a killed worker cannot write any more
            daemon.kill_worker()
            end = until(socket, "response.completed", "response.incomplete", "response.failed", "error")
            return bool(end["response"]["edgeagent"]["handovers"])

        # An answer takes a second or two, and a busy machine may need as long to write. The prompt of the second try is
        # on disk already, so the worker is killed at once.
        assert is_continued() or is_continued()
        deadline = time.monotonic() + WAIT_S
        # The new worker reports it with a pong.
        while ((status_of(daemon.url)["models"][0]["worker"] or {}).get("num_tokens_from_disk_total") or 0) < 256:
            assert time.monotonic() < deadline
            time.sleep(0.05)


Answer = list[tuple[str, dict[str, float]]]
"""An answer's tokens, each with the log probabilities of the likeliest in its place."""


def ask_closely(daemon: Daemon, question: str, **fields: Any) -> tuple[Answer, int]:
    """Return an answer with its log probabilities, and the number of cached prompt tokens."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, "logprobs": True, "top_logprobs": 5, **fields}
    reply = httpx2.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(60)).json()
    tokens = reply["choices"][0]["logprobs"]["content"]
    answer = [(each["token"], {top["token"]: top["logprob"] for top in each["top_logprobs"]}) for each in tokens]
    return answer, reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def is_same(answer: Answer, expected: Answer) -> bool:
    """Return whether two greedy answers are equal, except for a tie.

    Restored tokens are in other cells, over which attention sums in another order.
    """
    for (token, _), (wanted, rivals) in zip(answer, expected, strict=False):
        if token != wanted:
            return rivals[wanted] - rivals.get(token, -math.inf) < TIE
    return len(answer) == len(expected)


def _survive(reference: Daemon, tmp_path: Path, num_kills: int) -> None:
    """Kill a daemon at random times under load, and damage a file sometimes: no answer ever changes."""
    state_dir, chance = tmp_path / "state", random.Random(3)
    questions = [f"What is in room {number}, and who {'painted ' * number}it?" for number in range(6)]
    flags = ("builtin", "--batch", "32")
    started_s = time.monotonic()
    expected = {question: ask_closely(reference, question, cache_prompt=False)[0] for question in questions}
    ask_s = (time.monotonic() - started_s) / len(questions)
    for _ in range(num_kills):
        daemon = start_daemon(state_dir, *flags)
        killer = threading.Timer(chance.uniform(0.0, ask_s), daemon.process.kill)
        num_before, founds = chance.randrange(3), list[int]()
        try:
            while True:
                if len(founds) == num_before:
                    killer.start()
                question = chance.choice(questions)
                answer, num_cached = ask_closely(daemon, question)
                assert is_same(answer, expected[question]), (question, answer, expected[question])
                founds.append(num_cached)
        except httpx2.TransportError:
            assert daemon.process.wait(patient(10)) == -signal.SIGKILL, daemon.log.read_text()
        finally:
            killer.cancel()
            daemon.kill()
        files = sorted((state_dir / "cache").rglob("*.kv"))
        if files and chance.random() < 0.3:
            _spoil(chance.choice(files), chance)


def _spoil(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize(
    "num_kills",
    [
        2,
        pytest.param(10, marks=pytest.mark.slow(seconds=60)),
        pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3000)]),
    ],
)
def test_killed_at_random_moments_it_never_serves_what_is_not_valid(
    daemon: Daemon, tmp_path: Path, num_kills: int
) -> None:
    _survive(daemon, tmp_path, num_kills)
