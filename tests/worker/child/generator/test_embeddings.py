"""The pending embeddings of a worker: chunks run between steps, and every Embed is answered once."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue
from typing import cast

import numpy as np
import pytest

from edgeagent.engine.llama.embedder import Rows
from edgeagent.errors import EdgeAgentError, InternalError
from edgeagent.types import Embed
from edgeagent.worker.child.generator.loop import EmbedJobs
from edgeagent.worker.protocol import AnswerPart, Failed, FromWorker
from tests.fakes import FakeClock


class FakeEmbedder:
    """Takes two tokens per chunk, one second each; a text's vector starts with its first token and its length."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.num_chunks = 0
        self.is_open = False
        self.tokens: list[int] = []
        self.num_left = 0
        self.failure: EdgeAgentError | None = None

    def begin(self, tokens: Sequence[int]) -> None:
        self.is_open, self.tokens, self.num_left = True, list(tokens), len(tokens)

    def advance(self, budget_s: float, num_threads: int) -> Rows | None:
        if self.failure is not None:
            raise self.failure
        self.budget_s = budget_s
        self._clock.advance(1.0)
        self.num_chunks += 1
        self.num_left -= 2
        return None if self.num_left > 0 else np.array([self.tokens[0], len(self.tokens), 0.0], np.float32)

    def close(self) -> None:
        self.is_open = False


class Bench:
    """EmbedJobs with a clock and a queue of frames."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.embedder = FakeEmbedder(self.clock)
        self.frames: SimpleQueue[FromWorker | None] = SimpleQueue()
        self.embeddings = EmbedJobs(self.embedder, self.frames, 0.1, self.clock)

    def give(self, ask_id: str, *texts: list[int], dimensions: int | None = None) -> None:
        self.embeddings.add(ask_id, Embed((), dimensions=dimensions))
        self.embeddings.give(ask_id, texts)

    def step(self, *, is_busy: bool = False) -> list[FromWorker]:
        self.embeddings.step(is_busy=is_busy, num_threads=1)
        return self.taken()

    def run(self) -> list[FromWorker]:
        while self.embeddings.has_work:
            self.embeddings.step(is_busy=False, num_threads=1)
        return self.taken()

    def taken(self) -> list[FromWorker]:
        return [cast(FromWorker, self.frames.get()) for _ in range(self.frames.qsize())]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def vector(frame: FromWorker) -> tuple[str, list[float], int, bool]:
    assert isinstance(frame, AnswerPart)
    [embedding] = frame.part.embeddings
    return frame.id, np.frombuffer(embedding.vector, "<f4").tolist(), embedding.num_tokens, frame.is_last


class TestEmbeddings:
    def test_texts_take_turns_and_the_last_of_each_question_says_so(self, bench: Bench) -> None:
        bench.give("a", [7, 1, 2], [8])
        bench.give("b", [9, 1])
        assert [vector(frame) for frame in bench.run()] == [
            ("a", [7.0, 3.0, 0.0], 3, False),
            ("b", [9.0, 2.0, 0.0], 2, True),
            ("a", [8.0, 1.0, 0.0], 1, True),
        ]
        assert bench.embeddings.num_chunks == 4
        assert not bench.embeddings.has_work

    def test_a_text_that_was_begun_is_ended_before_another_begins(self, bench: Bench) -> None:
        bench.give("a", [7], [8, 1, 2, 3])
        bench.embeddings.add("b", Embed(()))
        bench.step()
        bench.step()  # the first half of the second text; b is next now, before a
        bench.embeddings.give("b", [[9]])
        assert [vector(frame) for frame in bench.run()] == [
            ("a", [8.0, 4.0, 0.0], 4, True),
            ("b", [9.0, 1.0, 0.0], 1, True),
        ]

    def test_dimensions_cut_and_renormalise(self, bench: Bench) -> None:
        bench.give("a", [3, 1, 1, 1], dimensions=2)
        [(_, numbers, num_tokens, _)] = map(vector, bench.run())
        assert numbers == pytest.approx([0.6, 0.8])
        assert num_tokens == 4

    def test_beside_streams_it_takes_a_fifth_of_the_time(self, bench: Bench) -> None:
        bench.give("a", [1, 2, 3, 4, 5, 6])
        bench.step(is_busy=True)
        assert bench.embedder.budget_s < 0.1
        for _ in range(3):
            bench.clock.advance(1.0)
            bench.step(is_busy=True)
        assert bench.embedder.num_chunks == 1
        bench.clock.advance(1.0)
        bench.step(is_busy=True)
        assert bench.embedder.num_chunks == 2
        # Alone, it need not wait.
        assert len(bench.step()) == 1

    def test_what_is_dropped_is_not_answered(self, bench: Bench) -> None:
        bench.give("a", [1, 2, 3])
        bench.give("b", [5])
        bench.step()
        bench.embeddings.drop("a")
        bench.embeddings.drop("never there")
        assert [vector(frame)[0] for frame in bench.run()] == ["b"]

    def test_tokens_that_come_after_the_drop_are_not_wanted(self, bench: Bench) -> None:
        bench.embeddings.add("a", Embed(()))
        bench.embeddings.drop("a")
        bench.embeddings.give("a", [[1]])
        assert not bench.embeddings.has_work

    def test_a_failure_ends_one_and_the_next_goes_on(self, bench: Bench) -> None:
        bench.give("a", [1], [2])
        bench.give("b", [3])
        bench.embedder.failure = InternalError("broken")
        assert bench.step() == [Failed("a", "internal_error", "broken")]
        bench.embedder.failure = None
        assert [vector(frame)[0] for frame in bench.run()] == ["b"]

    def test_memory_is_given_back_after_a_minute_of_rest(self, bench: Bench) -> None:
        assert bench.embeddings.wake_after_s() is None
        bench.give("a", [1])
        bench.run()
        assert bench.embeddings.wake_after_s() == 60.0
        bench.embeddings.add("b", Embed(()))
        assert bench.embeddings.wake_after_s() is None
        bench.embeddings.drop("b")
        bench.clock.advance(59.0)
        bench.embeddings.free_if_idle()
        assert bench.embedder.is_open
        bench.clock.advance(1.0)
        bench.embeddings.free_if_idle()
        assert not bench.embedder.is_open
        assert bench.embeddings.wake_after_s() is None
