"""Embedding and ranking models beside a chat model in one real daemon, for off-the-shelf clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import gguf
import httpx
import numpy as np
import ollama
import openai
import pytest

from tests.encoder_models import ARCHITECTURES, CONTEXT_LENGTH, make_encoder
from tests.integration.conftest import Daemon, run_command, start_daemon, stop_daemon
from tests.patience import patient

TEXTS = ["the cat sleeps", "the dog runs in the sun", "rain on the house"]
QUERY = "the dog"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with an encoder of each architecture and a ranking model in its models' folder."""
    folder = tmp_path_factory.mktemp("encoders")
    (folder / "models").mkdir()
    for architecture in ARCHITECTURES:
        make_encoder(folder / "models" / f"{architecture}.gguf", architecture)
    make_encoder(folder / "models" / "ranker.gguf", pooling=gguf.PoolingType.RANK)
    running = start_daemon(folder / "state", "builtin", "--models-dir", str(folder / "models"))
    yield running
    stop_daemon(running)


@pytest.fixture
async def client(shelf: Daemon) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{shelf.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def http(shelf: Daemon) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=shelf.url, timeout=patient(60)) as made:
        yield made


@pytest.mark.daily(2, seconds=1)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_every_architecture_embeds(client: openai.AsyncOpenAI, architecture: str) -> None:
    answer = await client.embeddings.create(model=architecture, input=TEXTS)
    rows = np.array([entry.embedding for entry in answer.data])
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
    assert answer.usage.prompt_tokens == sum(len(text.split()) + 2 for text in TEXTS)
    again = await client.embeddings.create(model=architecture, input=TEXTS[1], dimensions=8)
    short = rows[1, :8] / np.linalg.norm(rows[1, :8])
    assert np.allclose(again.data[0].embedding, short, atol=1e-3)
    # The chat model answers at the same time.
    chat = await client.chat.completions.create(
        model="builtin", messages=[{"role": "user", "content": "Hi"}], max_tokens=2
    )
    assert chat.choices[0].message.content


async def test_it_embeds_and_does_nothing_else(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    with pytest.raises(openai.BadRequestError, match="bert generates no text: it embeds texts") as caught:
        await client.chat.completions.create(model="bert", messages=[{"role": "user", "content": "Hi"}])
    assert caught.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="embeds texts and ranks none"):
        await client.post("/rerank", cast_to=object, body={"model": "bert", "query": "x", "documents": ["y"]})
    with pytest.raises(openai.BadRequestError, match=f"at most {CONTEXT_LENGTH} can be embedded"):
        await client.embeddings.create(model="bert", input="the " * CONTEXT_LENGTH)
    tokens = (await http.post("/tokenize", json={"model": "bert", "content": "the cat"})).json()["tokens"]
    assert len(tokens) == 2
    status = (await http.get("/edgeagent/status")).json()
    (model,) = [model for model in status["models"] if model["name"] == "bert"]
    assert (model["state"], model["num_restarts"]) == ("ready", 0)


async def test_a_ranker_ranks(client: openai.AsyncOpenAI, http: httpx.AsyncClient) -> None:
    body = {"model": "ranker", "query": QUERY, "documents": [*TEXTS, TEXTS[0]]}
    results = (await http.post("/v1/rerank", json=body)).json()["results"]
    scores = {result["index"]: result["relevance_score"] for result in results}
    assert sorted(scores.values(), reverse=True) == [result["relevance_score"] for result in results]
    assert all(0 < score < 1 for score in scores.values())
    assert scores[0] == pytest.approx(scores[3], abs=1e-3)
    assert abs(scores[0] - scores[1]) > 1e-6
    with pytest.raises(openai.BadRequestError, match="it ranks documents"):
        await client.embeddings.create(model="ranker", input="x")
    with pytest.raises(openai.BadRequestError, match="ranks no documents"):
        await client.post("/rerank", cast_to=object, body=body | {"model": "builtin"})


async def test_ollamas_client(shelf: Daemon) -> None:
    client = ollama.AsyncClient(host=shelf.url)
    answer = await client.embed("nomic-bert", TEXTS)
    assert len(answer.embeddings) == len(TEXTS)
    assert (await client.show("nomic-bert")).capabilities == ["embedding"]
    cut = await client.embed("nomic-bert", "the " * (2 * CONTEXT_LENGTH))  # it truncates by default
    assert cut.prompt_eval_count == CONTEXT_LENGTH
    await client._client.aclose()


async def test_one_is_loaded_by_name_and_kept_as_asked(shelf: Daemon, http: httpx.AsyncClient) -> None:
    client = ollama.AsyncClient(host=shelf.url)

    async def leaves() -> dict[str, float]:
        """Return the loaded encoders and the seconds until each is unloaded."""
        status = (await http.get("/edgeagent/status")).json()
        ready = (model for model in status["models"] if model["state"] == "ready" and not model["is_pinned"])
        return {model["name"]: model["unload_in_s"] for model in ready}

    for name in ("bert", "ranker"):
        await http.post("/edgeagent/unload", params={"model": name})
        loaded = await http.post("/edgeagent/load", params={"model": name})
        assert loaded.status_code == 200, loaded.text
        assert name in await leaves()
    embed: Any
    for embed, fields in ((client.embed, {"input": "x"}), (client.embeddings, {"prompt": "x"})):
        await http.post("/edgeagent/unload", params={"model": "bert"})
        await embed("bert", **fields, keep_alive="5m")
        assert 0 < (await leaves())["bert"] <= 300
        await embed("bert", **fields, keep_alive=-1)
        assert (await leaves())["bert"] is None
        await embed("bert", **fields, keep_alive=0)
        assert "bert" not in await leaves()
    with pytest.raises(ollama.ResponseError, match="keep_alive must be a number of seconds"):
        await client.embeddings("bert", "x", keep_alive="soon")
    await client._client.aclose()


@pytest.mark.daily(1, seconds=2)
@pytest.mark.parametrize("pooling", [gguf.PoolingType.MEAN, gguf.PoolingType.RANK])
def test_it_may_be_the_only_model(tmp_path: Path, pooling: gguf.PoolingType) -> None:
    daemon = start_daemon(tmp_path / "state", str(make_encoder(tmp_path / "only.gguf", pooling=pooling)))
    assert httpx.get(f"{daemon.url}/ready").status_code == 200
    assert httpx.get(f"{daemon.url}/health").status_code == 200
    stop_daemon(daemon)


def test_the_command_line_names_what_it_is_for(shelf: Daemon) -> None:
    models = shelf.state_dir.parent / "models"
    listed = json.loads(run_command("list", "--models-dir", str(models), "--json"))
    kinds = {model["name"]: model["memory"] for model in listed}
    assert kinds["bert"] == "encoder"
