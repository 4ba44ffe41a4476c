"""Names, files and checks before a worker starts."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeagent.config import Config, EngineConfig, LoadConfig, ModelConfig
from edgeagent.errors import (
    BackendUnavailable,
    EdgeAgentError,
    ModelDamaged,
    ModelLoadFailed,
    ModelNotFound,
    StoreError,
)
from edgeagent.store.drafts import FoundDraft
from edgeagent.store.library import Found
from edgeagent.types import FileShape, PurgeCache, WorkerState
from edgeagent.worker.parent.pool import loading
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from tests.stub_worker import num_lives, stub_command
from tests.worker.support import QUICK, Record, eventually, found_at, request


class Store:
    """A resolver and validator that record their calls, and the thread of each."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.checked: list[Path] = []
        self.threads: set[int] = set()
        self.error: Exception | None = None

    def resolve(self, name: str) -> Found:
        self.asked.append(name)
        if name == "missing":
            raise StoreError("there is no model 'missing'")
        return found_at(Path(f"{name}.gguf"), "mini" if name == "builtin" else name)

    def find_draft(self, model: Found, _header: object) -> FoundDraft:
        return FoundDraft(Path("own-draft.gguf"), f"the partner of {model.name}")

    def validate(self, path: Path) -> None:
        self.threads.add(threading.get_ident())
        self.checked.append(path)
        if self.error is not None:
            raise self.error


@pytest.fixture
def lives(tmp_path: Path) -> Path:
    return tmp_path / "lives"


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
async def pool(store: Store, lives: Path) -> AsyncIterator[Pool]:
    pool = make_pool(store, lives, Config())
    yield pool
    await pool.stop()


def make_pool(store: Store, lives: Path, config: Config) -> Pool:
    return Pool(
        config,
        ModelSource(store.resolve, store.validate, find_draft=store.find_draft),
        command=stub_command(lives),
        limits=QUICK,
    )


async def test_the_default_model_has_several_names(pool: Pool) -> None:
    await pool.start()
    assert pool.default() == "mini"
    for number, name in enumerate(("", "default", "builtin", "mini")):
        assert pool.find(name) == "mini"
        record = Record()
        pool.submit(request("answer 1", f"r{number}", name), record)
        assert (await record.end()).text == "0 "


@pytest.mark.parametrize("preload", ["load", "models"])
async def test_preloaded_models_are_loaded_where_requests_load_none(store: Store, lives: Path, preload: str) -> None:
    if preload == "load":
        config = Config(load=LoadConfig(on_demand=False, preload=("m1",)))
    else:
        config = Config(load=LoadConfig(on_demand=False), models={"m1": ModelConfig(preload=True)})
    pool = make_pool(store, lives, config)
    await pool.start()
    await eventually(lambda: [status.state for status in pool.statuses()] == [WorkerState.READY] * 2)
    assert await pool.locate("m1") == "m1"
    with pytest.raises(ModelNotFound):
        await pool.locate("m2")
    await pool.stop()


async def test_a_purge_is_also_of_a_model_that_is_not_loaded_and_does_not_load_it(pool: Pool) -> None:
    await pool.start()
    await eventually(lambda: pool.model("").state is WorkerState.READY)
    await pool.unload("")
    prefixes = pool.model("").prefixes
    purged, kept = (next(prefixes.digests(client, ["hello"])) for client in ("kiosk", ""))
    prefixes.expect("r", [purged, kept], persists=True)
    await pool.ask("", PurgeCache("kiosk"))
    assert (purged in prefixes, kept in prefixes) == (False, True)
    assert pool.model("").state is WorkerState.STOPPED


async def test_another_name_is_not_found_and_the_names_are_told(pool: Pool) -> None:
    await pool.start()
    with pytest.raises(ModelNotFound, match=r"'gpt-4'.*mini") as caught:
        pool.submit(request("answer 1", model="gpt-4"), Record())
    assert caught.value.param == "model"


async def test_files_are_checked_in_a_thread_before_each_start(pool: Pool, store: Store, lives: Path) -> None:
    await pool.start()
    record = Record()
    pool.submit(request("die SIGKILL | answer 1"), record)
    assert (await record.end()).text == "0 "
    assert num_lives(lives) == 2
    assert store.checked == [Path("builtin.gguf"), Path("own-draft.gguf")] * 2
    assert threading.get_ident() not in store.threads


async def test_a_bad_file_starts_no_worker(pool: Pool, store: Store, lives: Path) -> None:
    store.error = ModelLoadFailed("tensor 3 lies outside the file")
    await pool.start()
    # The start checks the files, so the failure is known when it returns.
    (status,) = pool.statuses()
    assert (status.name, status.state, status.cause) == ("mini", WorkerState.FAILED, "tensor 3 lies outside the file")
    with pytest.raises(ModelLoadFailed, match="tensor 3"):
        pool.submit(request("answer 1"), Record())
    assert num_lives(lives) == 0


async def test_a_file_that_vanishes_is_no_crash(pool: Pool, store: Store, lives: Path) -> None:
    store.error = FileNotFoundError(2, "No such file or directory", "builtin.gguf")
    await pool.start()
    (status,) = pool.statuses()
    assert (status.state, status.num_restarts, num_lives(lives)) == (WorkerState.FAILED, 0, 0)
    assert "a file of mini cannot be read" in (status.cause or "")


def other_vocabulary(path: Path) -> Any:
    return SimpleNamespace(num_vocab=99 if "draft" in path.name else 100, shape=FileShape(1))


async def test_a_named_draft_with_another_vocabulary_starts_no_worker(
    store: Store, lives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "validate", other_vocabulary)
    await (pool := make_pool(store, lives, Config(draft="a-draft"))).start()
    (status,) = pool.statuses()
    assert status.state is WorkerState.FAILED
    assert "a-draft.gguf has 99 tokens" in (status.cause or "")
    assert num_lives(lives) == 0
    await pool.stop()


async def test_a_named_draft_with_another_token_starts_no_worker(
    store: Store, lives: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header: Any = SimpleNamespace(num_vocab=100, shape=FileShape(1))
    words = "token 7 is 'a' in one and 'b' in the other"
    monkeypatch.setattr(loading, "first_difference", lambda _model, _draft: words)
    source = ModelSource(store.resolve, lambda _: header)
    pool = Pool(Config(draft="small"), source, command=stub_command(lives), limits=QUICK)
    await pool.start()
    (status,) = pool.statuses()
    assert status.state is WorkerState.FAILED
    assert (status.cause or "").startswith(f"{words}; a draft must share")
    await pool.stop()


async def test_a_draft_that_nobody_named_is_left_out_if_its_vocabulary_differs(
    store: Store, lives: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store, "validate", other_vocabulary)
    await (pool := make_pool(store, lives, Config())).start()
    record = Record()
    pool.submit(request("answer 1"), record)
    assert (await record.end()).text == "0 "
    assert "mini runs without its draft: the draft own-draft.gguf has 99 tokens in its vocabulary" in caplog.text
    await pool.stop()


@pytest.mark.parametrize("error", [ModelDamaged, ModelNotFound, StoreError])
async def test_a_named_draft_that_is_missing_or_damaged_is_left_out(
    store: Store,
    lives: Path,
    error: type[EdgeAgentError],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def resolve(name: str) -> Found:
        if name == "small":
            raise error("small is not on this machine: run `edgeagent pull small`")
        return found_at(Path(f"{name}.gguf"), name)

    monkeypatch.setattr(store, "resolve", resolve)
    await (pool := make_pool(store, lives, Config(draft="small"))).start()
    record = Record()
    pool.submit(request("answer 1"), record)
    assert (await record.end()).text == "0 "
    assert "without its draft: small is not on this machine: run `edgeagent pull small`" in caplog.text
    await pool.stop()


@pytest.mark.parametrize("error", [ModelDamaged, ModelLoadFailed, ModelNotFound, StoreError])
async def test_a_draft_that_must_not_be_loaded_is_left_out(
    store: Store,
    lives: Path,
    error: type[EdgeAgentError],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def validate(path: Path) -> None:
        if path.name == "own-draft.gguf":
            raise error("own-draft.gguf is truncated")

    monkeypatch.setattr(store, "validate", validate)
    await (pool := make_pool(store, lives, Config())).start()
    record = Record()
    pool.submit(request("answer 1"), record)
    assert (await record.end()).text == "0 "
    assert "mini runs without its draft: own-draft.gguf is truncated" in caplog.text
    await pool.stop()


async def test_a_configured_draft_replaces_the_models_own(store: Store, lives: Path) -> None:
    pool = make_pool(store, lives, Config(model="big", draft="small", engine=EngineConfig(ctx=77)))
    await pool.start()
    await eventually(lambda: num_lives(lives) == 1)
    assert store.checked == [Path("big.gguf"), Path("small.gguf")]
    await pool.stop()


@pytest.mark.parametrize("draft", ["none", "ngram"])
async def test_words_that_are_no_draft_model(store: Store, lives: Path, draft: str) -> None:
    config = Config(draft=draft)
    pool = make_pool(store, lives, config)
    await pool.start()
    await eventually(lambda: num_lives(lives) == 1)
    assert store.checked == [Path("builtin.gguf")]
    assert config.engine_of("builtin").draft_ngrams == (draft == "ngram")
    await pool.stop()


async def test_a_model_that_is_not_there_is_told_at_the_start(store: Store, lives: Path) -> None:
    pool = make_pool(store, lives, Config(model="missing"))
    with pytest.raises(StoreError, match="missing"):
        await pool.start()
    assert pool.statuses() == []
    with pytest.raises(BackendUnavailable):
        pool.submit(request("answer 1"), Record())
    await pool.stop()
