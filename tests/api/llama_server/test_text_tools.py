"""Tokenize, detokenize and apply-template in llama-server's shapes; /props and /slots."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import httpx
import pytest
from pydantic_core import to_json

from edgeagent.api.llama_server import tools as text_routes
from edgeagent.errors import InvalidRequest, Overloaded
from edgeagent.types import (
    Detokenize,
    QueryAnswer,
    RenderPrompt,
    SamplingParams,
    Tokenize,
    WorkerState,
    WorkerStatus,
    replace,
)
from tests.api.services import INFO, Answering, OneModel
from tests.daemon.running import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(daemon: Running, path: str, fields: Any) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}{path}", json=fields)


async def test_tokenize(daemon: Running, backend: Answering) -> None:
    assert (await post(daemon, "/tokenize", {"content": "ab"})).json() == {"tokens": [97, 98]}
    fields = {"content": "ab", "add_special": True, "parse_special": False, "model": "fake"}
    assert (await post(daemon, "/tokenize", fields)).json() == {"tokens": [94, 97, 98]}
    assert (await post(daemon, "/tokenize", {"content": ""})).json() == {"tokens": []}
    reply = await post(daemon, "/tokenize", {"content": "b", "with_pieces": True})
    assert reply.json() == {"tokens": [{"id": 98, "piece": "b"}]}
    assert backend.queries == [
        Tokenize("ab", add_bos=False, parse_special=True),
        Tokenize("ab", add_bos=True, parse_special=False),
        Tokenize(""),
        Tokenize("b", with_pieces=True),
    ]


async def test_tokenize_with_pieces_gives_bytes_where_there_is_no_text(daemon: Running, backend: Answering) -> None:
    backend.answer = QueryAnswer(tokens=(1, 2, 3), pieces=(b" a", b"\xc3", b"\xa9"))
    reply = await post(daemon, "/tokenize", {"content": " aé", "with_pieces": True})
    assert reply.json() == {
        "tokens": [{"id": 1, "piece": " a"}, {"id": 2, "piece": [0xC3]}, {"id": 3, "piece": [0xA9]}]
    }


async def test_detokenize(daemon: Running, backend: Answering) -> None:
    assert (await post(daemon, "/detokenize", {"tokens": [97, 98]})).json() == {"content": "ab"}
    assert (await post(daemon, "/detokenize", {"tokens": []})).json() == {"content": ""}
    assert backend.queries == [Detokenize((97, 98)), Detokenize(())]


async def test_apply_template(daemon: Running, backend: Answering) -> None:
    fields = {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"enable_thinking": False}}
    assert (await post(daemon, "/apply-template", fields)).json() == {"prompt": "<user>Hi"}
    (query,) = backend.queries
    assert isinstance(query, RenderPrompt)
    assert query.prompt.template_kwargs == '{"enable_thinking":false}'


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": ["a"]}, "content"),
        ("/tokenize", {"content": "a" * (text_routes.MAX_TEXT_CHARS + 1)}, "content"),
        ("/tokenize", {"content": "a", "with_pieces": 1}, "with_pieces"),
        ("/tokenize", {"content": "a", "model": "x" * 513}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, "a"]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": [{"role": "nobody"}]}, "messages[0].role"),
    ],
)
async def test_bad_fields_are_named(daemon: Running, backend: Answering, path: str, fields: Any, param: str) -> None:
    reply = await post(daemon, path, fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert not backend.queries


async def test_an_unknown_model_is_not_found(daemon: Running, backend: Answering) -> None:
    reply = await post(daemon, "/tokenize", {"content": "a", "model": "other"})
    assert reply.status_code == 404


async def test_a_refusal_keeps_its_status(daemon: Running, backend: Answering) -> None:
    backend.answer = Overloaded("full", retry_after_s=2)
    reply = await post(daemon, "/tokenize", {"content": "a"})
    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "2"


async def test_a_conversation_that_the_model_refuses_is_in_the_field_messages(
    daemon: Running, backend: Answering
) -> None:
    backend.answer = InvalidRequest("too long", param="input")
    reply = await post(daemon, "/apply-template", {"messages": [{"role": "user", "content": "Hi"}]})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")


async def test_a_prompt_is_written_beside_the_event_loop(
    daemon: Running, backend: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[threading.Thread]()

    def noted(fields: Any) -> bytes:
        threads.append(threading.current_thread())
        return to_json(fields)

    monkeypatch.setattr(text_routes, "to_json", noted)
    assert (await post(daemon, "/apply-template", {"messages": [{"role": "user", "content": "Hi"}]})).is_success
    assert threads and threading.main_thread() not in threads


async def test_waiting_has_an_end(daemon: Running, backend: Answering, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_routes, "TIMEOUT_S", 0.01)
    backend.gate.clear()
    reply = await post(daemon, "/tokenize", {"content": "a"})
    assert reply.status_code == 504
    assert backend.left.is_set()


async def test_a_client_that_leaves_ends_the_question(daemon: Running, backend: Answering) -> None:
    backend.gate.clear()
    asking = asyncio.create_task(post(daemon, "/tokenize", {"content": "a"}))
    await backend.asked.wait()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    await backend.left.wait()


async def test_props_and_slots_tell_of_the_model_and_of_nobody() -> None:
    sampling = SamplingParams(temperature=0.7)
    info = replace(INFO, sampling=sampling, chat_template="{{ messages }}", supports_infill=True)
    async with running(OneModel(WorkerState.READY, info=info, worker=WorkerStatus(num_running=2))) as daemon:
        props = (await daemon.http.get(f"{daemon.url}/props")).json()
        assert props["chat_template"] == "{{ messages }}"
        assert props["default_generation_settings"]["n_ctx"] == 4096
        assert props["default_generation_settings"]["params"]["temperature"] == 0.7
        assert props["edgeagent"]["supports_infill"] is True
        slots = (await daemon.http.get(f"{daemon.url}/slots")).json()
        assert len(slots) == props["total_slots"] == 4
        assert [slot["is_processing"] for slot in slots] == [True, True, *[False] * (len(slots) - 2)]
        reply = await daemon.http.post(f"{daemon.url}/slots/0?action=save", json={"filename": "x"})
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "not_supported"


async def test_props_wait_for_the_model() -> None:
    async with running(OneModel(WorkerState.READY)) as daemon:
        for path in ("/props", "/slots"):
            reply = await daemon.http.get(f"{daemon.url}{path}")
            assert reply.status_code == 503
            assert "retry-after" in reply.headers


@pytest.mark.parametrize("state", [WorkerState.FAILED, WorkerState.QUARANTINED])
async def test_props_of_a_model_that_cannot_be_loaded_say_why(state: WorkerState) -> None:
    async with running(OneModel(state)) as daemon:
        for path in ("/props", "/slots"):
            error = (await daemon.http.get(f"{daemon.url}{path}")).json()["error"]
            assert error["code"] == "model_load_failed"
            assert error["message"].endswith("signal 9")
