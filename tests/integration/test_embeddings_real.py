"""Embeddings by a real daemon with the bundled model, for off-the-shelf clients; streams beside them do not change."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ollama import AsyncClient, ResponseError
from openai import AsyncOpenAI, BadRequestError
from pydantic import SecretStr

from tests.integration.conftest import Daemon
from tests.integration.leaks import status_of
from tests.present import present

TEXTS = ["What is the weather like?", "How is the weather today?", "Set a timer for five minutes."]
MODEL = Path(__file__).parents[2] / "models/builtin/edgeagent-mini.gguf"
LONG = "The quick brown fox jumps over the lazy dog. " * 30
# What llama-cpp-python returns for the same file: the last token's vector, since the file names no pooling.
REFERENCE = """
import json, sys
from llama_cpp import Llama
path, texts = json.loads(sys.argv[1])
one = {"n_threads": 1, "n_threads_batch": 1, "verbose": False}  # two threads spin
llama = Llama(path, embedding=True, pooling_type=3, n_ctx=512, n_batch=512, **one)
print(json.dumps([llama.embed(text, normalize=True) for text in texts]))
"""


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
async def ollama(daemon: Daemon) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(host=daemon.url)
    yield client
    await client._client.aclose()


async def vectors(client: AsyncOpenAI, texts: Any, **fields: Any) -> np.ndarray:
    answer = await client.embeddings.create(model="builtin", input=texts, **fields)
    return np.array([entry.embedding for entry in answer.data])


async def test_both_formats_and_both_apis_agree(client: AsyncOpenAI, ollama: AsyncClient) -> None:
    expected = await vectors(client, TEXTS)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1.0, atol=1e-6)
    assert np.array_equal(expected, await vectors(client, TEXTS, encoding_format="float"))
    assert np.array_equal(expected, (await ollama.embed("builtin", TEXTS)).embeddings)
    assert np.array_equal(expected[0], (await ollama.embeddings("builtin", TEXTS[0])).embedding)
    shown = await ollama.show("builtin")
    assert shown.capabilities is not None and "embedding" in shown.capabilities
    assert shown.modelinfo is not None and shown.modelinfo["llama.embedding_length"] == expected.shape[1]


async def test_vectors_equal_those_of_llama_cpp_python(client: AsyncOpenAI) -> None:
    request = json.dumps([str(MODEL), TEXTS])
    reference = await asyncio.create_subprocess_exec(sys.executable, "-c", REFERENCE, request, stdout=subprocess.PIPE)
    output, _ = await reference.communicate()
    expected = np.array(json.loads(output.splitlines()[-1]))
    ours = await vectors(client, TEXTS)
    assert np.allclose(ours, expected, atol=0.02)
    assert np.all(np.sum(ours * expected, axis=1) > 0.999)


async def test_token_ids_and_dimensions(client: AsyncOpenAI) -> None:
    whole = await client.embeddings.create(model="builtin", input=TEXTS[0], dimensions=8)
    assert len(whole.data[0].embedding) == 8
    assert np.linalg.norm(whole.data[0].embedding) == pytest.approx(1.0, abs=1e-6)
    tokens = await vectors(client, [[5, 6, 7], [5, 6, 8]])
    assert np.array_equal(tokens[0], (await vectors(client, [5, 6, 7]))[0])
    assert not np.allclose(tokens[0], tokens[1], atol=1e-3)


async def test_a_text_that_is_too_long(client: AsyncOpenAI, ollama: AsyncClient) -> None:
    text = "timer " * 4000
    with pytest.raises(BadRequestError, match=r"input\[1\] has \d{4} tokens, but at most 2048") as refused:
        await client.embeddings.create(model="builtin", input=["a", text])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input[1]")
    with pytest.raises(ResponseError, match="at most 2048") as also:
        await ollama.embed("builtin", text, truncate=False)
    assert also.value.status_code == 400
    cut = await ollama.embed("builtin", text)
    assert cut.prompt_eval_count == 2048


async def test_langchain(daemon: Daemon) -> None:
    from langchain_ollama import OllamaEmbeddings
    from langchain_openai import OpenAIEmbeddings

    # LangChain sends OpenAI's own token ids unless an option says that the server is another.
    openai = OpenAIEmbeddings(
        model="builtin",
        base_url=f"{daemon.url}/v1",
        api_key=SecretStr("unused"),
        check_embedding_ctx_length=False,
        max_retries=0,
    )
    ollama = OllamaEmbeddings(model="builtin", base_url=daemon.url)
    documents = await openai.aembed_documents(TEXTS)
    assert np.allclose(documents, await ollama.aembed_documents(TEXTS), atol=1e-6)
    assert np.allclose(documents[0], await ollama.aembed_query(TEXTS[0]), atol=1e-6)
    for each in (openai.async_client._client, present(ollama._async_client)._client):
        await (each.close() if hasattr(each, "close") else each.aclose())
    openai.client._client.close()
    present(ollama._client)._client.close()


async def answer(client: AsyncOpenAI, begun: asyncio.Event | None = None) -> str:
    """Return a streamed answer; `begun` is set at its first text."""
    text = ""
    stream = await client.completions.create(
        model="builtin",
        prompt="Once upon a time",
        max_tokens=150,
        temperature=0,
        stream=True,
        extra_body={"cache_prompt": False},
    )
    async for chunk in stream:
        text += chunk.choices[0].text
        if begun is not None and text:
            begun.set()
    return text


async def test_a_stream_beside_embeddings_is_as_alone(client: AsyncOpenAI) -> None:
    alone = await answer(client)
    begun = asyncio.Event()
    streaming = asyncio.create_task(answer(client, begun))
    await begun.wait()
    embedding = asyncio.create_task(vectors(client, [LONG, LONG]))
    assert await streaming == alone
    # A vector computed beside a stream equals one computed alone.
    assert np.array_equal(await embedding, await vectors(client, [LONG, LONG]))


async def test_who_leaves_holds_up_nobody(client: AsyncOpenAI, daemon: Daemon) -> None:
    leaving = asyncio.create_task(vectors(client, [LONG] * 200))
    while not (await asyncio.to_thread(status_of, daemon.url))["num_live_requests"]:
        pass
    leaving.cancel()
    assert (await vectors(client, "Hello")).shape[0] == 1
