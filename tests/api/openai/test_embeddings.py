"""Embeddings over HTTP in OpenAI's and Ollama's shapes, with their own clients, on a fake backend."""

from __future__ import annotations

import asyncio
import base64
import struct
import threading
from typing import Any

import httpx
import pytest
from ollama import AsyncClient
from openai import AsyncOpenAI

from edgeagent.api.openai import embeddings as schemas_embeddings
from edgeagent.errors import Overloaded
from edgeagent.service.live_service import LiveService
from edgeagent.types import Embed, Embedding, QueryAnswer, TextPrompt, TokenPrompt
from tests.api.services import Answering
from tests.daemon.running import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


def service_of(daemon: Running) -> LiveService:
    service: LiveService = daemon.server.config.app.app.state.context.service  # type: ignore[union-attr]
    return service


async def post(daemon: Running, path: str, **fields: Any) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}{path}", json=fields)


class TestOpenAI:
    async def test_the_vectors_are_joined_beside_the_event_loop(
        self, daemon: Running, backend: Answering, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        listed, threads = schemas_embeddings._listed, list[threading.Thread]()

        def noted(*parts: Any) -> bytes:
            threads.append(threading.current_thread())
            return listed(*parts)

        monkeypatch.setattr(schemas_embeddings, "_listed", noted)
        for path, fields in (
            ("/v1/embeddings", {"input": "ab"}),
            ("/embedding", {"content": "ab"}),
            ("/api/embed", {"model": "fake", "input": "ab"}),
        ):
            assert (await post(daemon, path, **fields)).status_code == 200
        assert len(threads) == 3 and threading.main_thread() not in threads

    async def test_the_clients_default_and_plain_numbers(self, client: AsyncOpenAI, backend: Answering) -> None:
        formats: list[dict[str, Any]] = [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}]
        for options in formats:
            answer = await client.embeddings.create(model="fake", input=["ab", "c"], **options)
            assert [entry.index for entry in answer.data] == [0, 1]
            vectors = [
                struct.unpack("<4f", base64.b64decode(entry.embedding))
                if isinstance(entry.embedding, str)
                else tuple(entry.embedding)
                for entry in answer.data
            ]
            assert vectors == [(2.0, 0.25, -1.5, 0.0), (1.0, 0.25, -1.5, 0.0)]
            assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (3, 3)
            assert (answer.object, answer.model) == ("list", "fake")

    async def test_numbers_unless_base64_is_asked_for(self, daemon: Running, backend: Answering) -> None:
        reply = await post(daemon, "/v1/embeddings", input="abc")
        assert reply.headers["content-type"] == "application/json"
        assert reply.json() == {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [3.0, 0.25, -1.5, 0.0]}],
            "model": "fake",
            "usage": {"prompt_tokens": 3, "total_tokens": 3},
        }

    @pytest.mark.parametrize(
        ("given", "prompts"),
        [
            ("ab", [TextPrompt("ab")]),
            (["ab", "c"], [TextPrompt("ab"), TextPrompt("c")]),
            ([5, 6], [TokenPrompt((5, 6))]),
            ([[5], [6, 7]], [TokenPrompt((5,)), TokenPrompt((6, 7))]),
        ],
    )
    async def test_every_form_of_input(
        self, daemon: Running, backend: Answering, given: Any, prompts: list[Any]
    ) -> None:
        assert (await post(daemon, "/v1/embeddings", input=given, dimensions=2)).status_code == 200
        assert backend.queries == [Embed(tuple(prompts), dimensions=2)]

    @pytest.mark.parametrize(
        ("fields", "message", "param"),
        [
            ({}, "input is required", "input"),
            ({"input": ""}, "input is empty", "input"),
            ({"input": []}, "input is empty", "input"),
            ({"input": ["a", ""]}, "input[1] is empty", "input[1]"),
            ({"input": [[]]}, "input[0] is empty", "input[0]"),
            ({"input": [1.5]}, "input[0] must be text or a list of token ids", "input[0]"),
            ({"input": [1, "a"]}, "must hold token ids", "input"),
            ({"input": [[-1]]}, "must hold token ids", "input[0]"),
            ({"input": {"a": 1}}, "input must be", "input"),
            ({"input": "a", "encoding_format": "int8"}, "must be 'float' or 'base64'", "encoding_format"),
            ({"input": "a", "dimensions": -2}, "must be from 1", "dimensions"),
            ({"input": "a", "dimensions": True}, "dimensions must be", "dimensions"),
            ({"input": ["a"] * 2049}, "input holds 2049 texts; at most 2048", "input"),
        ],
    )
    async def test_what_is_wrong_is_named(
        self, daemon: Running, backend: Answering, fields: dict[str, Any], message: str, param: str
    ) -> None:
        reply = await post(daemon, "/v1/embeddings", **fields)
        error = reply.json()["error"]
        assert reply.status_code == 400
        assert message in error["message"]
        assert error["param"] == param
        assert backend.queries == []

    async def test_all_texts_together_are_bounded(
        self, daemon: Running, backend: Answering, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(schemas_embeddings, "MAX_CHARS", 8)
        assert (await post(daemon, "/v1/embeddings", input=["abcd", "efgh"])).status_code == 200
        reply = await post(daemon, "/v1/embeddings", input=["abcd", "efghi"])
        assert (reply.status_code, "9 characters; at most 8" in reply.text) == (400, True)

    async def test_an_unknown_model(self, daemon: Running, backend: Answering) -> None:
        reply = await post(daemon, "/v1/embeddings", input="a", model="nope")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")

    async def test_a_full_queue(self, daemon: Running, backend: Answering) -> None:
        backend.answer = Overloaded("16 requests for embeddings are waiting", retry_after_s=2.0)
        reply = await post(daemon, "/v1/embeddings", input="a")
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")
        reply = await post(daemon, "/api/embed", input="a", model="fake")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "2")

    @pytest.mark.parametrize("vectors", [(), (b"\0" * 4, b"\0" * 8), (b"\0" * 3, b"\0" * 3)])
    async def test_what_a_worker_may_not_answer(
        self, daemon: Running, backend: Answering, vectors: tuple[bytes, ...]
    ) -> None:
        backend.answer = QueryAnswer(embeddings=tuple(Embedding(vector, 1) for vector in vectors))
        assert (await post(daemon, "/v1/embeddings", input=["a", "b"])).status_code == 500

    async def test_numbers_that_are_none(self, daemon: Running, backend: Answering) -> None:
        backend.answer = QueryAnswer(embeddings=(Embedding(struct.pack("<2f", float("nan"), 1.0), 1),))
        reply = await post(daemon, "/v1/embeddings", input="a")
        assert reply.json()["data"][0]["embedding"] == [None, 1.0]

    @pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed"])
    async def test_the_clients_leaving_cancels(self, daemon: Running, backend: Answering, path: str) -> None:
        backend.gate.clear()
        leaving = asyncio.create_task(post(daemon, path, input="a", model="fake"))
        await backend.asked.wait()
        leaving.cancel()
        await backend.left.wait()

    async def test_requests_are_counted_by_route(self, daemon: Running, backend: Answering) -> None:
        await post(daemon, "/v1/embeddings", input="a")
        text = (await daemon.http.get(f"{daemon.url}/metrics")).text
        assert 'route="/v1/embeddings"' in text


class TestOllama:
    async def test_embed(self, daemon: Running, backend: Answering) -> None:
        client = AsyncClient(host=daemon.url)
        one = await client.embed("fake", "abc")
        assert (one.model, one.embeddings, one.prompt_eval_count) == ("fake", [[3.0, 0.25, -1.5, 0.0]], 3)
        assert one.total_duration is not None and one.load_duration is not None
        assert one.total_duration >= one.load_duration >= 0
        two = await client.embed("fake:latest", ["a", "bc"], truncate=False, dimensions=1, keep_alive="5m")
        assert two.embeddings == [[1.0], [2.0]]
        assert backend.queries == [
            Embed((TextPrompt("abc"),), truncate=True),
            Embed((TextPrompt("a"), TextPrompt("bc")), truncate=False, dimensions=1),
        ]
        await client._client.aclose()

    async def test_the_older_form(self, daemon: Running, backend: Answering) -> None:
        client = AsyncClient(host=daemon.url)
        answer = await client.embeddings("fake", "abc")
        assert list(answer.embedding) == [3.0, 0.25, -1.5, 0.0]
        assert backend.queries == [Embed((TextPrompt("abc"),), truncate=True)]
        await client._client.aclose()

    async def test_dimensions_of_zero_are_all(self, daemon: Running, backend: Answering) -> None:
        reply = await post(daemon, "/api/embed", model="fake", input="a", dimensions=0)
        assert len(reply.json()["embeddings"][0]) == 4

    @pytest.mark.parametrize(
        ("path", "fields", "message"),
        [
            ("embed", {"input": ["a", ""]}, "input[1] is empty"),
            ("embed", {"input": [1]}, "must be a valid string"),
            ("embed", {"input": "a", "truncate": "no"}, "truncate must be"),
            ("embeddings", {"prompt": ["a"]}, "prompt must be a valid string"),
        ],
    )
    async def test_what_is_wrong_is_named(
        self, daemon: Running, backend: Answering, path: str, fields: dict[str, Any], message: str
    ) -> None:
        reply = await post(daemon, f"/api/{path}", model="fake", **fields)
        assert reply.status_code == 400
        assert message in reply.json()["error"]

    @pytest.mark.parametrize("fields", [{}, {"input": None}, {"input": ""}, {"input": []}])
    async def test_without_a_text_a_model_is_only_loaded(
        self, daemon: Running, backend: Answering, fields: dict[str, Any]
    ) -> None:
        body = (await post(daemon, "/api/embed", model="fake", **fields)).json()
        assert (body["model"], body["embeddings"], body["prompt_eval_count"]) == ("fake", [], 0)
        older = await post(daemon, "/api/embeddings", model="fake", prompt=fields.get("input") or "")
        assert (older.status_code, older.json()) == (200, {"embedding": []})
        assert backend.queries == []

    async def test_an_unknown_model(self, daemon: Running, backend: Answering) -> None:
        asked: list[tuple[str, dict[str, Any]]] = [
            ("embed", {"input": "a"}), ("embed", {}), ("embeddings", {"prompt": "a"}), ("embeddings", {})
        ]  # fmt: skip
        for path, fields in asked:
            reply = await post(daemon, f"/api/{path}", model="nope", **fields)
            assert (reply.status_code, "model 'nope' not found" in reply.json()["error"]) == (404, True)


async def test_a_drain_waits_for_what_runs_and_refuses_what_comes() -> None:
    backend = Answering()
    backend.gate.clear()
    async with running(backend) as daemon:
        service = service_of(daemon)
        live = service.live
        first = asyncio.create_task(post(daemon, "/v1/embeddings", input="ab"))
        await backend.asked.wait()
        assert live.num_running == 1
        service.begin_drain()
        for path in ("/v1/embeddings", "/api/embed"):
            reply = await post(daemon, path, input="c", model="fake")
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "5")
        backend.gate.set()
        assert (await first).json()["usage"]["prompt_tokens"] == 2
        await live.wait_idle(5.0)
        assert live.num_running == 0
