"""Ollama's own client and LangChain's against a real daemon with the bundled model; only the address differs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import pytest
from ollama import AsyncClient, Client
from pydantic import BaseModel, ConfigDict, Field

from tests.integration.conftest import Daemon
from tests.present import present

if TYPE_CHECKING:
    from langchain_ollama import ChatOllama, OllamaLLM

    L = TypeVar("L", ChatOllama, OllamaLLM)

GREEDY = {"temperature": 0}
TIMER = "Set a timer for 5 minutes."


class Timer(BaseModel):
    """How long a timer runs."""

    model_config = ConfigDict(extra="forbid")

    minutes: Annotated[int, Field(ge=0, le=999)]


def set_timer(minutes: int) -> str:
    """Set a timer.

    Args:
      minutes: how long it runs
    """
    return f"timer set for {minutes} minutes"


def check_timer(text: str, done_reason: str | None) -> None:
    """Fail if an answer violates Timer's schema; a small model may fill its last tokens with white space."""
    assert re.match(r'\s*\{\s*"minutes"\s*:\s*\d{1,3}\s*(\}|$)', text)
    if done_reason == "stop":
        Timer.model_validate_json(text)


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(host=daemon.url)
    yield client
    await client._client.aclose()


class TestOllama:
    async def test_a_chat_streamed_and_whole_agree(self, client: AsyncClient) -> None:
        messages = [{"role": "user", "content": "Good morning!"}]
        whole = await client.chat("builtin", messages, options=GREEDY)
        chunks = [part async for part in await client.chat("builtin:latest", messages, stream=True, options=GREEDY)]
        assert "".join(chunk.message.content or "" for chunk in chunks) == whole.message.content != ""
        last = chunks[-1]
        assert (last.done, last.done_reason, whole.done_reason) == (True, "stop", "stop")
        assert last.eval_count == whole.eval_count and (last.eval_count or 0) > 0
        assert last.total_duration is not None and last.eval_duration is not None
        assert last.total_duration >= last.eval_duration > 0

    async def test_generate(self, client: AsyncClient) -> None:
        system = await client.generate("builtin", "Hello!", system="Be brief.", options=GREEDY | {"num_predict": 8})
        assert system.response and system.done_reason in ("stop", "length")
        options = GREEDY | {"num_predict": 64}  # without a template, the model may continue to the end of its context
        raw = [part async for part in await client.generate("builtin", "Once", raw=True, stream=True, options=options)]
        assert raw[-1].done and "".join(part.response or "" for part in raw)

    async def test_a_tool_is_called_and_its_result_read(self, client: AsyncClient) -> None:
        messages: list[Any] = [{"role": "user", "content": TIMER}]
        answer = await client.chat("builtin", messages, tools=[set_timer], options=GREEDY)
        assert answer.message.tool_calls is not None
        [call] = answer.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("set_timer", {"minutes": 5})
        messages += [answer.message, {"role": "tool", "content": set_timer(5), "tool_name": "set_timer"}]
        final = await client.chat("builtin", messages, tools=[set_timer], options=GREEDY)
        assert final.message.content and not final.message.tool_calls

    async def test_a_call_comes_whole_in_a_stream(self, client: AsyncClient) -> None:
        messages = [{"role": "user", "content": TIMER}]
        chunks = [part async for part in await client.chat("builtin", messages, tools=[set_timer], stream=True)]
        calls = [call for chunk in chunks for call in chunk.message.tool_calls or ()]
        assert [call.function.arguments for call in calls] == [{"minutes": 5}]

    async def test_a_schema_is_obeyed(self, client: AsyncClient) -> None:
        messages = [{"role": "user", "content": "How long is a quarter of an hour?"}]
        answer = await client.chat(
            "builtin", messages, format=Timer.model_json_schema(), options=GREEDY | {"num_predict": 40}
        )
        check_timer(answer.message.content or "", answer.done_reason)
        anything = await client.generate("builtin", "JSON?", format="json", options=GREEDY | {"num_predict": 40})
        assert (anything.response or "").lstrip().startswith("{")

    async def test_log_probabilities(self, client: AsyncClient) -> None:
        answer = await client.chat(
            "builtin", [{"role": "user", "content": "Hello!"}], logprobs=True, top_logprobs=2, options=GREEDY
        )
        assert answer.logprobs is not None
        assert "".join(each.token for each in answer.logprobs).strip() == (answer.message.content or "").strip()
        for each in answer.logprobs:
            assert each.top_logprobs is not None and len(each.top_logprobs) == 2
            assert each.logprob == each.top_logprobs[0].logprob <= 0

    async def test_models(self, client: AsyncClient) -> None:
        listed = (await client.list()).models[0]
        assert (listed.model, listed.details and listed.details.format) == ("builtin:latest", "gguf")
        assert listed.size and listed.digest and listed.modified_at
        [loaded] = (await client.ps()).models
        assert (loaded.model, loaded.context_length, loaded.digest) == ("builtin:latest", 2048, listed.digest)
        shown = await client.show("builtin")
        assert shown.modelinfo is not None and shown.modelinfo["general.architecture"] == "llama"
        assert shown.capabilities is not None and {"completion", "tools"} <= set(shown.capabilities)
        assert shown.parameters is not None and shown.parameters.startswith("num_ctx 2048\n")

    async def test_a_model_that_is_here_is_pulled_at_once(self, client: AsyncClient) -> None:
        assert (await client.pull("builtin")).status == "success"
        statuses = [part.status async for part in await client.pull("builtin:latest", stream=True)]
        assert statuses == ["pulling manifest", "success"]

    def test_the_synchronous_client(self, daemon: Daemon) -> None:
        client = Client(host=daemon.url)
        parts = client.chat("builtin", [{"role": "user", "content": "Hello!"}], stream=True, keep_alive="5m")
        assert [part.done for part in parts][-1] is True
        assert client.generate("builtin", keep_alive=-1).done_reason == "load"
        client._client.close()


@asynccontextmanager
async def langchain(kind: type[L], daemon: Daemon, **fields: Any) -> AsyncIterator[L]:
    """Yield a greedy model of LangChain's, and close the connections that it leaves open."""
    model = kind(model="builtin", base_url=daemon.url, temperature=0, **fields)
    yield model
    present(model._client)._client.close()
    await present(model._async_client)._client.aclose()


class TestLangChain:
    # The package takes a second to import, and each process of pytest imports each test file.
    async def test_a_conversation(self, daemon: Daemon) -> None:
        from langchain_ollama import ChatOllama

        messages = [("system", "You are a helpful assistant."), ("human", "Hello!")]
        async with langchain(ChatOllama, daemon, num_ctx=8192, validate_model_on_init=True) as model:
            whole = await model.ainvoke(messages)
            text = "".join([str(chunk.content) async for chunk in model.astream(messages)])
        assert text == whole.content != ""
        assert whole.response_metadata["done_reason"] == "stop"
        assert whole.usage_metadata is not None and whole.usage_metadata["output_tokens"] > 0

    async def test_a_tool(self, daemon: Daemon) -> None:
        from langchain_ollama import ChatOllama

        async with langchain(ChatOllama, daemon) as model:
            bound = model.bind_tools([set_timer])
            answer = await bound.ainvoke([("human", TIMER)])
            [call] = answer.tool_calls
            assert (call["name"], call["args"]) == ("set_timer", {"minutes": 5})
            result = {"role": "tool", "content": set_timer(**call["args"]), "tool_call_id": call["id"]}
            assert (await bound.ainvoke([("human", TIMER), answer, result])).content

    async def test_a_structure(self, daemon: Daemon) -> None:
        from langchain_ollama import ChatOllama

        async with langchain(ChatOllama, daemon, num_predict=40) as model:
            structured = model.with_structured_output(Timer, method="json_schema", include_raw=True)
            raw = (await structured.ainvoke("Five minutes."))["raw"]
        check_timer(raw.content, raw.response_metadata["done_reason"])

    async def test_a_plain_prompt(self, daemon: Daemon) -> None:
        from langchain_ollama import OllamaLLM

        async with langchain(OllamaLLM, daemon, num_predict=8) as model:
            assert await model.ainvoke("Hello!")
