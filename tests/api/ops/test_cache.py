"""The owner's control of the prefix cache: listing its contents, purging, and filling it ahead of time."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from edgeagent.cache_folder import RootRecord
from edgeagent.config import Config
from edgeagent.engine.cache.block import Importance
from edgeagent.errors import EdgeAgentError, ModelNotFound, NotSupported, WorkerCrashed
from edgeagent.types import CachePolicy, ChatPrompt, FinishReason, PurgeCache, TextPrompt, TextQuery
from tests.backends.fake import FakeBackend, finished
from tests.daemon.running import TOKEN, running
from tests.engine.cache.disk.stores import make_chain, make_store

OWNER = {"Authorization": f"Bearer {TOKEN}"}


def fill(folder: Path, *clients: str) -> None:
    store = make_store(folder)
    for client in clients:
        chain = make_chain(2, partition=client)
        store.describe_partition(chain[0].root, RootRecord("model", client))
        for block in chain:
            store.offer(block, Importance.NORMAL)
    store.work()


async def test_what_is_there(tmp_path: Path) -> None:
    fill(tmp_path / "cache", "kiosk", "")
    async with running(FakeBackend(), config=Config(state_dir=tmp_path)) as daemon:
        listed = (await daemon.http.get(f"{daemon.url}/edgeagent/cache", headers=OWNER)).json()
    assert listed["dir"] == str(tmp_path / "cache")
    assert {(part["model"], part["client"]) for part in listed["parts"]} == {("model", "kiosk"), ("model", "")}
    assert [(part["num_blocks"], part["num_tokens"]) for part in listed["parts"]] == [(2, 512), (2, 512)]


async def test_purging_one_client_and_all(tmp_path: Path) -> None:
    folder, backend = tmp_path / "cache", FakeBackend()
    fill(folder, "kiosk", "")
    async with running(backend, config=Config(state_dir=tmp_path)) as daemon:
        answer = await daemon.http.post(f"{daemon.url}/edgeagent/cache/purge", json={"client": "kiosk"}, headers=OWNER)
        assert answer.status_code == 200
        assert len(list(folder.glob("*.kv"))) == 2
        assert (
            await daemon.http.post(f"{daemon.url}/edgeagent/cache/purge", json={}, headers=OWNER)
        ).status_code == 200
        assert not list(folder.glob("*.kv"))
        assert not list(folder.glob("*.about"))
        refused = await daemon.http.post(f"{daemon.url}/edgeagent/cache/purge", json={"client": 3}, headers=OWNER)
    assert refused.status_code == 400
    assert backend.queries == [PurgeCache("kiosk"), PurgeCache(None)]  # the workers' memory is purged too


@pytest.mark.parametrize("error", [NotSupported, ModelNotFound, WorkerCrashed])
async def test_a_model_that_has_no_cache_here_keeps_nothing_from_being_deleted(
    tmp_path: Path, error: type[EdgeAgentError]
) -> None:
    class Remote(FakeBackend):
        async def ask(self, name: str, query: TextQuery) -> NoReturn:
            raise error("a remote answers no questions")

    folder = tmp_path / "cache"
    fill(folder, "kiosk", "")
    async with running(Remote(), config=Config(state_dir=tmp_path)) as daemon:
        answer = await daemon.http.post(f"{daemon.url}/edgeagent/cache/purge", json={}, headers=OWNER)
    assert answer.status_code == 200
    assert not list(folder.glob("*.kv"))


async def test_a_prompt_that_was_not_computed_is_not_warm(tmp_path: Path) -> None:
    backend = FakeBackend(lambda _: (finished(FinishReason.CANCELLED),))
    async with running(backend, config=Config(state_dir=tmp_path)) as daemon:
        url = f"{daemon.url}/edgeagent/cache/warm"
        answer = await daemon.http.post(url, json={"prompt": "Once"}, headers=OWNER)
    assert answer.status_code == 503


async def test_warming(tmp_path: Path) -> None:
    backend = FakeBackend(lambda _: (finished(),))
    async with running(backend, config=Config(state_dir=tmp_path)) as daemon:
        url = f"{daemon.url}/edgeagent/cache/warm"
        chat = {"messages": [{"role": "system", "content": "Be brief."}], "client": "kiosk", "pin": True, "n": 3}
        assert (await daemon.http.post(url, json=chat, headers=OWNER)).status_code == 200
        answer = await daemon.http.post(url, json={"prompt": "Once upon a time"}, headers=OWNER)
        assert answer.json().keys() == {"num_prompt_tokens", "num_cached_tokens"}
        wrong: list[dict[str, object]] = [
            {},
            {"prompt": "a", **chat},
            {"messages": []},
            {"prompt": ""},
            {"prompt": "a", "client": 3},
        ]
        for body in wrong:
            assert (await daemon.http.post(url, json=body, headers=OWNER)).status_code == 400
    first, second = backend.requests
    assert isinstance(first.prompt, ChatPrompt) and isinstance(second.prompt, TextPrompt)
    assert first.prefill_only and second.prefill_only
    assert first.cache == CachePolicy(partition="kiosk", pin=True)
    assert second.cache == CachePolicy()
