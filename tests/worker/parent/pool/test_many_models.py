"""Models that requests name: each is loaded once, kept for a while, and unloaded when there is no room."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from edgeagent.config import Config, EngineConfig, LoadConfig, ModelConfig
from edgeagent.errors import (
    BackendUnavailable,
    EdgeAgentError,
    ModelDamaged,
    ModelLoadFailed,
    ModelNotFound,
    NotSupported,
    StoreError,
)
from edgeagent.store.gguf.header import validate_model
from edgeagent.store.library import Found
from edgeagent.store.projectors import memory_bytes
from edgeagent.types import Embed, FinishReason, GenerateRequest, MemoryKind, TextPrompt, WorkerState
from edgeagent.worker.parent.pool.loading import LoadPreparation, ModelSource
from edgeagent.worker.parent.pool.memory import Held, Memory
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.protocol import Load, adapter_part, draft_part, rewind_part
from tests.models import make_tiny_model
from tests.projectors import make_projector
from tests.stub_worker import num_lives, stub_command
from tests.worker.support import QUICK, Record, eventually, found_at, request

UNIT = 400 << 20
"""The memory that each worker seems to hold; each is predicted to take half of it."""


class Shelf:
    """A machine's models by name, and its memory, with room for `num_places` workers."""

    def __init__(self, lives: Path, num_places: int = 10) -> None:
        self.lives, self.num_places = lives, num_places
        self.offered: list[str] = []
        self.aliases = {"builtin": "mini", "mx": "m1"}

    def resolve(self, name: str) -> Found:
        name = self.aliases.get(name, name)
        return found_at(self.lives.with_name(f"{name}.gguf"), name)

    def offer(self, name: str) -> Found:
        self.offered.append(name)
        if not name.startswith("m") or "+" in name:
            raise ModelNotFound("this text is not found in any model; did you mean m1?", param="model")
        return self.resolve(name)

    def read(self, pids: Collection[int]) -> Memory:
        total = self.num_places * UNIT + (100 << 20)
        held = {pid: Held(UNIT, 0) for pid in pids}
        return Memory(total - len(pids) * UNIT, total, held)

    def pool(self, *, starts: tuple[str, ...] = (), models: dict[str, ModelConfig] | None = None, **load: Any) -> Pool:
        config = Config(load=LoadConfig(**load), models=models or {})
        command = stub_command(self.lives, *starts)
        return Pool(
            config,
            ModelSource(self.resolve, lambda _: None, offer=self.offer, names_stamp=lambda: dict(self.aliases)),
            command=command,
            limits=QUICK,
            read=self.read,
        )


def prepared(
    folder: Path,
    source: ModelSource | None = None,
    adapters: Mapping[str, Path] = MappingProxyType({}),
    draft: str = "none",
) -> LoadPreparation:
    """Return the preparation of the model m.gguf in a folder; `draft` is its option."""
    source = source or ModelSource(lambda name: found_at(folder / f"{name}.gguf", name), lambda _: None)
    found = found_at(folder / "m.gguf", "m")
    return LoadPreparation(found, draft, EngineConfig(), source, adapters)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "lives")


@pytest.fixture
async def pool(shelf: Shelf) -> AsyncIterator[Pool]:
    pool = shelf.pool()
    await begin(pool)
    yield pool
    await pool.stop()


async def begin(pool: Pool) -> None:
    """Start a pool, and return once its own model is loaded."""
    await pool.start()
    await eventually(lambda: "mini" in loaded(pool))


async def answer(pool: Pool, model: str, **fields: object) -> Record:
    """Send a request to a model, and unload what has expired at its end, as the backend does."""
    record, request_id = Record(), f"{model}-{time.monotonic_ns()}"
    name = await pool.locate(model)
    pool.submit(request("answer 1", request_id, name, **fields), record)
    await record.end()
    pool.unload_expired()
    return record


def loaded(pool: Pool) -> set[str]:
    return {status.name for status in pool.statuses() if status.state is WorkerState.READY}


async def test_many_requests_load_a_model_once(pool: Pool, shelf: Shelf) -> None:
    records = await asyncio.gather(*(answer(pool, name) for name in ("m1", "m1", "mx", "m1")))
    assert [record.text for record in records] == ["0 "] * 4
    assert num_lives(shelf.lives) == 2  # with the default model
    assert shelf.offered == ["m1", "mx"]
    assert pool.find("mx") == "m1"


async def test_a_name_that_the_owner_changes_stands_for_the_other_model(pool: Pool, shelf: Shelf) -> None:
    assert await pool.locate("mx") == "m1"
    shelf.aliases["mx"] = "m2"
    assert await pool.locate("mx") == "m2"
    shelf.aliases["mx"] = "x-gone"
    shelf.aliases["builtin"] = "m1"
    with pytest.raises(ModelNotFound, match="not found"):
        pool.find("mx")
    assert pool.find("builtin") == pool.find("default") == "mini"  # it is served until the daemon ends


async def test_what_is_known_of_a_cache_belongs_to_the_file_and_not_to_its_name(
    pool: Pool, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = []
    for file in ("m1", "m1", "other"):
        monkeypatch.setattr(shelf, "resolve", lambda name, file=file: found_at(tmp_path / f"{file}.gguf", name))
        await answer(pool, "m1")
        known.append(pool.model("m1").prefixes)
        await pool.unload("m1")
    assert known[1] is known[0] is not known[2]


async def test_an_unknown_model_is_an_error_that_names_near_ones(pool: Pool) -> None:
    with pytest.raises(ModelNotFound, match=r"^model 'qwen' not found: this text is not found .* did you mean m1"):
        await pool.locate("qwen")
    assert {status.name for status in pool.statuses()} == {"mini"}


async def test_a_located_model_is_not_loaded_and_says_how_long_that_takes(pool: Pool) -> None:
    status = pool.model(await pool.locate("m1")).status()
    assert status.state is WorkerState.STOPPED
    assert status.ready_in_s is not None and status.ready_in_s > 0


async def test_the_least_recently_used_model_makes_room(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "lives", num_places=3)
    pool = shelf.pool()
    await begin(pool)
    for name in ("m1", "m2", "m1", "m3"):
        await answer(pool, name)
    assert loaded(pool) == {"mini", "m1", "m3"}  # the configured model is pinned
    await pool.stop()


async def test_a_model_is_rather_loaded_with_a_shorter_context_than_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A place holds half of what the model wants, and at least the minimum that it needs."""
    shelf = Shelf(tmp_path / "lives", num_places=2)
    pool = shelf.pool()
    await begin(pool)
    model = pool.model(await pool.locate("m1"))
    sizes = iter([(UNIT * 2, UNIT // 2)])
    weigh = model.preparation.load

    def load() -> Load:
        made = weigh()
        model.preparation.needed_bytes, model.preparation.least_bytes = next(sizes)
        return made

    with pytest.MonkeyPatch.context() as patched, caplog.at_level(logging.INFO):
        patched.setattr(model.preparation, "load", load)
        assert (await answer(pool, "m1")).text == "0 "
    assert "m1 is loaded with a shorter context: there is no room for m1" in caplog.text
    assert 0 < model.room_bytes < UNIT * 2
    await pool.stop()


async def test_a_model_that_serves_stays_and_the_error_tells_the_numbers(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "lives", num_places=2)
    pool = shelf.pool()
    pool._eviction._wake_after_s = 0.0
    await begin(pool)
    serving = Record()
    pool.submit(request("wait 1", "long", await pool.locate("m1")), serving)
    await serving.until(lambda record: bool(record.text))
    refused = await answer(pool, "m2")
    assert isinstance(refused.error, BackendUnavailable)
    assert "no room for m2" in refused.error.message and "m1 takes 0.2 GiB and is serving" in refused.error.message
    assert loaded(pool) == {"mini", "m1"}
    await pool.stop()


async def test_at_most_so_many_models(shelf: Shelf) -> None:
    pool = shelf.pool(max_models=2)
    await begin(pool)
    for name in ("m1", "m2", "m3"):
        await answer(pool, name)
    assert loaded(pool) == {"mini", "m3"}
    await pool.stop()


async def test_only_as_many_models_leave_as_one_needs_the_place_of(shelf: Shelf) -> None:
    pool = shelf.pool(max_models=3)
    await begin(pool)
    for name in ("m1", "m2", "m3"):
        await answer(pool, name)
    assert loaded(pool) == {"mini", "m2", "m3"}
    await pool.stop()


async def test_the_memory_of_a_model_that_is_leaving_is_waited_for(tmp_path: Path) -> None:
    """A worker that is ending still holds its memory, so no second model needs to be unloaded."""
    shelf = Shelf(tmp_path / "lives", num_places=3)
    pool = shelf.pool()
    pool._eviction._read = lambda pids: shelf.read([*pids, *range(-len(pool._eviction._ending), 0)])
    await begin(pool)
    for name in ("m1", "m2", "m3"):
        await answer(pool, name)
    assert loaded(pool) == {"mini", "m2", "m3"}
    await pool.stop()


async def test_without_keep_alive_a_model_leaves_at_the_end_of_its_request(shelf: Shelf) -> None:
    pool = shelf.pool(keep_alive=0)
    await begin(pool)
    await answer(pool, "m1")
    assert loaded(pool) == {"mini"}
    await answer(pool, "m1")  # it is loaded again
    assert num_lives(shelf.lives) == 3
    await pool.stop()


async def test_a_request_says_how_long_its_model_is_kept(pool: Pool) -> None:
    await answer(pool, "m1", keep_alive_s=math.inf)
    assert pool.model("m1").status().unload_in_s is None
    await answer(pool, "m1", keep_alive_s=300.0)
    assert 0 < (pool.model("m1").status().unload_in_s or 0) <= 300
    await answer(pool, "m1", keep_alive_s=0.0)
    assert loaded(pool) == {"mini"}


async def test_unloading_waits_for_the_requests_and_a_request_loads_again(pool: Pool, shelf: Shelf) -> None:
    serving = Record()
    pool.submit(request("wait 1", "long", await pool.locate("m1")), serving)
    await serving.until(lambda record: bool(record.text))
    assert await pool.unload("m1") == 1
    assert loaded(pool) == {"mini", "m1"}
    pool.cancel("long")
    await serving.end()
    pool.unload_expired()
    await eventually(lambda: loaded(pool) == {"mini"})
    assert await pool.unload("mini") == 0
    assert loaded(pool) == set()
    assert (await answer(pool, "")).text == "0 "
    assert num_lives(shelf.lives) == 3


async def test_a_model_does_not_wait_for_what_another_one_computes_ahead(shelf: Shelf) -> None:
    pool = shelf.pool(max_models=2)
    await begin(pool)
    ahead = Record()
    pool.submit(request("stream", "ahead", await pool.locate("m1"), is_ahead=True), ahead)
    await ahead.until(lambda record: bool(record.text))
    assert (await answer(pool, "m2")).text == "0 "
    assert (await ahead.end()).finished.reason is FinishReason.CANCELLED
    assert loaded(pool) == {"mini", "m2"}
    await pool.stop()


async def test_another_model_does_not_wait_behind_a_load(shelf: Shelf) -> None:
    pool = shelf.pool(starts=("ok", "stall", "ok"))  # the second worker loads forever
    await begin(pool)
    stalled = Record()
    pool.submit(request("answer 1", "stalled", await pool.locate("m1")), stalled)
    await eventually(lambda: num_lives(shelf.lives) == 2)
    assert (await answer(pool, "m2")).text == "0 "
    assert stalled.num_ends == 0
    await pool.stop()


async def test_preloaded_models_are_loaded_at_the_start_and_pinned(shelf: Shelf) -> None:
    pool = shelf.pool(preload=("m1", "m2"), max_models=3)
    await begin(pool)
    await eventually(lambda: loaded(pool) == {"mini", "m1", "m2"})
    assert all(status.is_pinned for status in pool.statuses())
    await pool.stop()


async def test_a_model_has_options_of_its_own_under_any_of_its_names(shelf: Shelf) -> None:
    own = ModelConfig(engine={"ctx": 77}, keep_alive="1h", draft="m9")
    pool = shelf.pool(models={"mx": own, "m2": ModelConfig(preload=True)}, keep_alive="5m")
    await begin(pool)
    await eventually(lambda: "m2" in loaded(pool))
    for name in ("m1", "m3"):
        await answer(pool, name)
    assert [pool.model(name).preparation.engine.ctx for name in ("mini", "m1", "m2", "m3")] == [0, 77, 0, 0]
    assert 3000 < (pool.model("m1").status().unload_in_s or 0) <= 3600
    assert 0 < (pool.model("m3").status().unload_in_s or 0) <= 300
    assert pool.model("m2").status().is_pinned
    paths = pool._models["m1"].preparation.files.paths
    assert [path.name for path in paths] == ["m1.gguf", "m9.gguf"]
    await pool.stop()


async def test_where_the_machine_is_short_of_memory_an_idle_model_leaves(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = shelf.pool()
    await begin(pool)
    await answer(pool, "m1")
    monkeypatch.setattr("edgeagent.worker.parent.pool.pool.read_pressure", lambda: "memory")
    await eventually(lambda: loaded(pool) == {"mini"})
    await pool.stop()


async def test_the_machine_is_still_looked_at_after_a_moment_without_descriptors(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([OSError(errno.EMFILE, "Too many open files")] * 3)

    def look() -> str:
        if (error := next(looks, None)) is not None:
            raise error
        return "memory"

    pool = shelf.pool()
    await begin(pool)
    await answer(pool, "m1")
    monkeypatch.setattr("edgeagent.worker.parent.pool.pool.read_pressure", look)
    await eventually(lambda: loaded(pool) == {"mini"})
    await pool.stop()


async def test_a_machine_that_is_hot_again_and_again_is_held_back_once(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = itertools.chain(["thermal", "", "thermal", "", "memory", "thermal"], itertools.repeat(""))
    monkeypatch.setattr("edgeagent.worker.parent.pool.pool.read_pressure", lambda: next(looks))
    monkeypatch.setattr("edgeagent.worker.parent.pool.pool.HOLD_S", 0.5)
    caplog.set_level(logging.INFO, "edgeagent.worker.parent.pool.pool")
    pool = shelf.pool()
    await begin(pool)
    await eventually(lambda: "again" in caplog.text)
    words = [each.getMessage() for each in caplog.records if "threads" in each.getMessage()]
    assert words == [
        "the machine is too hot: models compute with 50 % of their threads",
        "models compute with all of their threads again",
    ]
    await pool.stop()


async def test_a_battery_is_saved_if_the_owner_says_so_and_routes_stay(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edgeagent.worker.parent.pool.pool.read_pressure", lambda: "unplugged")
    pool = shelf.pool(on_battery="half")
    await begin(pool)
    why = "the machine runs on its battery (load.on_battery)"
    await eventually(lambda: f"{why}: models compute with 50 % of their threads" in caplog.text)
    assert pool.pressure == ""
    await pool.stop()


async def test_a_model_with_an_adapter_is_the_same_worker(shelf: Shelf, tmp_path: Path) -> None:
    pool = shelf.pool(models={"m1": ModelConfig(adapters={"one": tmp_path / "a.gguf"})})
    await begin(pool)
    assert (await answer(pool, "mx+one")).text == (await answer(pool, "m1")).text == "0 "
    assert num_lives(shelf.lives) == 2
    assert await pool.locate("m1+one") == await pool.locate("mx+one") == pool.find("m1+one") == "m1+one"
    assert pool.model("m1+one").name == "m1" and pool.model("m1").status().names == ("m1", "m1+one")
    sent: list[GenerateRequest] = []
    model = pool.model("m1")
    model.supervisor.submit = lambda request, *_: sent.append(request)  # type: ignore[method-assign]
    for name in ("m1+one", "m1"):
        pool.submit(request("answer 1", "r", name), Record())
    assert [each.adapter for each in sent] == ["one", ""]
    for name in ("m1+two", "mini+one", "m1+"):
        with pytest.raises(ModelNotFound, match="not found"):
            await pool.locate(name)
    with pytest.raises(ModelNotFound, match="m1 has these adapters: one"):
        await pool.locate("m1+two")
    with pytest.raises(NotSupported, match="not its embeddings"):
        await pool.ask("m1+one", Embed((TextPrompt("x"),)))
    await pool.stop()


async def test_the_default_may_have_an_adapter(shelf: Shelf, tmp_path: Path) -> None:
    adapters = {"one": tmp_path / "a.gguf", "two": tmp_path / "b.gguf"}
    config = Config(model="m1+one", models={"m1": ModelConfig(adapters=adapters)})
    command = stub_command(shelf.lives)
    pool = Pool(
        config,
        ModelSource(shelf.offer, lambda _: None, offer=shelf.offer),
        command=command,
        limits=QUICK,
        read=shelf.read,
    )
    await pool.start()
    assert pool.default() == pool.find("") == pool.find("default") == "m1+one"
    assert pool.find("default+two") == "m1+two" and pool.find("m1") == "m1"
    assert [status.is_pinned for status in pool.statuses()] == [True]
    await pool.stop()
    config = Config(model="m1+three", models={"m1": ModelConfig(adapters=adapters)})
    pool = Pool(
        config,
        ModelSource(shelf.offer, lambda _: None, offer=shelf.offer),
        command=command,
        limits=QUICK,
        read=shelf.read,
    )
    with pytest.raises(ModelNotFound, match="m1 has these adapters: one, two"):
        await pool.start()


@pytest.mark.parametrize(
    "error",
    [
        ModelNotFound("there is no file b.gguf"),
        ModelDamaged("b.gguf is damaged"),
        ModelLoadFailed("b.gguf is not a regular file"),
        StoreError("b.gguf cannot be read"),
    ],
)
async def test_a_model_is_loaded_without_an_adapter_that_cannot_be_used(
    tmp_path: Path, error: EdgeAgentError, caplog: pytest.LogCaptureFixture
) -> None:

    def check(path: Path) -> None:
        if path.name == "b.gguf":
            raise error

    paths = {"one": tmp_path / "a.gguf", "two": tmp_path / "b.gguf"}
    source = ModelSource(lambda name: found_at(tmp_path / name, name), lambda _: None, validate_adapter=check)
    preparation = prepared(tmp_path, source, paths)
    load = preparation.load()
    assert load.adapters == {"one": str(paths["one"])}
    assert load.unusable_adapters == {"two": error.message}
    assert f"m is loaded without its adapter two: {error.message}" in caplog.text


def test_an_adapter_that_ended_the_process_is_left_out_until_it_is_replaced(tmp_path: Path) -> None:
    paths = {"one": tmp_path / "a.gguf", "two": tmp_path / "b.gguf"}
    for path in paths.values():
        path.write_bytes(b"x")
    preparation = prepared(tmp_path, adapters=paths)
    assert preparation.load().adapters.keys() == paths.keys()
    assert not preparation.fatal.omit("the tokenizer of m.gguf", "SIGSEGV")
    assert preparation.fatal.omit(adapter_part(str(paths["two"])), "SIGSEGV")
    load = preparation.load()
    assert load.adapters.keys() == {"one"}
    assert load.unusable_adapters == {"two": f"{paths['two']} ended the process that tried it (SIGSEGV)"}
    assert not preparation.fatal.omit(adapter_part(str(paths["two"])), "SIGSEGV"), "it was not tried again"
    paths["two"].write_bytes(b"other")
    assert preparation.load().adapters.keys() == paths.keys()


def test_a_draft_that_ended_the_process_is_left_out_until_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "d.gguf"
    for each in (tmp_path / "m.gguf", path):
        each.write_bytes(b"x")
    preparation = prepared(tmp_path, draft="d")
    load = preparation.load()
    assert (load.draft_path, load.draft_why, load.draft_by) == (str(path), "you named it", "option")
    assert not preparation.fatal.omit(draft_part("/another.gguf"), "SIGSEGV")
    assert preparation.fatal.omit(draft_part(str(path)), "SIGSEGV")
    load = preparation.load()
    assert load.draft_path is None and load.draft_by == "trial"
    assert load.draft_why == f"{path} ended the process that tried it (SIGSEGV); get the file again"
    assert not preparation.fatal.omit(draft_part(str(path)), "SIGSEGV"), "it was not tried again"
    path.write_bytes(b"other")
    assert preparation.load().draft_path == str(path)


def test_drafts_whose_removal_ended_the_process_are_left_out_until_the_model_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    preparation = prepared(tmp_path)
    assert preparation.load().why_no_drafts == ""
    assert preparation.fatal.omit(rewind_part(str(path)), "SIGABRT")
    assert preparation.load().why_no_drafts == "removing refused drafts ended the process (SIGABRT)"
    path.write_bytes(b"other")
    assert preparation.load().why_no_drafts == ""


@pytest.mark.parametrize("option", ["none", "ngram"])
def test_why_there_is_no_draft_model_where_none_is_asked_for(tmp_path: Path, option: str) -> None:
    load = prepared(tmp_path, draft=option).load()
    assert (load.draft_path, load.draft_why, load.draft_by) == (None, f"--draft {option}", "option")


def test_a_projector_and_its_encoder_take_memory(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "m.gguf", MemoryKind.FULL_ATTENTION)
    source = ModelSource(lambda name: found_at(tmp_path / name, name), validate_model)
    sizes = list[tuple[int, int, int]]()
    for _ in range(2):
        preparation = prepared(tmp_path, source)
        load = preparation.load()
        sizes.append((preparation.needed_bytes, preparation.least_bytes, load.projector_bytes))
        taken = memory_bytes(make_projector(tmp_path / "mmproj-m.gguf", "gemma3"))
    assert sizes[1] == (sizes[0][0] + taken, sizes[0][1] + taken, taken) and sizes[0][2] == 0


async def test_adapters_are_checked_and_given_to_the_worker(tmp_path: Path) -> None:
    checked: list[Path] = []
    paths = {"one": tmp_path / "a.gguf", "two": tmp_path / "b.gguf"}
    for path in (*paths.values(), tmp_path / "m.gguf"):
        path.write_bytes(b"x")
    source = ModelSource(lambda name: found_at(tmp_path / name, name), lambda _: None, validate_adapter=checked.append)
    preparation = prepared(tmp_path, source, paths)
    load = preparation.load()
    assert checked == list(paths.values()) and load.adapters == {name: str(path) for name, path in paths.items()}
    assert preparation.weigh() == 3
    paths["one"].write_bytes(b"other")
    assert preparation.files.are_replaced() and preparation.load().identity != load.identity
