"""Schemas that clients send, with the bundled model, which has learned no JSON except that of short calls."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import websockets
from websockets.sync.client import connect

from tests.clients.json_cut import fault_of
from tests.clients.schemas import Sent, all_sent
from tests.integration.conftest import Daemon
from tests.patience import patient

MAX_TOKENS = 512
NUM_RUNS, NUM_GOOD = 100, 98
ALL = all_sent()
# At temperature 0 every client and every type is tried, at temperature 1 every type.
COLD, WARM = (
    [pytest.param(sent, id=sent.id, marks=[] if sent in quick else pytest.mark.slow(seconds=1)) for sent in ALL]
    for quick in ([*ALL[::4], *(sent for sent in ALL if sent.client == "pydantic")], ALL[2::4])
)
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
    reply = httpx.post(daemon.url + path, json=body, timeout=patient(120))
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def fault(daemon: Daemon, sent: Sent, temperature: float, seed: int) -> str | None:
    text, is_cut = answer(daemon, sent, temperature, seed)
    found = fault_of(sent.schema, text, is_cut=is_cut)
    return None if found is None else f"seed {seed}: {found}: …{text[-200:]!r}"


@pytest.mark.parametrize("sent", COLD)
def test_at_temperature_0(daemon: Daemon, sent: Sent) -> None:
    assert fault(daemon, sent, 0, 0) is None


@pytest.mark.parametrize("sent", WARM)
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
    reply = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(60)).json()
    (choice,) = reply["choices"]
    assert (choice["finish_reason"] == "tool_calls") == is_call
    if is_call:
        followed, written = minutes, choice["message"]["tool_calls"][0]["function"]["arguments"]
    else:
        followed, written = answer, choice["message"]["content"]
    assert fault_of(followed, written, is_cut=False) is None


# What zod 4 writes for `z.string().email()`, in an optional tool of an agent.
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
MAIL = {
    "name": "send_email",
    "parameters": {"type": "object", "properties": {"to": {"type": "string", "format": "email", "pattern": EMAIL}}},
}
TIMER = {
    "name": "set_timer",
    "description": "Set a timer.",
    "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": None},
}
TOLD = "tool 'send_email': `pattern` at #/properties/to cannot be followed"
ASKED = [{"role": "user", "content": "Set a timer for 5 minutes."}]


def _tools(*, strict: bool | None) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {**each, "strict": strict}} for each in (TIMER, MAIL)]


def _flat_tools(*, strict: bool | None) -> list[dict[str, Any]]:
    return [{"type": "function", "strict": strict, **each} for each in (TIMER, MAIL)]


# A request with a tool that cannot be followed, for each wire that takes tools.
WIRES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASKED, "tools": _tools(strict=None), "max_tokens": 60},
    "/v1/responses": {"input": ASKED, "tools": _flat_tools(strict=None), "max_output_tokens": 60},
    "/api/chat": {"model": "builtin", "stream": False, "messages": ASKED, "tools": _tools(strict=None)},
}


@pytest.mark.parametrize("path", WIRES)
def test_a_tool_that_cannot_be_followed_costs_no_answer(daemon: Daemon, path: str) -> None:
    reply = httpx.post(daemon.url + path, json=WIRES[path], timeout=patient(60))
    assert reply.status_code == 200, reply.text
    assert "set_timer" in reply.text
    assert TOLD in reply.headers["x-edgeagent-warning"]


@pytest.mark.parametrize("path", list(WIRES)[:2])
def test_a_strict_tool_that_cannot_be_followed_is_refused_by_name(daemon: Daemon, path: str) -> None:
    tools = _flat_tools(strict=True) if path == "/v1/responses" else _tools(strict=True)
    reply = httpx.post(daemon.url + path, json=WIRES[path] | {"tools": tools}, timeout=patient(60))
    assert reply.status_code == 400
    assert TOLD in reply.json()["error"]["message"]


async def test_the_websocket_names_what_it_leaves_out(daemon: Daemon) -> None:
    async with websockets.connect(daemon.url.replace("http", "ws") + "/v1/responses") as socket:
        await socket.send(json.dumps({"type": "response.create", **WIRES["/v1/responses"]}))
        async for frame in socket:
            event = json.loads(frame)
            if event["type"] == "response.completed":
                break
    assert TOLD in event["response"]["edgeagent"]["warnings"][0]
    assert event["response"]["output"][0]["name"] == "set_timer"


FORMATS: dict[str, dict[str, Any]] = {
    "chat": {
        "response_format": {"type": "json_schema", "json_schema": {"schema": MAIL["parameters"], "strict": False}}
    },
    "llama-server": {"json_schema": MAIL["parameters"]},
    "llama-server, older": {"response_format": {"type": "json_object", "schema": MAIL["parameters"]}},
}


@pytest.mark.parametrize("wire", FORMATS)
def test_a_format_that_is_not_strict_costs_no_answer(daemon: Daemon, wire: str) -> None:
    body = {"messages": ASKED, "max_tokens": 4, **FORMATS[wire]}
    reply = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(60))
    assert reply.status_code == 200, reply.text
    assert "`pattern` at #/properties/to cannot be followed" in reply.headers["x-edgeagent-warning"]


def test_ollamas_format_costs_no_answer(daemon: Daemon) -> None:
    body = {"messages": ASKED, "stream": False, "format": MAIL["parameters"], "options": {"num_predict": 4}}
    reply = httpx.post(f"{daemon.url}/api/chat", json={"model": "builtin", **body}, timeout=patient(60))
    assert reply.status_code == 200, reply.text
    assert "`pattern` at #/properties/to cannot be followed" in reply.headers["x-edgeagent-warning"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sent", ALL, ids=lambda sent: sent.id)
def test_at_temperature_1_many_times(daemon: Daemon, sent: Sent) -> None:
    with ThreadPoolExecutor(4) as pool:
        faults = list(pool.map(lambda seed: fault(daemon, sent, 1, seed), range(NUM_RUNS)))
    found = [each for each in faults if each is not None]
    assert NUM_RUNS - len(found) >= NUM_GOOD, "\n".join(found)


WIDE = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "format": "uint64", "minimum": 0, "maximum": 2**64 - 1},
        "at": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        "by": {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2**64 - 1},
    },
    "required": ["id"],
}


@pytest.mark.parametrize("strict", [False, True])
def test_a_tool_has_the_limits_of_its_servers_language(daemon: Daemon, strict: bool) -> None:
    """As a server in Rust, Go or TypeScript writes them for integers of 64 bits."""
    own = {"name": "find", "description": "", "strict": strict}
    message, limit = {"messages": MESSAGES}, {"max_tokens": 4}
    function = {"type": "function", "function": {**own, "parameters": WIDE}}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {**message, **limit, "tools": [function]},
        "/api/chat": {**message, "stream": False, "options": {"num_predict": 4}, "tools": [function]},
        "/v1/responses": {
            "input": "hi",
            "max_output_tokens": 4,
            "tools": [{"type": "function", **own, "parameters": WIDE}],
        },
        "/v1/messages": {
            **message,
            **limit,
            "tools": [{"name": "find", "input_schema": WIDE, **({"strict": True} if strict else {})}],
        },
    }
    for path, body in bodies.items():
        reply = httpx.post(daemon.url + path, json={"model": "builtin", **body}, timeout=patient(120))
        assert reply.status_code == 200, (path, reply.text)
        assert "x-edgeagent-warning" not in reply.headers, path
    with connect(daemon.url.replace("http", "ws") + "/v1/responses") as socket:
        socket.send(json.dumps({"type": "response.create", **bodies["/v1/responses"]}))
        while (event := json.loads(socket.recv()))["type"] not in ("response.completed", "response.incomplete"):
            assert event["type"] not in ("response.failed", "error"), event
