"""Unknown fields are reported on every route that generates, embeds or ranks; fields of the emulated APIs are not."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import ollama
import pytest
import pytest_asyncio
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from websockets.asyncio.client import connect

from edgeagent.api.ollama import body as schemas_ollama
from edgeagent.api.ollama import embed as ollama_embed
from edgeagent.api.openai import chat_body as schemas
from edgeagent.api.openai import embeddings as schemas_embeddings
from edgeagent.api.openai import text_body as schemas_completions
from edgeagent.api.responses import body as schemas_responses
from edgeagent.api.wire.body import LOG_EVERY_S, MAX_NAMED, Body, FieldWarning, WarningLog, warning_about
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running

HEADER = "x-edgeagent-warning"
MESSAGES = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/responses/compact": {"input": "hi", "model": "fake"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/rerank": {"query": "hi", "documents": ["there"]},
    "/completion": {"prompt": "hi"},
    "/infill": {"input_prefix": "hi", "input_suffix": ""},
    "/embedding": {"content": "hi"},
    "/v1/messages": {"model": "fake", "max_tokens": 9, "messages": MESSAGES},
    "/v1/messages/count_tokens": {"model": "fake", "messages": MESSAGES},
    "/api/chat": {"model": "fake", "messages": MESSAGES},
    "/api/generate": {"model": "fake", "prompt": "hi"},
    "/api/embed": {"model": "fake", "input": "hi"},
    "/api/embeddings": {"model": "fake", "prompt": "hi"},
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    async with running(FakeBackend()) as daemon:
        yield daemon


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ROUTES)
async def test_an_unknown_field_is_told_and_the_answer_stays(daemon: Running, route: str, stream: bool) -> None:
    body = ROUTES[route] | ({"stream": stream} if not re.search("embed|rerank|/responses/|count", route) else {})
    plain = await daemon.http.post(daemon.url + route, json=body)
    assert (plain.status_code, HEADER in plain.headers) == (200, False)
    told = await daemon.http.post(daemon.url + route, json=body | {"modle": "x", "zzz": 1})
    assert told.status_code == 200
    assert told.headers["content-type"] == plain.headers["content-type"]
    assert told.headers[HEADER] == "unknown fields: modle (did you mean model?), zzz"


async def test_a_refusal_tells_it_too(daemon: Running) -> None:
    reply = await daemon.http.post(f"{daemon.url}/v1/chat/completions", json={"message": MESSAGES})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")
    assert reply.headers[HEADER] == "unknown fields: message (did you mean messages?)"


async def test_ollamas_options(daemon: Running) -> None:
    body = ROUTES["/api/chat"] | {"options": {"num_predct": 5, "num_gpu": 1}}
    reply = await daemon.http.post(f"{daemon.url}/api/chat", json=body)
    assert reply.headers[HEADER] == "unknown fields: options.num_predct (did you mean options.num_predict?)"


async def test_a_response_carries_it_where_there_are_no_headers(daemon: Running) -> None:
    expected = ["unknown fields: max_output_token (did you mean max_output_tokens?)"]
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
        for fields in ({"max_output_token": 5}, {}):
            await socket.send(json.dumps({"type": "response.create", "input": "hi", "stream_id": "a", **fields}))
            events: list[dict[str, Any]] = []
            while not events or events[-1]["type"] != "response.completed":
                events.append(json.loads(await socket.recv()))
            first, last = events[0]["response"], events[-1]["response"]
            if fields:
                assert first["edgeagent"] == {"warnings": expected}
                assert last["edgeagent"]["warnings"] == expected
                assert last["edgeagent"]["route"] == "local"
            else:
                assert "edgeagent" not in first and "warnings" not in last["edgeagent"]


async def test_the_log_tells_it_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async with running(FakeBackend()) as daemon:
        for _ in range(5):
            await daemon.http.post(f"{daemon.url}/v1/completions", json={"prompt": "hi", "promt": "my secret"})
    [record] = [record for record in caplog.records if "unknown field" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert "1 unknown field, perhaps meant as prompt;" in record.getMessage()
    # Field names may contain a client's words too, so they are not logged.
    assert "promt" not in record.getMessage() and "secret" not in caplog.text


async def test_the_logs_pace(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    log = WarningLog(lambda: now_s)
    for at_s in (100.0, 100.0 + LOG_EVERY_S / 2, 100.0 + LOG_EVERY_S):
        now_s = at_s
        log.write(FieldWarning("for the client", f"at {at_s}"))
    assert [record.args[0] for record in caplog.records] == ["at 100.0", f"at {100.0 + LOG_EVERY_S}"]  # type: ignore[index]


async def test_names_are_bounded_and_escaped(daemon: Running) -> None:
    fields = {"a\r\nset-cookie: x=1": 1, "\u202e\u2603": 2, "b" * 10_000: 3} | {
        f"x{index}": 0 for index in range(20_000)
    }
    reply = await daemon.http.post(f"{daemon.url}/v1/completions", json={"prompt": "hi"} | fields)
    assert reply.status_code == 200
    assert "set-cookie" not in reply.headers
    told = reply.headers[HEADER]
    assert told.startswith("unknown fields: a\\r\\nset-cookie: x=1, \\u202e\\u2603, bbb")
    assert told.endswith(f"and {len(fields) - MAX_NAMED} more")
    assert len(told) < 512


@pytest.mark.parametrize(
    ("body", "params"),
    [
        (schemas.ChatBody, chat_create_params.CompletionCreateParamsBase),
        (schemas.ChatBody, chat_create_params.CompletionCreateParamsStreaming),
        (schemas_completions.CompletionBody, completion_create_params.CompletionCreateParamsBase),
        (schemas_embeddings.EmbeddingsBody, embedding_create_params.EmbeddingCreateParams),
        (schemas_responses.CreateResponseBody, response_create_params.ResponseCreateParamsBase),
        (schemas_responses.CreateResponseBody, response_create_params.ResponseCreateParamsStreaming),
    ],
)
async def test_no_field_of_openais_apis_is_unknown(body: type[Body], params: type) -> None:
    assert warning_about(body, dict.fromkeys(params.__annotations__)) is None


@pytest.mark.parametrize(
    ("body", "request_type"),
    [
        (schemas_ollama.OllamaChatBody, "ChatRequest"),
        (schemas_ollama.OllamaGenerateBody, "GenerateRequest"),
        (ollama_embed.OllamaEmbedBody, "EmbedRequest"),
        (ollama_embed.OllamaEmbeddingsBody, "EmbeddingsRequest"),
    ],
)
async def test_no_field_of_ollamas_api_is_unknown(body: type[Body], request_type: str) -> None:
    fields = getattr(ollama._types, request_type).model_fields
    assert warning_about(body, dict.fromkeys(fields) | {"options": dict.fromkeys(ollama.Options.model_fields)}) is None
