"""Eight equal questions for a remote's model: one generation at the remote, a real daemon, while some clients leave."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.conftest import Daemon, serving, wait_until
from tests.patience import patient

MODEL = "elsewhere"
QUESTION = "Tell me a story about a bridge over a river."


@pytest.fixture(scope="module")
def home(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that keeps answers, and whose remote is the shared daemon."""
    with serving(tmp_path_factory.mktemp("home") / "state", "builtin", "--answers-exact") as running:
        limit = f"first_token_s={patient(15):g}"
        running.run("remote", "add", "desk", daemon.url, "--model", f"{MODEL}=builtin", "--limit", limit, "--yes")
        deadline_s = time.monotonic() + patient(10)
        while MODEL not in httpx.get(f"{running.url}/v1/models").text:  # it follows the file of remotes
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        yield running


def ended(daemon: Daemon) -> dict[str, float]:
    """Return how many generations of a daemon ended, by how they ended."""
    metrics = httpx.get(f"{daemon.url}/metrics").text
    found: dict[str, float] = {}
    for end, number in re.findall(r'^edgeagent_generations_total\{end="(\w+)",.*\} (\S+)$', metrics, re.MULTILINE):
        found[end] = found.get(end, 0.0) + float(number)
    return found


async def ask(
    client: httpx.AsyncClient, daemon: Daemon, have_text: set[int], index: int, *, leaves: bool = False
) -> tuple[str, str, str]:
    """Stream the answer. Return its text, where it ran, and why no generation of its own was needed ("" if it was).

    One that leaves closes its connection once all eight have text: before that, it might be the only one.
    """
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 60,
        "stream": True,
    }
    text, place, kind = "", "", ""
    async with client.stream("POST", f"{daemon.url}/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            choice = chunk["choices"][0] if chunk.get("choices") else {}
            text += choice.get("delta", {}).get("content") or ""
            place = chunk.get("edgeagent", {}).get("served_by", place)
            kind = chunk.get("edgeagent", {}).get("cache", {}).get("answer", {}).get("kind", kind)
            if text:
                have_text.add(index)
            if leaves and len(have_text) == 8:
                return text, place, "left"
    return text, place, "left" if leaves else kind


async def test_eight_equal_questions_are_one_generation_at_the_remote(daemon: Daemon, home: Daemon) -> None:
    daemon.wait_until_idle()
    before, have_text = ended(daemon), set[int]()
    async with httpx.AsyncClient(timeout=patient(60), trust_env=False) as client:
        # The first one leaves too.
        asks = [ask(client, home, have_text, index, leaves=index in (0, 5)) for index in range(8)]
        answers = await asyncio.gather(*asks)
        again = await ask(client, home, set(), 8)
        outcomes = (await client.get(f"{home.url}/edgeagent/answers")).json()["outcomes"]
    if "slow" in outcomes:
        pytest.skip("this machine is too busy: some questions did not wait for the store of answers")
    whole = {text for text, _, kind in answers if kind != "left"}
    assert len(whole) == 1 and {kind for _, _, kind in answers} <= {"left", "", "joined", "exact"}
    assert all(next(iter(whole)).startswith(text) for text, _, _ in answers)
    assert [place for _, place, _ in answers].count("remote:desk") >= 2
    assert again == (*whole, "answers", "exact")
    wait_until(lambda: sum(ended(daemon).values()) > sum(before.values()))
    after = ended(daemon)
    assert sum(after.values()) - sum(before.values()) == 1, (before, after)
    assert after.get("abandoned", 0) == before.get("abandoned", 0)
