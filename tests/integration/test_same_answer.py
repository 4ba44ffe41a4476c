"""A request alone gets the same answer, to the last bit of its log probabilities, wherever its tokens come from.

With plain attention on a CPU: computed whole, found in cells, restored from blocks, or continued after the worker died
at any token. This follows from llama.cpp: chunks of two or more tokens give the same bits whatever their size, single
tokens give others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.engine.sampling.sampler import Logprob
from edgeagent.store.names.catalog import builtin_model
from edgeagent.types import GenerateRequest, JsonSchemaFormat, MemoryKind, SamplingParams, TokenPrompt
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.child.process import start_block_store
from edgeagent.worker.protocol import NOTHING_DELIVERED, Delivered, DiskCache, Load
from tests.conftest import TinyModel
from tests.local_template import open_here
from tests.models import MEMORIES
from tests.patience import patient

# Long enough for several micro-batches; 129 and 257 would leave their last token alone in one.
LENGTHS = [40, 257, 600, *(pytest.param(length, marks=pytest.mark.slow) for length in (129, 300, 513))]
SCHEMA = '{"type":"array","items":{"enum":["a very long word","another long word"]},"minItems":9}'
# The tokens of the bundled model that end an answer. Drawn answers are kept from ending early.
ENDS = (2039, 2041)
SAMPLINGS = {
    "greedy": {"sampling": SamplingParams(temperature=0.0)},
    "seeded": {"sampling": SamplingParams(temperature=1.2, seed=7, logit_bias=tuple((end, -100.0) for end in ENDS))},
    "grammar": {"sampling": SamplingParams(temperature=0.0), "format": JsonSchemaFormat(SCHEMA)},
}


@dataclass
class Answer:
    """The output of one request, and the steps in which it came."""

    tokens: list[int]
    logprobs: list[Logprob]
    step_lengths: list[int]
    num_cached: int = 0

    def until(self, num_steps: int) -> Delivered:
        """Return what a worker had delivered after this many steps."""
        lengths = self.step_lengths[:num_steps]
        return Delivered(tuple(self.tokens[: sum(lengths)]), tuple(lengths))


class Life:
    """One run of a worker."""

    def __init__(self, model: Path, folder: Path | None, threads: int) -> None:
        disk = (
            None if folder is None else DiskCache(str(folder), b"s" * 32, 1 << 30, 0, 86400.0, 0, close_s=patient(30))
        )
        config = EngineConfig(threads=threads, ctx=2048, flash_attention="off")
        store = None if disk is None else start_block_store(disk)
        load = Load("tiny", str(model), None, config, disk=disk)
        self._host = Host(load, open_model(load), open_here, store=store)
        self._num_requests = 0
        self._is_over = False

    def ask(self, request: GenerateRequest, delivered: Delivered = NOTHING_DELIVERED) -> Answer:
        """Run one request alone, and all remaining work after it: results depend on the order of cells too."""
        self._num_requests += 1
        prepared = self._host.prepare(structs.replace(request, id=f"r{self._num_requests}"), delivered)
        engine, answer = self._host.engine, Answer([], [], [])
        sequence = engine.add(prepared.spec)
        is_done = False
        while not is_done:
            for output in engine.step():
                assert output.error is None
                answer.tokens += output.tokens
                answer.logprobs += output.logprobs
                answer.step_lengths += [len(output.tokens)] if output.tokens else []
                is_done = output.finish_reason is not None
        while engine.has_work:
            engine.step()
        answer.num_cached = sequence.num_cached
        return answer

    def end(self) -> None:
        """Stop once, as a worker stops on command."""
        if not self._is_over:
            self._is_over = True
            self._host.close()


Begin = Callable[..., Life]


@pytest.fixture
def begin(tiny_model: TinyModel) -> Iterator[Begin]:
    lives: list[Life] = []

    # One thread: two wait for each other by spinning, which is many times slower beside another test.
    def begin_one(folder: Path | None = None, kind: MemoryKind | None = None, threads: int = 1) -> Life:
        # The results of tiny models are mostly the same for all batch sizes; those of the bundled model are not.
        lives.append(Life(builtin_model().path if kind is None else tiny_model(kind), folder, threads))
        return lives[-1]

    yield begin_one
    for life in lives:
        life.end()


def ask_for(num_prompt: int, kind: str = "greedy", max_tokens: int = 24) -> GenerateRequest:
    prompt = TokenPrompt(tuple(10 + 7 * i * i % 240 for i in range(num_prompt)))
    return GenerateRequest(id="", model="", prompt=prompt, max_tokens=max_tokens, logprobs=0, **SAMPLINGS[kind])  # type: ignore[arg-type]


@pytest.mark.daily(2, seconds=0.5)
@pytest.mark.parametrize("num_prompt", LENGTHS)
def test_found_in_cells_or_restored(begin: Begin, tmp_path: Path, num_prompt: int) -> None:
    request = ask_for(num_prompt)
    first = begin(tmp_path)
    whole = first.ask(request)
    assert whole.num_cached == 0
    again = first.ask(request)
    assert again.num_cached == num_prompt - 2
    first.end()
    restored = begin(tmp_path).ask(request)
    assert restored.num_cached > 0 or num_prompt < 100
    for answer in (again, restored):
        assert (answer.tokens, answer.logprobs) == (whole.tokens, whole.logprobs)


@pytest.mark.daily(1, seconds=2)
@pytest.mark.parametrize(
    ("kind", "num_prompt"),
    [
        pytest.param(kind, num_prompt, marks=[] if place == index else pytest.mark.slow)
        for place, num_prompt in enumerate((40, 300, 513))
        for index, kind in enumerate(SAMPLINGS)
    ],
)
def test_gone_on_with_from_any_token(begin: Begin, kind: str, num_prompt: int) -> None:
    request = ask_for(num_prompt, kind, 100)
    whole = begin().ask(request)
    assert len(whole.tokens) > 40 and (max(whole.step_lengths) > 1) == (kind == "grammar")
    num_all = len(whole.step_lengths)
    for num_steps in (1, num_all // 3, num_all - 1):
        delivered = whole.until(num_steps)
        rest = begin().ask(request, delivered)
        assert rest.tokens == whole.tokens[len(delivered.tokens) :]
        assert rest.logprobs == whole.logprobs[len(delivered.tokens) :]


@pytest.mark.parametrize("kind", MEMORIES)
def test_every_memory_goes_on_as_it_was(begin: Begin, kind: MemoryKind) -> None:
    request = ask_for(300, max_tokens=60)
    whole = begin(kind=kind).ask(request)
    for num_steps in (1, 17, 45):
        rest = begin(kind=kind).ask(request, whole.until(num_steps))
        assert rest.logprobs == whole.logprobs[num_steps:]


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=[pytest.mark.alone, pytest.mark.slow(seconds=2)])])
def test_gone_on_with_behind_blocks(begin: Begin, tmp_path: Path, threads: int) -> None:
    """A long answer's full blocks are on disk; the tokens after them are recomputed with their original batches."""
    request = ask_for(200, max_tokens=400)
    first = begin(tmp_path, threads=threads)
    whole = first.ask(request)
    first.end()
    second = begin(tmp_path, threads=threads)
    delivered = whole.until(390)
    rest = second.ask(request, delivered)
    assert rest.tokens == whole.tokens[390:]
    assert rest.logprobs == whole.logprobs[390:]
