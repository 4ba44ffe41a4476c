"""A draft model starts at the end of its own blocks, also after a restart of the worker."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from edgeagent.cache_folder import list_parts, purge
from edgeagent.config import EngineConfig
from edgeagent.engine.cache.cached_prefix import Restoring
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.llama import fingerprint
from edgeagent.engine.runner import Slice
from edgeagent.types import CachePolicy, MemoryKind
from edgeagent.worker.child.opening import Opened, open_model
from edgeagent.worker.protocol import Load
from tests.integration import test_disk_cache_host
from tests.integration.test_disk_cache_host import PROMPT, Machine
from tests.models import make_tiny_model

CONFIG = EngineConfig(ctx=1024, batch=32, threads=1, flash_attention="on", draft_tokens=4, parallel=2)
NEXT = PROMPT + "And then?"


@pytest.fixture(autouse=True)
def _always_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore all cached blocks, even if a busy machine would compute them faster."""
    monkeypatch.setattr(CostModel, "prefill_s", lambda *_: None)


class Pair(Machine):
    """One run of a worker whose draft model drafts at each step; counts the tokens that the draft computes."""

    def __init__(self, folder: Path, config: EngineConfig = CONFIG) -> None:
        super().__init__(folder / "tiny.gguf", folder / "cache", config, draft=folder / "draft.gguf")
        self.draft_tokens = 3
        proposals = self._host.engine.proposals
        proposals.drafters = replace(proposals.drafters, ngrams=None)
        self._wait_for_blocks()
        runner = self._host._runners[1]
        decode = runner.decode
        self.num_computed = 0

        def counted(slices: Items[Slice], min_tokens: int = 0) -> None:
            self.num_computed += sum(len(part.tokens) for part in slices)
            decode(slices, min_tokens)

        runner.decode = counted  # type: ignore[method-assign]

    def _wait_for_blocks(self) -> None:
        """Make each step of the draft wait for its blocks, so that the machine's speed does not matter."""
        model = self._host.engine.proposals.drafters.model
        assert model is not None
        restorer, advance = model.prefixes.restorer, model.prefixes.restorer.advance

        def patient(restoring: Restoring, budget_s: float) -> bool:
            while not advance(restoring, budget_s):
                restorer.wait([restoring], 10.0)
            return True

        restorer.advance = patient  # type: ignore[method-assign]

    def ask_drafted(self, prompt: str, cache: CachePolicy | None = None) -> tuple[list[int], int, int]:
        """Return a greedy answer, the number of cached prompt tokens, and how many tokens the draft computed."""
        before = self.num_computed
        answer, num_cached = self.ask(prompt, cache)
        return answer, num_cached, self.num_computed - before


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its draft."""
    made = tmp_path_factory.mktemp("models")
    make_tiny_model(made / "tiny.gguf", MemoryKind.FULL_ATTENTION, num_heads=2)
    make_tiny_model(made / "draft.gguf", MemoryKind.FULL_ATTENTION, num_heads=2, num_layers=1)
    return made


@pytest.fixture(scope="module")
def expected(models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The answers without a draft."""
    machine = Machine(models / "tiny.gguf", tmp_path_factory.mktemp("reference") / "cache", CONFIG)
    answers = {prompt: machine.ask(prompt, CachePolicy(read=False, write=False))[0] for prompt in (PROMPT, NEXT)}
    machine.close()
    return answers


@pytest.fixture(scope="module")
def first_run(models: Path, expected: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models, and the blocks of a first run, which began with an empty folder. Tests take copies."""
    folder = tmp_path_factory.mktemp("first")
    shutil.copytree(models, folder, dirs_exist_ok=True)
    pair = Pair(folder)
    answer, num_cached, num_drafted = pair.ask_drafted(PROMPT)
    assert (answer, num_cached) == (expected[PROMPT], 0)
    assert num_drafted > 300, "all of the prompt"
    pair.close()
    return folder


@pytest.fixture
def folder(models: Path, tmp_path: Path) -> Path:
    """The models alone. A copy has the times of its files, by which a block knows its model."""
    return Path(shutil.copytree(models, tmp_path, dirs_exist_ok=True))


@pytest.fixture
def kept(first_run: Path, tmp_path: Path) -> Path:
    """A folder with the blocks of a first run."""
    return Path(shutil.copytree(first_run, tmp_path, dirs_exist_ok=True))


def test_after_a_restart_the_draft_computes_hardly_any_of_the_prompt(
    kept: Path, expected: dict[str, list[int]]
) -> None:
    pair = Pair(kept)
    answer, num_cached, num_drafted = pair.ask_drafted(PROMPT)
    assert answer == expected[PROMPT]
    assert num_cached > 300
    assert 0 < num_drafted < 100
    answer, num_cached, num_drafted = pair.ask_drafted(NEXT)
    assert answer == expected[NEXT]
    assert num_cached > 300
    assert 0 < num_drafted < 100
    assert pair.notes == ()
    pair.close()


def _other_file(kept: Path, _: pytest.MonkeyPatch) -> None:
    make_tiny_model(kept / "draft.gguf", MemoryKind.FULL_ATTENTION, num_heads=2, num_layers=1, seed=1)


def _other_shape(kept: Path, _: pytest.MonkeyPatch) -> None:
    make_tiny_model(kept / "draft.gguf", MemoryKind.FULL_ATTENTION, num_heads=2, num_layers=2)


def _other_cells(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the draft another KV type than its target, as when memory is short."""

    def opened(load: Load) -> Opened:
        found = open_model(load)
        cells = {"kv_type_k": "q8_0", "kv_type_v": "q8_0"}
        return replace(found, draft_config=structs.replace(found.draft_config, **cells))

    monkeypatch.setattr(test_disk_cache_host, "open_model", opened)


@pytest.mark.parametrize("change", [_other_file, _other_shape, _other_cells])
def test_what_another_draft_left_is_used_for_the_target_only(
    kept: Path,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    change(kept, monkeypatch)
    for is_known in (False, True):
        pair = Pair(kept)
        answer, num_cached, num_drafted = pair.ask_drafted(PROMPT)
        assert answer == expected[PROMPT]
        assert num_cached > 300
        assert num_drafted < 100 if is_known else num_drafted > 300
        pair.close()


def test_another_build_finds_neither(
    kept: Path, expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "commit", lambda: "another")
    pair = Pair(kept)
    assert pair.ask_drafted(PROMPT)[:2] == (expected[PROMPT], 0)
    assert pair.num_computed > 300
    pair.close()


def test_what_a_model_left_for_itself_is_not_a_drafts(folder: Path, expected: dict[str, list[int]]) -> None:
    """A target's blocks were computed in other batches: the draft must not use them, even with the same file."""
    shutil.copy2(folder / "tiny.gguf", folder / "draft.gguf")
    machine = Machine(folder / "draft.gguf", folder / "cache", CONFIG)
    machine.ask(PROMPT)
    machine.close()
    pair = Pair(folder)
    assert pair.ask_drafted(PROMPT)[0] == expected[PROMPT]
    assert pair.num_computed > 300
    pair.close()


def _is_drafts(path: Path) -> bool:
    return path.read_bytes()[10] == 1


def _spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [_spoil, _cut, Path.unlink])
def test_damaged_blocks_of_the_draft_never_hurt_the_target(
    kept: Path, expected: dict[str, list[int]], harm: Callable[[Path], None]
) -> None:
    drafts = [path for path in (kept / "cache").glob("*.kv") if _is_drafts(path)]
    assert len(drafts) == 2
    for path in drafts:
        harm(path)
    pair = Pair(kept)
    answer, num_cached, num_drafted = pair.ask_drafted(PROMPT)
    assert answer == expected[PROMPT]
    assert num_cached > 300
    assert num_drafted > 300
    pair.close()


@pytest.mark.parametrize("harm", [_spoil, Path.unlink])
def test_the_draft_stays_warm_where_the_targets_blocks_are_gone(
    kept: Path, expected: dict[str, list[int]], harm: Callable[[Path], None]
) -> None:
    for path in (kept / "cache").glob("*.kv"):
        if not _is_drafts(path):
            harm(path)
    pair = Pair(kept)
    answer, num_cached, num_drafted = pair.ask_drafted(PROMPT)
    assert answer == expected[PROMPT]
    assert num_cached == 0
    assert num_drafted < 100
    pair.close()


def test_a_folder_serves_with_a_draft_and_without(folder: Path, expected: dict[str, list[int]]) -> None:
    num_drafted = []
    for life, has_draft in enumerate((False, True, False, True)):
        machine = Pair(folder) if has_draft else Machine(folder / "tiny.gguf", folder / "cache", CONFIG)
        answer, num_cached = machine.ask(PROMPT)
        assert answer == expected[PROMPT]
        assert (num_cached > 300) == (life > 0)
        if isinstance(machine, Pair):
            num_drafted.append(machine.num_computed)
        machine.close()
    assert num_drafted[0] > 300
    assert num_drafted[1] < 100


def test_a_draft_with_a_window_changes_no_answer(folder: Path, expected: dict[str, list[int]]) -> None:
    make_tiny_model(folder / "draft.gguf", MemoryKind.SLIDING_WINDOW, num_heads=2, num_layers=1)
    for life in range(2):
        pair = Pair(folder)
        for prompt in (PROMPT, NEXT):
            answer, num_cached = pair.ask(prompt)
            assert answer == expected[prompt]
            assert (num_cached > 300) == (life > 0 or prompt is NEXT)
        pair.close()


def test_nothing_of_the_draft_is_written_that_must_not_be(folder: Path) -> None:
    pair = Pair(folder)
    pair.ask_drafted(PROMPT, CachePolicy(persist=False))
    pair.idle()
    pair.ask_drafted(NEXT, CachePolicy(write=False))
    pair.close()
    assert pair.num_computed > 300
    assert not list((folder / "cache").glob("*.kv"))


def test_a_client_is_purged_with_what_the_draft_keeps(kept: Path) -> None:
    parts = list_parts(kept / "cache")
    assert {part.record.model for part in parts if part.record} == {"tiny", "draft.gguf (draft)"}
    assert {part.record.client for part in parts if part.record} == {""}
    pair = Pair(kept)
    assert pair._host.engine.purge("") == 4
    pair.close()
    assert not list((kept / "cache").glob("*.kv"))


def test_an_offline_purge_finds_the_drafts_blocks_too(kept: Path) -> None:
    assert purge(kept / "cache", "another") == 0
    assert purge(kept / "cache", "") == 4
    assert not list((kept / "cache").glob("*.kv"))
