"""Drafts that cannot be used, with real workers: the model answers without them, and its status says why."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from msgspec import structs

from edgeagent.config import Config, EngineConfig, StoreConfig
from edgeagent.errors import EdgeAgentError, ModelLoadFailed, ModelNotFound
from edgeagent.store.drafts import DraftFinder, FoundDraft
from edgeagent.store.gguf.header import read_header, validate_model
from edgeagent.store.library import Found, Library
from edgeagent.types import MemoryKind, ModelInfo, WorkerState, replace
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from edgeagent.worker.protocol import Load
from tests.conftest import TinyModel
from tests.local_template import open_here
from tests.models import make_tiny_model
from tests.worker.support import Record, found_at, request

ENGINE = EngineConfig(threads=1, ctx=512)
END = "tokenizer.ggml.eos_token_id"


def make_draft(path: Path) -> Path:
    return make_tiny_model(path, MemoryKind.FULL_ATTENTION, seed=1, num_layers=1)


def with_a_value(path: Path, key: str, value: float) -> Path:
    reader = gguf.GGUFReader(make_draft(path), "r+")
    field = reader.get_field(key)
    assert field is not None
    field.parts[field.data[0]][0] = value
    reader.data.flush()
    return path


def with_bytes(path: Path, old: bytes, new: bytes, after: bytes = b"") -> Path:
    content = make_draft(path).read_bytes()
    at = content.index(old, content.index(after))
    path.write_bytes(content[:at] + new + content[at + len(old) :])
    return path


def with_nan_epsilon(path: Path) -> Path:
    return with_a_value(path, "llama.attention.layer_norm_rms_epsilon", math.nan)


def with_nan_weights(path: Path) -> Path:
    reader = gguf.GGUFReader(make_draft(path), "r+")
    for tensor in reader.tensors:
        if "ffn_down" in tensor.name:
            tensor.data[:] = math.nan
    reader.data.flush()
    return path


def of_unknown_architecture(path: Path) -> Path:
    return with_bytes(path, b"llama", b"lxama", b"general.architecture")


def without_a_tensor(path: Path) -> Path:
    return with_bytes(path, b"blk.0.ffn_down.weight", b"blk.0.ffn_dowm.weight")


def with_another_token(path: Path) -> Path:
    return with_bytes(path, b"<think>", b"<thonk>", b"tokenizer.ggml.tokens")


def of_another_kind(path: Path) -> Path:
    return make_tiny_model(path, MemoryKind.RECURRENT, seed=1)


def that_is_missing(path: Path) -> Path:
    return path


@pytest.fixture
def target(tiny_model: TinyModel) -> Path:
    return tiny_model(MemoryKind.FULL_ATTENTION)


async def serve(pool: Pool) -> ModelInfo:
    """Get an answer, and return what is known of the model."""
    try:
        await pool.start()
        record = Record()
        pool.submit(request("hello", max_tokens=5), record)
        await record.end()
        if record.error is not None:
            raise record.error
        assert len(record.tokens) == 5
        (status,) = pool.statuses()
        assert status.state is WorkerState.READY and status.num_restarts == 0
        assert status.info is not None
        return status.info
    finally:
        await pool.stop()


def make_pool(target: Path, draft: Path | None, *, is_named: bool = False) -> Pool:
    """Return a pool of a model with a draft that the user named, or that was found."""

    def resolve(name: str) -> Found:
        if Path(name) == draft and not draft.exists():
            raise ModelNotFound(f"{draft} does not exist: check the path")
        return found_at(Path(name))

    option = str(draft) if is_named else "auto"
    return Pool(
        Config(model=str(target), draft=option, engine=ENGINE),
        ModelSource(
            resolve,
            validate_model,
            find_draft=lambda _model, _header: FoundDraft(draft, "it was found"),
        ),
    )


def warnings(log: pytest.LogCaptureFixture) -> str:
    return "\n".join(each.getMessage() for each in log.records if each.levelno >= logging.WARNING)


@pytest.mark.daily(2, seconds=1)
@pytest.mark.parametrize(
    ("damage", "why", "is_named"),
    [
        (with_nan_weights, "not numbers (NaN)", True),
        (with_nan_epsilon, "ended the process that tried it (SIGABRT", False),
        (with_nan_epsilon, "ended the process that tried it (SIGABRT", True),
        (that_is_missing, "check the path", False),
        (that_is_missing, "check the path", True),
    ],
)
async def test_an_unusable_draft_is_a_warning(
    damage: Callable[[Path], Path],
    why: str,
    is_named: bool,
    target: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = damage(tmp_path / "draft.gguf")
    info = await serve(make_pool(target, path, is_named=is_named))
    check_left_out(info, why)
    assert why in warnings(caplog)


def check_left_out(info: ModelInfo, why: str) -> None:
    assert info.draft == "ngram" and why in info.draft_why
    (choice,) = [each for each in info.choices if each.name == "draft"]
    assert (choice.value, choice.by, choice.why) == ("ngram", "trial", info.draft_why)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (with_nan_weights, "not numbers (NaN)"),
        (of_unknown_architecture, "unknown model architecture"),
        (without_a_tensor, "'blk.0.ffn_down.weight' not found"),
        (of_another_kind, "refused tokens cannot be removed"),
    ],
)
@pytest.mark.parametrize("by", ["auto", "option"])
def test_a_worker_leaves_an_unusable_draft_out_and_answers(
    damage: Callable[[Path], Path], why: str, by: str, target: Path, tmp_path: Path
) -> None:
    """The same without a process of its own: these drafts end none."""
    load = Load("tiny", str(target), str(damage(tmp_path / "draft.gguf")), ENGINE, draft_by=by)
    host = Host(load, open_model(load), open_here)
    check_left_out(host.info, why)
    assert any(why in each for each in host.warnings)
    host.engine.add(host.prepare(request("hello", max_tokens=5)).spec)
    assert sum(len(output.tokens) for _ in range(20) for output in host.engine.step()) == 5
    host.close()


def test_n_grams_stay_where_they_are_asked_for(target: Path, tmp_path: Path) -> None:
    config = replace(ENGINE, draft_ngrams=True)
    load = Load("tiny", str(target), str(with_nan_weights(tmp_path / "draft.gguf")), config)
    host = Host(load, open_model(load), open_here)
    assert host.info.draft == "ngram" and "NaN" in host.info.draft_why
    host.close()


async def test_a_draft_that_ended_the_process_is_tried_again_when_it_is_replaced(target: Path, tmp_path: Path) -> None:
    path = with_nan_epsilon(tmp_path / "draft.gguf")
    pool = make_pool(target, path)
    try:
        await pool.start()
        for is_good in (False, True):
            if is_good:
                shutil.copyfile(make_draft(tmp_path / "good.gguf"), path)
                pool.reload("")
            record = Record()
            pool.submit(request("hello", f"r{is_good}", max_tokens=2), record)
            await record.end()
            assert record.error is None
            (status,) = pool.statuses()
            assert status.info is not None
            assert status.info.draft == (str(path) if is_good else "ngram")
    finally:
        await pool.stop()


async def test_a_mismatch_is_refused_only_if_the_user_named_the_draft(target: Path, tmp_path: Path) -> None:
    path = with_another_token(tmp_path / "draft.gguf")
    with pytest.raises(ModelLoadFailed, match=r"token \d+ is '<think>' in .*must share"):
        await serve(make_pool(target, path, is_named=True))
    info = await serve(make_pool(target, path))
    assert info.draft == "ngram" and "token " in info.draft_why


async def test_other_end_tokens_are_no_difference(target: Path, tmp_path: Path) -> None:
    path = with_a_value(tmp_path / "draft.gguf", END, 5)
    info = await serve(make_pool(target, path))
    assert (info.draft, info.draft_why) == (str(path), "it was found")


def test_without_memory_for_both_the_model_is_alone(target: Path, tmp_path: Path) -> None:
    path = make_draft(tmp_path / "draft.gguf")
    large = structs.replace(read_header(path).shape, num_bytes=1 << 50)
    shapes = (read_header(target).shape, large)
    load = Load("tiny", str(target), str(path), ENGINE, shapes=shapes)
    host = Host(load, open_model(load), open_here)
    assert host.info.draft == "ngram" and host.info.context_length == 512
    assert "too little for both" in host.info.draft_why
    assert any("runs without its draft" in each for each in host.warnings)
    (choice,) = [each for each in host.info.choices if each.name == "draft"]
    assert choice.by == "memory"
    host.close()


def real_pool(config: Config) -> Pool:
    library = Library.of(config)
    finder = DraftFinder(library)
    return Pool(config, ModelSource(library.resolve, validate_model, find_draft=finder.find))


async def test_a_model_given_by_path_finds_its_draft(tmp_path: Path) -> None:
    target = make_tiny_model(tmp_path / "target.gguf", MemoryKind.FULL_ATTENTION, num_layers=12)
    models = tmp_path / "models"
    models.mkdir()
    store = StoreConfig(models_dir=models)
    config = Config(model=str(target), state_dir=tmp_path / "state", engine=ENGINE, store=store)
    with_another_token(models / "other.gguf")
    info = await serve(real_pool(config))
    assert info.draft == "ngram"
    assert info.draft_why == "no model on this machine has its vocabulary and at most a quarter of its size"
    path = make_draft(models / "little.gguf")
    info = await serve(real_pool(config))
    assert info.draft is not None and Path(info.draft) == path
    assert info.draft_why == "little on this machine has the same vocabulary"


@pytest.mark.parametrize("draft", ["no-such-model", "/no/such.gguf"])
async def test_a_named_draft_that_is_not_here(
    target: Path, tmp_path: Path, draft: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(model=str(target), draft=draft, state_dir=tmp_path / "state", engine=ENGINE)
    try:
        info = await serve(real_pool(config))
    except EdgeAgentError as error:
        pytest.fail(error.message)
    assert info.draft == "ngram" and Path(draft).name in info.draft_why
    assert Path(draft).name in warnings(caplog)
