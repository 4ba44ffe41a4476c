"""A cancel in the middle of a step does not change other answers, whatever their memory can take back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from queue import SimpleQueue

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine import step_in_progress
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.runner import Slice
from edgeagent.types import Finished, FinishReason, GenerateRequest, MemoryKind, SamplingParams, TextDelta, TokenPrompt
from edgeagent.worker.child.frame_writer import MakeFrames
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.loop import GeneratorLoop
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.protocol import Cancel, FromWorker, Load, StepResult, Submit
from tests.conftest import TinyModel
from tests.local_template import open_here
from tests.models import MEMORIES
from tests.worker.child.generator.fake_host import made

NUM_PROMPT = 300
# No latency target limits a chunk, so all runs have the same batches.
CONFIG = EngineConfig(threads=1, ctx=2048, batch=128, itl_budget_ms=60_000, flash_attention="off")


class Run:
    """Three requests on a worker; `b` is cancelled during or after the fourth decode with more than 32 tokens."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, *, cancels_during: bool) -> None:
        load = Load("tiny", str(model), None, CONFIG)
        self.host = Host(load, open_model(load), open_here)
        self.frames: SimpleQueue[FromWorker | MakeFrames] = SimpleQueue()
        self.loop = GeneratorLoop(self.host, self.frames)
        self.num_long = 0
        self.is_cancelled = False
        self.computed: list[dict[str, int]] = []
        submit: Callable[[LlamaRunner, Sequence[Slice], int], None] = LlamaRunner.submit

        def counted(runner: LlamaRunner, slices: Sequence[Slice], min_tokens: int = 0) -> None:
            self.num_long += sum(len(part.tokens) for part in slices) > 32
            is_it = self.num_long == 4 and not self.is_cancelled
            self.is_cancelled = self.is_cancelled or is_it
            if is_it and cancels_during:
                self.loop.interrupt(Cancel("b"))
            submit(runner, slices, min_tokens)
            if is_it and not cancels_during:
                self.loop.commands.put(Cancel("b"))

        monkeypatch.setattr(LlamaRunner, "submit", counted)
        monkeypatch.setattr(step_in_progress, "_LONG_S", 0.0)  # as on a slow machine
        for index, name in enumerate("abc"):
            self._submit(name, 1 + index)

    def _submit(self, name: str, seed: int) -> None:
        tokens = tuple(10 + (seed * 31 + seed * 7 * i * i) % 240 for i in range(NUM_PROMPT))
        sampling = SamplingParams(temperature=0.0)
        request = GenerateRequest(
            id=name, model="", prompt=TokenPrompt(tokens), sampling=sampling, max_tokens=12, logprobs=0
        )
        submit = Submit(request, 0.0)
        self.loop.commands.put(submit)
        self.loop.hand_in(submit, self.host.prepare(request))

    def to_the_end(self) -> None:
        self.loop.turn()
        while self.host.engine.has_work:
            self.loop.turn()
            self.computed.append({each.id: each.num_computed for each in self.host.engine._running.values()})
        self.host.close()

    def scores(self) -> dict[str, list[tuple[int, float]]]:
        """Return the tokens of the requests that were not cancelled, with their log probabilities."""
        scores: dict[str, list[tuple[int, float]]] = {}
        frames = [frame for _ in range(self.frames.qsize()) for frame in made(self.frames.get())]
        for item in (item for frame in frames if isinstance(frame, StepResult) for item in frame.items):
            for delta in item.deltas:
                if isinstance(delta, TextDelta):
                    scores.setdefault(item.id, []).extend((each.token, each.logprob) for each in delta.logprobs)
                if isinstance(delta, Finished):
                    assert (delta.reason is FinishReason.CANCELLED) == (item.id == "b")
        scores.pop("b", None)
        return scores


@pytest.mark.parametrize("kind", MEMORIES, ids=str)
def test_the_others_lose_nothing(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, kind: MemoryKind) -> None:
    runs = []
    for cancels_during in (True, False):
        with monkeypatch.context() as patch:
            run = Run(tiny_model(kind), patch, cancels_during=cancels_during)
            run.to_the_end()
            assert run.is_cancelled
            runs.append(run)
    interrupted, undisturbed = runs
    for before, after in zip(interrupted.computed, interrupted.computed[1:], strict=False):
        assert all(after[name] >= num for name, num in before.items() if name in after)
    if kind is not MemoryKind.FULL_ATTENTION:  # the interrupted step is computed again, without the cancelled one
        scores, expected = interrupted.scores(), undisturbed.scores()
        assert set(scores) == set(expected) == {"a", "c"}
        for name, each in expected.items():
            tokens, logprobs = zip(*each, strict=True)
            assert [token for token, _ in scores[name]] == list(tokens)
            assert [logprob for _, logprob in scores[name]] == pytest.approx(list(logprobs), abs=0.01)
