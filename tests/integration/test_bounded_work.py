"""Each kind of work that a client can make in a worker has a bound, and other streams go on beyond it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from edgeagent.api.wire.fields import MAX_STOP_BYTES, MAX_STOPS
from edgeagent.text.grammar.compiler import MAX_GRAMMAR_CHARS
from edgeagent.text.schema.closing import MAX_JOINED_WORK
from edgeagent.text.schema.reading import MAX_JOINED
from edgeagent.types import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_TOOLS
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient
from tests.slow_worker import slow_program
from tests.text.schema.test_closing import joined

PATIENCE_S = patient(20.0)
STEP_S = 0.02
ASKED = [{"role": "user", "content": "Hello!"}]


class Canary(threading.Thread):
    """Streams one answer after the other, and counts the pieces that arrive."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._arrived = threading.Condition()
        self._num_pieces = 0
        self._is_over = False
        self.trouble: BaseException | None = None

    def run(self) -> None:
        body = {"model": "builtin", "messages": ASKED, "stream": True, "max_tokens": 100}
        try:
            while not self._is_over:
                with httpx.stream("POST", f"{self._url}/v1/chat/completions", json=body, timeout=PATIENCE_S) as reply:
                    for line in reply.iter_lines():
                        assert '"error"' not in line, line
                        if '"content"' in line:
                            with self._arrived:
                                self._num_pieces += 1
                                self._arrived.notify_all()
        except BaseException as error:
            self.trouble = error

    def wait_for_more(self) -> None:
        """Wait for two more pieces, so that one was sent after this call."""
        with self._arrived:
            wanted = self._num_pieces + 2
            assert self._arrived.wait_for(lambda: self._num_pieces >= wanted, PATIENCE_S), self.trouble
        assert self.trouble is None

    def stop(self) -> None:
        self._is_over = True
        self.join(PATIENCE_S)


@dataclass(frozen=True)
class Member:
    """A kind of client-made work, one step beyond its bound, and the words of its refusal."""

    name: str
    fields: dict[str, Any]
    words: str
    path: str = "/v1/chat/completions"


def _format(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}}


def _tools(parameters: list[Any]) -> dict[str, Any]:
    functions = [{"name": f"t{index}", "parameters": each, "strict": True} for index, each in enumerate(parameters)]
    return {"tools": [{"type": "function", "function": each} for each in functions]}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def _patterns(num: int) -> list[dict[str, str]]:
    return [{"pattern": f".*{index}x.*"} for index in range(num)]


HIDDEN: dict[str, Any] = {"allOf": [{"properties": {"a": {"type": "string", **each}}} for each in _patterns(24)]}
PAIRS = {"type": "object", "patternProperties": {f"^a{index}[a-z]*$": {} for index in range(2_500)}}
FORKS: dict[str, Any] = {"allOf": [{"anyOf": [{"properties": {f"{x}{n}": {}}} for x in "ab"]} for n in range(14)]}
CHAIN = {f"d{index}": {"$ref": f"#/$defs/d{index + 1}", "required": ["a"]} for index in range(500)} | {"d500": {}}
BIG = {
    "type": "object",
    "properties": {"a": {"enum": [f"{n:030}" for n in range(MAX_GRAMMAR_CHARS // MAX_TOOLS // 32)]}},
}

# test_renderer.py has this case too, so here it rotates.
PAIRS_OF_PATTERNS = "CPU time of a grammar, by pairs"

MEMBERS = (
    Member("patterns joined for one text", _format({"allOf": _patterns(MAX_JOINED + 1)}), "joins more than 4 patterns"),
    Member("CPU time of a grammar", _format({"type": "object", **HIDDEN}), "s of CPU time"),
    Member(PAIRS_OF_PATTERNS, _format(PAIRS), "s of CPU time"),
    Member("CPU time of a tool", _tools([{"type": "object", **HIDDEN}]), "parameters of tool 't0': "),
    Member("alternatives of alternatives", _format({"type": "object", **FORKS}), "cannot be followed"),
    Member("bytes of a schema", _format({"const": "x" * MAX_SCHEMA_BYTES}), f"larger than {MAX_SCHEMA_BYTES}"),
    Member("depth of a schema", _format(_nested(MAX_SCHEMA_DEPTH + 1)), f"deeper than {MAX_SCHEMA_DEPTH}"),
    Member("references in a row", _format({"$defs": CHAIN, "properties": {"x": CHAIN["d0"]}}), "lead"),
    Member("joined schemas", _format(joined(700)), f"more than {MAX_JOINED_WORK} schemas"),
    Member("tools", _tools([{}] * (MAX_TOOLS + 1)), f"at most {MAX_TOOLS}"),
    # Tools are written into the prompt, so the context ends before their grammar does.
    Member("characters of all tools", _tools([BIG] * MAX_TOOLS), "context"),
    Member("stop strings", {"stop": ["x"] * (MAX_STOPS + 1)}, "stop"),
    Member("bytes of a stop string", {"stop": "x" * (MAX_STOP_BYTES + 1)}, "stop"),
    Member("text to render", {"messages": [{"role": "user", "content": "word " * 1_000_000}]}, "context"),
    Member("messages to render", {"messages": ASKED * 4_097}, "at most 4096"),
    Member("messages that fit", {"messages": ASKED * 4_096}, "context"),
    Member("text to tokenize", {"messages": None, "prompt": "word " * 1_000_000}, "context", "/v1/completions"),
    Member("template variables", {"chat_template_kwargs": {"other": "x" * 100_000}}, "chat_template_kwargs"),
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    state_dir = tmp_path_factory.mktemp("bounded") / "state"
    running = start_daemon(state_dir, "builtin", program=slow_program(STEP_S))
    yield running
    stop_daemon(running)


@pytest.fixture(scope="module")
def canary(daemon: Daemon) -> Iterator[Canary]:
    canary = Canary(daemon.url)
    canary.start()
    canary.wait_for_more()
    yield canary
    canary.stop()
    assert canary.trouble is None


@pytest.mark.parametrize(
    "member",
    [
        pytest.param(
            member,
            id=member.name.replace(" ", "_"),
            marks=[pytest.mark.slow(seconds=5)] if member.name == PAIRS_OF_PATTERNS else [],
        )
        for member in MEMBERS
    ],
)
def test_what_is_beyond_a_bound_is_refused_beside_a_stream(daemon: Daemon, canary: Canary, member: Member) -> None:
    worker = daemon.worker_pid()
    fields = {"model": "builtin", "messages": ASKED, "max_tokens": 4, **member.fields}
    body = {name: value for name, value in fields.items() if value is not None}
    reply = httpx.post(daemon.url + member.path, content=json.dumps(body), timeout=PATIENCE_S)
    assert reply.status_code in (400, 413), reply.text[:500]
    assert member.words in reply.json()["error"]["message"]
    canary.wait_for_more()
    assert daemon.worker_pid() == worker
    plain = {"model": "builtin", "messages": ASKED, "max_tokens": 4}
    assert httpx.post(f"{daemon.url}/v1/chat/completions", json=plain, timeout=PATIENCE_S).status_code == 200


def test_a_tool_beyond_a_bound_costs_no_answer_where_it_is_not_strict(daemon: Daemon, canary: Canary) -> None:
    """An agent offers the tools of all its servers, and uses few of them."""
    schemas = {
        "slow": {"type": "object", **HIDDEN},
        "circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        "deep": _nested(MAX_SCHEMA_DEPTH + 1),
        "text": {"type": "string"},
        "null": {"type": None, "properties": {"a": {"type": "string"}}, "required": None},
    }
    functions = [{"name": name, "parameters": schema} for name, schema in schemas.items()]
    body = {"model": "builtin", "messages": ASKED, "max_tokens": 4}
    body["tools"] = [{"type": "function", "function": function} for function in functions]
    reply = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert reply.status_code == 200, reply.text[:500]
    warnings = reply.headers["x-edgeagent-warning"]
    assert [name for name in schemas if f"tool '{name}'" in warnings] == ["slow", "circle", "deep", "text"]
    canary.wait_for_more()
