"""Schemas that clients send, with the bundled model, which has learned no JSON except that of short calls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.clients.json_cut import fault_of
from tests.clients.schemas import Sent, all_sent
from tests.integration.conftest import Daemon

MAX_TOKENS = 512
NUM_RUNS, NUM_GOOD = 100, 98
ALL = all_sent()
MESSAGES = [{"role": "user", "content": "Give me an example."}]


def answer(daemon: Daemon, sent: Sent, temperature: float, seed: int) -> tuple[str, bool]:
    """Return the text of an answer, or a call's arguments, and whether it was cut off."""
    if "format" in sent.fragment:
        options = {"temperature": temperature, "seed": seed, "num_predict": MAX_TOKENS}
        reply = _post(daemon, "/api/chat", sent, {"stream": False, "options": options})
        return reply["message"]["content"], reply["done_reason"] == "length"
    limits = {"temperature": temperature, "seed": seed, "max_tokens": MAX_TOKENS}
    (choice,) = _post(daemon, "/v1/chat/completions", sent, limits)["choices"]
    if not sent.fragment.get("tools"):
        return choice["message"]["content"], choice["finish_reason"] == "length"
    call = choice["message"]["tool_calls"][0]["function"]
    assert call["name"] == sent.fragment["tools"][0]["function"]["name"]
    return call["arguments"], choice["finish_reason"] == "length"


def _post(daemon: Daemon, path: str, sent: Sent, fields: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "builtin", "messages": MESSAGES, **sent.fragment, **fields}
    reply = httpx.post(daemon.url + path, json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def fault(daemon: Daemon, sent: Sent, temperature: float, seed: int) -> str | None:
    text, is_cut = answer(daemon, sent, temperature, seed)
    found = fault_of(sent.schema, text, is_cut=is_cut)
    return None if found is None else f"seed {seed}: {found}: …{text[-200:]!r}"


@pytest.mark.parametrize("sent", ALL, ids=lambda sent: sent.id)
def test_at_temperature_0(daemon: Daemon, sent: Sent) -> None:
    assert fault(daemon, sent, 0, 0) is None


@pytest.mark.parametrize("sent", ALL[::4], ids=lambda sent: sent.id)
def test_at_temperature_1(daemon: Daemon, sent: Sent) -> None:
    assert fault(daemon, sent, 1, 0) is None


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize(
    ("text", "is_call"),
    [("Hello!", False), ("Thank you!", False), ("What is 2+2?", False), ("Set a timer for 5 minutes.", True)],
)
def test_a_format_beside_tools_leaves_the_choice_to_the_model(
    daemon: Daemon, text: str, is_call: bool, temperature: float
) -> None:
    minutes = {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}
    answer = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 40}}, "required": ["answer"]}
    tool = {"type": "function", "function": {"name": "set_timer", "description": "Set a timer.", "parameters": minutes}}
    body = {
        "model": "builtin",
        "messages": [{"role": "user", "content": text}],
        "tools": [tool],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": answer}},
        "temperature": temperature,
        "seed": 1,
        "max_tokens": 100,
    }
    reply = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=60).json()
    (choice,) = reply["choices"]
    assert (choice["finish_reason"] == "tool_calls") == is_call
    if is_call:
        followed, written = minutes, choice["message"]["tool_calls"][0]["function"]["arguments"]
    else:
        followed, written = answer, choice["message"]["content"]
    assert fault_of(followed, written, is_cut=False) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sent", ALL, ids=lambda sent: sent.id)
def test_at_temperature_1_many_times(daemon: Daemon, sent: Sent) -> None:
    with ThreadPoolExecutor(4) as pool:
        faults = list(pool.map(lambda seed: fault(daemon, sent, 1, seed), range(NUM_RUNS)))
    found = [each for each in faults if each is not None]
    assert NUM_RUNS - len(found) >= NUM_GOOD, "\n".join(found)
