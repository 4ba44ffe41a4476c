"""The worker's loop on a fake host, whose rounds a test runs one by one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, cast

import numpy as np

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.llama.embedder import Rows
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.text.output.prompt_text import PromptEcho
from edgeagent.text.output.stream import OutputStream
from edgeagent.types import Delta, Embed, Finished, GenerateRequest, MemoryKind, SamplingParams, TextDelta, TokenPrompt
from edgeagent.worker.child.frame_writer import MakeFrames
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.loop import GeneratorLoop
from edgeagent.worker.child.generator.media import BeginRead, Reading
from edgeagent.worker.child.generator.prepared_request import PreparedRequest
from edgeagent.worker.child.process import _PromptPreparer
from edgeagent.worker.protocol import (
    NOTHING_DELIVERED,
    AnswerPart,
    Delivered,
    Failed,
    FromWorker,
    StepItem,
    StepResult,
    Submit,
    encode,
)
from tests.fakes import ALWAYS, FakeRunner, FakeTier, next_token, warm_costs
from tests.text.fake_vocabulary import FakeVocabulary

GREEDY = resolve(SamplingParams(temperature=0.0), SamplingParams(repeat_last_n=0))
PROMPT = (72, 101, 108)


class FakeEmbedder:
    """Takes one token per chunk; a text's vector is its first token."""

    num_chunks = 0
    is_open = False

    def begin(self, tokens: Sequence[int]) -> None:
        self._tokens, self._num_left = tokens, len(tokens)

    def advance(self, budget_s: float, num_threads: int) -> Rows | None:
        self.num_chunks += 1
        self._num_left -= 1
        return None if self._num_left else np.array([self._tokens[0]], np.float32)

    def close(self) -> None: ...


class FakeHost:
    """Fake logits and a small vocabulary, in the place of the real host with llama.cpp."""

    def __init__(
        self,
        num_drafts: int = 0,
        num_cells: int = 256,
        *,
        ends: bool = True,
        memory_kind: MemoryKind = MemoryKind.FULL_ATTENTION,
        below: FakeTier | None = None,
        runner_class: type[FakeRunner] = FakeRunner,
    ) -> None:
        self._memory_kind, self._runner_class = memory_kind, runner_class
        self.model = FakeVocabulary()
        self._end_token = self.model.end_tokens[0] if ends else -1
        self.num_threads, self.max_threads = 1, 1
        self.runner = self._make_runner(num_cells)
        draft = self._make_runner(num_cells)
        self.engine = Engine(
            self.runner,
            max_running=2,
            drafters=Drafters(DraftModel(draft), max_tokens=num_drafts, planning_share=ALWAYS) if num_drafts else None,
            prefixes=PrefixStore(
                self.runner,
                None if below is None else self._make_table(below),
                warm_costs(self.runner.max_batch, batch_s=1.0),
            ),
        )
        self.refusal: BaseException | None = None
        self.embedder, self.itl_budget_s = FakeEmbedder(), 0.1

    def read_texts(self, query: Embed) -> list[list[int]]:
        if self.refusal is not None:
            raise self.refusal
        return [list(text.tokens) for text in query.inputs if isinstance(text, TokenPrompt)]

    def _make_runner(self, num_cells: int) -> FakeRunner:
        return self._runner_class(
            num_vocab=self.model.num_tokens,
            num_cells=num_cells,
            memory_kind=self._memory_kind,
            end_token=self._end_token,
        )

    def _make_table(self, below: FakeTier) -> BlockTable:
        can_cut = self._memory_kind is MemoryKind.FULL_ATTENTION
        return BlockTable(Keyring(b"fake", b"s" * 32), 1 << 20, below, can_cut=can_cut)

    def prepare(self, request: GenerateRequest, delivered: Delivered = NOTHING_DELIVERED) -> PreparedRequest:
        if self.refusal is not None:
            raise self.refusal
        assert isinstance(request.prompt, TokenPrompt)
        spec = SequenceSpec(
            request.id,
            list(request.prompt.tokens),
            Sampler(GREEDY, self.model.num_tokens, num_logprobs=request.logprobs),
            max_tokens=request.max_tokens,
            tier=request.tier,
            prefill_only=request.prefill_only or request.max_tokens == 0,
            delivered=delivered.tokens,
            step_lengths=delivered.step_lengths,
            partition=request.cache.partition,
            read_cache=request.cache.read and not request.echo,
            write_cache=request.cache.write,
            num_prompt_logprobs=request.logprobs if request.echo else None,
            reports_progress=request.reports_progress,
            draft_tokens=request.draft_tokens,
        )
        output = OutputStream(self.model, stops=request.stop)
        held = delivered.held_logprobs
        output.feed(delivered.tokens, [None] * (len(delivered.tokens) - len(held)) + list(held))
        echo = None
        if request.echo:
            is_scored = request.logprobs is not None
            echo = PromptEcho(self.model, request.prompt.tokens, None, num_added=0, is_scored=is_scored)
        return PreparedRequest(spec, output, 0.0, echo)

    num_encoder_steps = 0

    def next_to_read(self, request: GenerateRequest, reading: Reading | None) -> BeginRead | None:
        return None

    def adjust_threads(self) -> None: ...

    def rest_threads(self) -> None: ...


def made(item: FromWorker | MakeFrames) -> Iterable[FromWorker]:
    """Return an item's frames, as the writer's thread would make them."""
    return item() if callable(item) else (item,)


class Bench:
    """A worker whose rounds run one by one, with the preparer's work between them."""

    def __init__(self, **options: Any) -> None:
        self.host = FakeHost(**options)
        self.frames: SimpleQueue[FromWorker | MakeFrames] = SimpleQueue()
        self.loop = GeneratorLoop(cast(Host, self.host), self.frames)
        self._preparer = _PromptPreparer(cast(Host, self.host), self.loop)
        self.ends: dict[str, Finished | Failed] = {}
        self.items: dict[str, list[StepItem]] = {}
        self.frame_sizes: list[int] = []
        self.answers: list[AnswerPart] = []

    def submit(
        self,
        request_id: str = "a",
        tokens: tuple[int, ...] = PROMPT,
        delivered: Delivered = NOTHING_DELIVERED,
        **fields: Any,
    ) -> Submit:
        """Submit a request without preparing it."""
        request = GenerateRequest(id=request_id, model="", prompt=TokenPrompt(tokens), **fields)
        submit = Submit(request, time.monotonic(), delivered=delivered)
        self.loop.commands.put(submit)
        return submit

    def prepare(self, submit: Submit) -> None:
        self._preparer._prepare(submit)

    def give(self, *args: Any, **fields: Any) -> None:
        """Submit a request and prepare it."""
        self.prepare(self.submit(*args, **fields))

    def turn(self) -> bool:
        goes_on = self.loop.turn()
        self._take_frames()
        return goes_on

    def run(self) -> None:
        """Run rounds until nothing is left to do."""
        self.turn()
        while self.host.engine.has_work or not self.loop.commands.empty():
            self.turn()

    def tokens(self, request_id: str = "a") -> list[int]:
        return [token for item in self.items[request_id] for token in item.tokens]

    def text(self, request_id: str = "a") -> str:
        deltas = [delta for item in self.items[request_id] for delta in item.deltas]
        return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))

    def finished(self, request_id: str = "a") -> Finished:
        end = self.ends[request_id]
        assert isinstance(end, Finished), end
        return end

    def failed(self, request_id: str = "a") -> Failed:
        end = self.ends[request_id]
        assert isinstance(end, Failed), end
        return end

    def _take_frames(self) -> None:
        while True:
            try:
                item = self.frames.get_nowait()
            except Empty:
                return
            for frame in made(item):
                self._take(frame)

    def _take(self, frame: FromWorker) -> None:
        self.frame_sizes.append(len(encode(frame)))
        if isinstance(frame, AnswerPart):
            self.answers.append(frame)
            return
        if isinstance(frame, Failed):
            self._end(frame.id, frame)
            return
        assert isinstance(frame, StepResult)
        for item in frame.items:
            assert item.id not in self.ends, "deltas after the end"
            self.items.setdefault(item.id, []).append(item)
            if item.deltas and isinstance(item.deltas[-1], Finished):
                self._end(item.id, item.deltas[-1])

    def _end(self, request_id: str, end: Finished | Failed) -> None:
        assert request_id not in self.ends, "a second end"
        self.ends[request_id] = end


def naive(num_tokens: int, prompt: tuple[int, ...] = PROMPT) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, FakeVocabulary().num_tokens))
    return tokens[len(prompt) :]


def text_of(tokens: list[int]) -> str:
    vocabulary = FakeVocabulary()
    return b"".join(vocabulary.piece(token) for token in tokens).decode(errors="replace")


def prompt_with_plain_answer(num_tokens: int) -> tuple[int, ...]:
    """Return a prompt whose answer is ASCII without a repeated character, so that any part can be a stop string."""
    return next(
        prompt
        for prompt in ((72, 101, second, third) for second in range(256) for third in range(256))
        if (answer := text_of(naive(num_tokens, prompt))).isascii()
        and FakeVocabulary().end_tokens[0] not in naive(num_tokens, prompt)
        and len(set(answer)) == len(answer) >= num_tokens
    )


PLAIN = prompt_with_plain_answer(4)


def deltas_of(bench: Bench, request_id: str = "a") -> list[Delta]:
    return [delta for item in bench.items[request_id] for delta in item.deltas]
