"""Every kind of memory is restored exactly from disk: a model's host, its engine and its store, without a daemon."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from edgeagent.cache_folder import parse_name
from edgeagent.config import EngineConfig, KvType
from edgeagent.engine.cache.block import MAX_BLOCK_TOKENS, MIN_PART, common_length
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.llama import fingerprint
from edgeagent.engine.runner import CUTTABLE
from edgeagent.engine.sequence import Sequence
from edgeagent.types import (
    CachePolicy,
    ChatPrompt,
    GenerateRequest,
    MemoryKind,
    Message,
    SamplingParams,
    TextPrompt,
    Tool,
    replace,
)
from edgeagent.worker.child.generator import host
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.child.process import start_block_store
from edgeagent.worker.protocol import DiskCache, Load
from tests.local_template import open_here
from tests.models import MEMORIES, make_tiny_model
from tests.patience import patient

PROMPT = "The cat sat on the mat and the dog on the log, and they were there all day. " * 8


@pytest.fixture(autouse=True)
def _always_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore all cached blocks, even if a busy machine would compute them faster."""
    monkeypatch.setattr(CostModel, "prefill_s", lambda *_: None)


class Machine:
    """One run of a worker with this model and this folder."""

    def __init__(self, model: Path, folder: Path, config: EngineConfig, *, draft: Path | None = None) -> None:
        disk = DiskCache(str(folder), b"s" * 32, 1 << 30, 0, 86400.0, 0, close_s=patient(30))
        load = Load("tiny", str(model), None if draft is None else str(draft), config, disk=disk)
        self._host = Host(load, open_model(load), open_here, store=start_block_store(disk))
        self.notes = self._host.notes
        self._num_requests = 0
        self.draft_tokens: int | None = None  # limit for its requests; None: the default
        self.max_tokens = 12  # of an answer
        self.first: list[int] = []  # the tokens of the first prompt

    def ask(self, prompt: str, cache: CachePolicy | None = None) -> tuple[list[int], int]:
        """Return the tokens of a greedy answer, and the number of cached prompt tokens."""
        tokens, sequence = self.run(TextPrompt(prompt), cache)
        return tokens, sequence.num_cached

    def run(self, prompt: TextPrompt | ChatPrompt, cache: CachePolicy | None = None) -> tuple[list[int], Sequence]:
        """Return the tokens of a greedy answer, and the engine's sequence."""
        self._num_requests += 1
        request = GenerateRequest(
            id=f"request {self._num_requests}",
            model="tiny",
            prompt=prompt,
            sampling=SamplingParams(temperature=0.0),
            max_tokens=self.max_tokens,
            cache=cache or CachePolicy(),
            draft_tokens=self.draft_tokens,
        )
        engine = self._host.engine
        sequence = engine.add(self._host.prepare(request).spec)
        self.first = self.first or list(sequence.spec.prompt)
        tokens: list[int] = []
        while True:
            for output in engine.step():
                tokens += output.tokens
                assert output.error is None
                if output.finish_reason is not None:
                    return tokens, sequence

    def bytes_in_memory(self) -> int:
        """Return the number of bytes in host memory."""
        return self._host.engine.memory_cache().num_bytes

    def idle(self) -> None:
        """Let the engine do its idle work."""
        while self._host.engine.has_work:
            self._host.engine.step()

    def close(self) -> None:
        self._host.close()


@pytest.mark.daily(*(f"{kind}-f16" for kind in MEMORIES), "full_attention-q8_0", seconds=0.5)
@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("kind", MEMORIES)
def test_what_comes_back_is_what_was_there(tmp_path: Path, kind: MemoryKind, kv_type: KvType) -> None:
    if kv_type != "f16" and kind is MemoryKind.RECURRENT:
        pytest.skip("it has no KV cells to quantize")
    # Quantized cells need heads of width 32; in batches under 64 tokens, sums are exact with flash attention.
    model = make_tiny_model(tmp_path / "tiny.gguf", kind, num_heads=2)
    config = EngineConfig(ctx=1024, batch=32, threads=1, flash_attention="on", kv_type_k=kv_type, kv_type_v=kv_type)
    folder = tmp_path / "cache"
    off = CachePolicy(read=False, write=False)

    first = Machine(model, folder, config)
    expected, _ = first.ask(PROMPT, off)
    expected_next, _ = first.ask(PROMPT + "And then?", off)
    assert first.ask(PROMPT) == (expected, 0)
    first.close()

    second = Machine(model, folder, config)
    answer, num_cached = second.ask(PROMPT)
    assert answer == expected
    assert num_cached > 0
    answer, num_cached = second.ask(PROMPT + "And then?")
    assert answer == expected_next
    second.close()

    for path in folder.glob("*.kv"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    third = Machine(model, folder, config)
    assert third.ask(PROMPT) == (expected, 0)  # a damaged block is a miss
    third.close()


@pytest.mark.parametrize("kind", MEMORIES)
def test_a_prompt_is_found_again_to_its_end_whatever_was_answered(tmp_path: Path, kind: MemoryKind) -> None:
    """The next turn diverges where the answer began if the answer is edited, or read as other tokens."""
    model = make_tiny_model(tmp_path / "tiny.gguf", kind)
    config = EngineConfig(ctx=1024, batch=32, threads=1, flash_attention="on")
    chat = ChatPrompt((Message("user", PROMPT),))
    first = Machine(model, tmp_path / "cache", config)
    for prompt in (TextPrompt(PROMPT), chat):
        first.run(prompt)
    first.close()
    second = Machine(model, tmp_path / "cache", config)
    for prompt in (TextPrompt(PROMPT), chat):
        _, sequence = second.run(prompt)
        assert sequence.num_prompt - sequence.num_cached <= MIN_PART
    second.close()


def test_rounded_blocks_take_half_of_the_bytes_and_are_found_as_such_only(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny.gguf", MemoryKind.FULL_ATTENTION, num_heads=2)
    exact = EngineConfig(ctx=1024, batch=32, threads=1, flash_attention="on", kv_type_k="f16", kv_type_v="f16")
    rounded = replace(exact, cache_type="q8_0")
    sizes = {}
    for config in (exact, rounded):
        folder = tmp_path / config.cache_type
        for is_kept in (False, True):
            machine = Machine(model, folder, config)
            assert (machine.ask(PROMPT)[1] > 200) == is_kept
            machine.close()
        sizes[config.cache_type] = sum(path.stat().st_size for path in folder.glob("*.kv"))
    assert sizes["q8_0"] < 0.6 * sizes["exact"]
    machine = Machine(model, folder, exact)
    assert machine.ask(PROMPT)[1] == 0
    assert "cells in blocks (q8_0, now exact)" in " ".join(machine.notes)
    machine.close()


@pytest.mark.daily(1, seconds=1)
@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize(
    ("num_conversations", "num_rules"), [(25, 25), pytest.param(100, 70, marks=pytest.mark.slow(seconds=8))]
)
def test_conversations_take_the_bytes_of_their_system_prompt_once(
    tmp_path: Path, num_conversations: int, num_rules: int, has_tools: bool
) -> None:
    model = make_tiny_model(tmp_path / "tiny.gguf", MemoryKind.FULL_ATTENTION)
    machine = Machine(model, tmp_path / "cache", EngineConfig(ctx=4096, batch=512, threads=1))
    words = (f"rule {number}: be kind to room {number * 37 % 101}." for number in range(num_rules))
    system = Message("system", " ".join(words))
    tools = tuple(Tool(f"lamp_{number}", "Switches a lamp.", "{}") for number in range(10)) if has_tools else ()
    num_unique = num_system = 0
    for number in range(num_conversations):
        question = Message("user", f"{number} times the number of windows there, how much is that if one is broken?")
        tokens, sequence = machine.run(ChatPrompt((system, question), tools))
        num_system = sequence.spec.num_system
        assert sequence.num_cached >= (num_system if number else 0)
        num_unique += sequence.num_prompt + len(tokens) - num_system
        machine.idle()  # otherwise the next request drops prefixes that a busy machine takes too long to read out
    num_unique += num_system
    assert num_system > 20 * num_rules
    machine.idle()
    in_memory = machine.bytes_in_memory()
    machine.close()
    sizes = [path.stat().st_size for path in (tmp_path / "cache").glob("*.kv")]
    token_bytes = max(sizes) / MAX_BLOCK_TOKENS
    assert in_memory <= 1.1 * num_unique * token_bytes
    assert sum(sizes) <= 1.1 * num_unique * token_bytes
    assert len(sizes) > num_conversations


@pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.HYBRID])
def test_what_is_not_to_be_kept_is_not_on_disk(tmp_path: Path, kind: MemoryKind) -> None:
    model = make_tiny_model(tmp_path / "tiny.gguf", kind)
    config = EngineConfig(ctx=1024, batch=32, threads=1, parallel=1)
    secret = CachePolicy(persist=False)
    machine = Machine(model, tmp_path / "cache", config)
    for round_number in range(3):
        assert machine.ask(PROMPT, secret)[1] > 0 or round_number == 0  # memory may keep it
        machine.ask("Something else that needs the cells. " * 20, secret)
        machine.idle()
    machine.close()
    assert not list((tmp_path / "cache").glob("*.kv"))


def test_what_somebody_else_says_is_theirs_to_keep(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny.gguf", MemoryKind.FULL_ATTENTION)
    config = EngineConfig(ctx=1024, batch=32, threads=1)
    machine = Machine(model, tmp_path / "cache", config)
    machine.ask(PROMPT, CachePolicy(persist=False))
    machine.idle()
    machine.ask(PROMPT)
    machine.close()
    machine = Machine(model, tmp_path / "cache", config)
    assert machine.ask(PROMPT)[1] > 0
    machine.close()


def test_a_draft_changes_no_answer_over_restarts(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny.gguf", MemoryKind.FULL_ATTENTION, num_heads=2)
    draft = make_tiny_model(tmp_path / "draft.gguf", MemoryKind.FULL_ATTENTION, num_heads=2, num_layers=1)
    config = EngineConfig(ctx=1024, batch=32, threads=1, flash_attention="on", draft_tokens=4)
    machine = Machine(model, tmp_path / "reference", config)
    expected, expected_next = machine.ask(PROMPT)[0], machine.ask(PROMPT + "And then?")[0]
    machine.close()
    for life, has_draft in enumerate((True, True, False, True)):
        machine = Machine(model, tmp_path / "cache", config, draft=draft if has_draft else None)
        answer, num_cached = machine.ask(PROMPT)
        assert answer == expected
        assert (num_cached > 200) == (life > 0)
        answer, num_cached = machine.ask(PROMPT + "And then?")
        assert answer == expected_next
        assert num_cached > 200
        machine.idle()
        machine.close()


def test_the_folder_of_an_older_version_is_a_miss_and_stays_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_model(tmp_path / "tiny.gguf", MemoryKind.FULL_ATTENTION)
    config = EngineConfig(ctx=1024, batch=32, threads=1)
    folder = tmp_path / "cache"
    monkeypatch.setattr(fingerprint, "_BLOCKS_VERSION", 1)
    machine = Machine(model, folder, config)
    expected, _ = machine.ask(PROMPT)
    machine.close()
    monkeypatch.setattr(fingerprint, "_BLOCKS_VERSION", 3)
    old = {path.name for path in folder.glob("*.kv")}
    for path in folder.glob("*.about"):
        path.write_text('{"model": "tiny", "client": ""}')
    for path in folder.glob("*.kv"):  # a format that is no longer read
        content = bytearray(path.read_bytes())
        content[8:10] = b"\0\0"
        path.write_bytes(content)
        break
    for num_cached in (0, 200):
        machine = Machine(model, folder, config)
        answer, found = machine.ask(PROMPT)
        assert answer == expected
        assert found >= num_cached
        assert (found == 0) == (num_cached == 0)
        assert "by another version" in " ".join(machine.notes)
        machine.close()
    names = {path.name for path in folder.glob("*.kv")}
    assert old < names, "they go when room is needed, or when nobody used them for long"


@pytest.mark.parametrize("kind", CUTTABLE)
def test_small_blocks_come_back_as_exactly_as_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: MemoryKind
) -> None:
    """Blocks of 32 tokens, as for a model with many bytes per token; a prompt is cut in the middle of one."""
    monkeypatch.setattr(host, "choose_block_tokens", lambda token_bytes: 32)
    model = make_tiny_model(tmp_path / "tiny.gguf", kind, num_heads=2)
    config = EngineConfig(ctx=1024, batch=32, threads=1, flash_attention="on")
    off = CachePolicy(read=False, write=False)
    prompts = [PROMPT, PROMPT + "And then?", PROMPT[:400] + "But one of them was not there. "]
    machine = Machine(model, tmp_path / "cache", config)
    expected = [machine.ask(prompt, off)[0] for prompt in prompts]
    assert machine.ask(PROMPT) == (expected[0], 0)
    machine.close()
    names = [parse_name(path.name) for path in (tmp_path / "cache").glob("*.kv")]
    assert max(name.length for name in names if name is not None) == 32
    machine = Machine(model, tmp_path / "cache", config)
    for prompt, wanted in zip(prompts, expected, strict=True):
        tokens, sequence = machine.run(TextPrompt(prompt))
        assert tokens == wanted
        if kind is MemoryKind.FULL_ATTENTION:
            num_shared = common_length(sequence.tokens[: sequence.num_prompt], array("i", machine.first))
            assert num_shared - 32 <= sequence.num_cached <= num_shared
    machine.close()
