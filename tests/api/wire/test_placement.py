"""Every wire reports where an answer comes from, before its first token and at its end; then also if it was late."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk

from edgeagent.router.router import Router
from edgeagent.types import GenerateRequest, Placement, Started, TextDelta
from tests.api.serving import validate_event
from tests.backends.fake import FakeBackend, finished
from tests.daemon.running import Running, running

FAR = Placement("remote:gpu", "far/model\r\nX-Evil: 1", "loading", "gpu.example:443", "eu", "ab12")
HEADERS = {
    "x-edgeagent-served-by": "remote:gpu",
    "x-edgeagent-model": "far/model%0D%0AX-Evil: 1",
    "x-edgeagent-reason": "loading",
    "x-edgeagent-host": "gpu.example:443",
    "x-edgeagent-model-sha256": "ab12",
}
PLACE = {
    "served_by": "remote:gpu",
    "model": FAR.model,
    "model_sha256": "ab12",
    "reason": "loading",
    "host": FAR.host,
    "region": "eu",
}
HI = [{"role": "user", "content": "hi"}]
WIRES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/completions": {"prompt": "hi"},
    "/completion": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/api/chat": {"model": "fake", "messages": HI},
    "/api/generate": {"model": "fake", "prompt": "hi"},
}


def script(_: GenerateRequest) -> tuple[Any, ...]:
    return Started(7, 0, placement=FAR), TextDelta("one"), TextDelta(" two"), finished()


async def post(daemon: Running, path: str, *, is_streamed: bool) -> tuple[dict[str, str], list[Any]]:
    reply = await daemon.http.post(f"{daemon.url}{path}", json=WIRES[path] | {"stream": is_streamed})
    assert reply.status_code == 200
    if not is_streamed:
        return dict(reply.headers), [reply.json()]
    lines = (line.removeprefix("data: ") for line in reply.text.splitlines() if not line.startswith("event:"))
    return dict(reply.headers), [json.loads(line) for line in lines if line and line != "[DONE]"]


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("path", WIRES)
async def test_headers_and_the_end_say_it(path: str, is_streamed: bool) -> None:
    async with running(Router([FakeBackend(script)])) as daemon:
        headers, documents = await post(daemon, path, is_streamed=is_streamed)
    assert {name: value for name, value in headers.items() if name.startswith("x-edgeagent")} == HEADERS
    last = documents[-1]["response"] if documents[-1].get("type") == "response.completed" else documents[-1]
    assert PLACE.items() <= last["edgeagent"].items()
    assert last["edgeagent"]["route"] == "fake"
    assert last["edgeagent"]["slo"] == {
        "tier": "interactive",
        "ttft_target_ms": 3000.0,
        "itl_target_ms": 200.0 if is_streamed else None,
        "met": True,
        "late_stage": None,
    }


@pytest.mark.parametrize("path", WIRES)
async def test_the_first_event_with_anything_of_the_answer_says_it(path: str) -> None:
    async with running(Router([FakeBackend(script)])) as daemon:
        _, documents = await post(daemon, path, is_streamed=True)
    told = [index for index, document in enumerate(documents) if document.get("edgeagent") == PLACE]
    first_text = next(index for index, document in enumerate(documents) if "one" in json.dumps(document))
    assert len(told) == 1 and told[0] <= first_text
    if path == "/v1/responses":
        assert documents[told[0]]["type"] == "response.output_item.added"
        for document in documents:
            validate_event(document)
    elif "chat/" in path:
        ChatCompletionChunk.model_validate(documents[told[0]])


LEFT_OUT = "parameters of tool 'mail': `pattern` at #/properties/to\r\n\u202e cannot be followed and is ignored"
SHOWN = "parameters of tool 'mail': `pattern` at #/properties/to\\r\\n\\u202e cannot be followed and is ignored"


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("path", WIRES)
async def test_headers_name_what_is_not_observed(path: str, is_streamed: bool) -> None:
    started = Started(7, 0, placement=FAR, warnings=(LEFT_OUT, *("x" * 9_999 for _ in range(99))))
    async with running(Router([FakeBackend(lambda _: (started, TextDelta("one"), finished()))])) as daemon:
        reply = await daemon.http.post(f"{daemon.url}{path}", json=WIRES[path] | {"stream": is_streamed})
    warnings = reply.headers.get_list("x-edgeagent-warning")
    assert warnings[0] == SHOWN
    assert len(warnings) == 8 and max(map(len, warnings)) == 600
    if path == "/v1/responses":
        data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
        last = json.loads(data[-1]) if is_streamed else reply.json()
        assert last.get("response", last)["edgeagent"]["warnings"][0] == SHOWN
    elif is_streamed:
        first = json.loads(reply.text.splitlines()[0].removeprefix("data: "))
        assert first["edgeagent"]["warnings"][0] == SHOWN


@pytest.mark.parametrize("path", [path for path in WIRES if path != "/v1/responses"])
async def test_a_stream_without_text_names_what_is_not_observed(path: str) -> None:
    started = Started(7, 0, placement=FAR, warnings=(LEFT_OUT,))
    async with running(Router([FakeBackend(lambda _: (started, finished()))])) as daemon:
        _, documents = await post(daemon, path, is_streamed=True)
    assert documents[0]["edgeagent"]["warnings"] == [SHOWN]
    assert "stages_ms" in documents[-1]["edgeagent"]


async def test_on_this_machine_there_is_no_host() -> None:
    async with running(Router([FakeBackend(lambda _: (Started(1, 0), TextDelta("one"), finished()))])) as daemon:
        headers, (body,) = await post(daemon, "/v1/chat/completions", is_streamed=False)
    assert "x-edgeagent-host" not in headers and "host" not in body["edgeagent"]
    assert (headers["x-edgeagent-served-by"], headers["x-edgeagent-reason"]) == ("fake", "local_only")
