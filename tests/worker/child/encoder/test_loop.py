"""The main thread of an embedding model's worker: every query ends exactly once."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from edgeagent.engine.llama.embedder import Rows
from edgeagent.engine.runner import DecodeCancelled
from edgeagent.errors import InternalError, InvalidRequest
from edgeagent.types import CachePolicy, Embed, Finished, FinishReason, GenerateRequest, PurgeCache, Rerank, TextPrompt
from edgeagent.worker.child.encoder.host import EncoderHost, EncoderLoop
from edgeagent.worker.protocol import AnswerPart, Ask, Cancel, Failed, FromWorker, StepResult, Stop, Submit
from tests.fakes import FakeClock


class FakeEncoder:
    """Takes two texts per batch; a text's row starts with its first token."""

    def __init__(self) -> None:
        self.is_open = self.is_ranking = self.is_aborted = False
        self.failure: Exception | None = None
        self.batches: list[list[list[int]]] = []

    def batch_length(self, texts: list[list[int]]) -> int:
        return min(2, len(texts))

    def expected_s(self, num_tokens: int) -> float:
        return 0.0

    def request_abort(self) -> None:
        self.is_aborted = True

    def clear_abort(self) -> None:
        self.is_aborted = False

    def close(self) -> None:
        self.is_open = False

    def encode(self, texts: list[list[int]]) -> Rows:
        self.is_open = True
        self.batches.append(texts)
        if self.failure is not None:
            raise self.failure
        if self.is_ranking:
            return np.array([[float(text[0])] for text in texts], np.float32)
        return np.array([[text[0], 3.0, 4.0] for text in texts], np.float32)


class Bench:
    """A worker with a clock, a fake encoder and a queue of frames."""

    def __init__(self) -> None:
        self.clock, self.encoder = FakeClock(), FakeEncoder()
        self.frames: SimpleQueue[FromWorker | None] = SimpleQueue()
        host = SimpleNamespace(
            encoder=self.encoder,
            encode=self.encoder.encode,
            num_threads=2,
            max_threads=2,
            info=SimpleNamespace(name="tiny"),
        )
        self.loop = EncoderLoop(cast(EncoderHost, host), self.frames, self.clock)

    def ask(self, ask_id: str, query: Embed | Rerank, *texts: list[int]) -> None:
        self.loop.ask(Ask(ask_id, query))
        self.loop.commands.put(partial(self.loop._jobs.give, ask_id, list(texts)))

    def turn(self) -> list[FromWorker]:
        assert self.loop.turn()
        return self.sent()

    def sent(self) -> list[FromWorker]:
        frames = []
        while not self.frames.empty():
            frame = self.frames.get()
            assert frame is not None
            frames.append(frame)
        return frames


@pytest.fixture
def bench() -> Bench:
    return Bench()


def first_numbers(frames: list[FromWorker]) -> list[float]:
    parts = [frame for frame in frames if isinstance(frame, AnswerPart)]
    return [float(np.frombuffer(part.part.embeddings[0].vector, "<f4")[0]) for part in parts]


def test_vectors_come_in_order_and_the_last_says_so(bench: Bench) -> None:
    bench.ask("a", Embed(()), [1], [2, 2], [3])
    frames = bench.turn()
    assert first_numbers(frames) == [1.0, 2.0]
    assert [frame.is_last for frame in frames if isinstance(frame, AnswerPart)] == [False, False]
    (last,) = bench.turn()
    assert isinstance(last, AnswerPart)
    assert (last.id, last.is_last, last.part.embeddings[0].num_tokens) == ("a", True, 1)


def test_dimensions_are_cut_and_the_length_is_kept(bench: Bench) -> None:
    bench.ask("a", Embed((), dimensions=2), [4])
    (frame,) = bench.turn()
    assert isinstance(frame, AnswerPart)
    assert np.allclose(np.frombuffer(frame.part.embeddings[0].vector, "<f4"), [0.8, 0.6])


def test_scores_come_together(bench: Bench) -> None:
    bench.encoder.is_ranking = True
    bench.ask("a", Rerank("q", ("x", "y", "z")), [0, 0], [1000], [1])
    assert bench.turn() == []
    (frame,) = bench.turn()
    assert isinstance(frame, AnswerPart)
    assert frame.is_last
    scores = frame.part.scores
    assert [score.num_tokens for score in scores] == [2, 1, 1]
    assert [score.relevance for score in scores] == pytest.approx([0.5, 1.0, 0.7310586])


def test_questions_take_turns_in_the_order_of_their_arrival(bench: Bench) -> None:
    bench.loop.ask(Ask("a", Embed(())))
    bench.ask("b", Embed(()), [2])
    bench.loop.commands.put(partial(bench.loop._jobs.give, "a", [[1], [1], [1], [1], [1]]))
    frames = [*bench.turn(), *bench.turn(), *bench.turn(), *bench.turn()]
    assert first_numbers(frames) == [1.0, 1.0, 2.0, 1.0, 1.0, 1.0]
    assert [frame.is_last for frame in frames if isinstance(frame, AnswerPart)] == [
        *[False] * 2,
        True,
        *[False] * 2,
        True,
    ]


def test_a_cancelled_question_gets_no_answer(bench: Bench) -> None:
    bench.ask("a", Embed(()), [1])
    bench.loop.interrupt(Cancel("a"))
    assert bench.encoder.is_aborted
    bench.ask("b", Embed(()), [2])
    assert first_numbers(bench.turn()) == [2.0]
    assert not bench.encoder.is_aborted


def test_an_interrupted_batch_is_computed_again(bench: Bench) -> None:
    bench.encoder.failure = DecodeCancelled()
    bench.ask("a", Embed(()), [1])
    assert bench.turn() == []
    bench.encoder.failure = None
    assert first_numbers(bench.turn()) == [1.0]


def test_a_failure_ends_one_question(bench: Bench) -> None:
    bench.encoder.failure = InternalError("NaN")
    bench.ask("a", Embed(()), [1], [1], [1])
    bench.ask("b", Embed(()), [2])
    assert bench.turn() == [Failed("a", "internal_error", "NaN")]
    bench.encoder.failure = None
    assert first_numbers(bench.turn()) == [2.0]


def test_texts_that_cannot_be_read_are_forgotten(bench: Bench) -> None:
    def refuse(query: object) -> list[list[int]]:
        raise InvalidRequest("too long")

    cast(SimpleNamespace, bench.loop._host).read_texts = refuse
    query = Embed((TextPrompt("x"),))
    bench.loop.ask(Ask("a", query))
    with pytest.raises(InvalidRequest):
        bench.loop.read_texts("a", query)
    assert bench.turn() == []
    assert bench.loop.status.num_running == 0


def test_what_it_cannot_do_is_refused(bench: Bench) -> None:
    bench.loop.submit(Submit(GenerateRequest("r", "tiny", TextPrompt("hello")), 0.0))
    (frame,) = bench.sent()
    assert isinstance(frame, Failed)
    assert (frame.id, frame.code, frame.param) == ("r", "not_supported", "model")
    assert "embeds texts" in frame.message
    bench.loop.interrupt(Ask("p", PurgeCache()))
    (frame,) = bench.turn()
    assert isinstance(frame, AnswerPart)
    assert (frame.part.text, frame.is_last) == ("0", True)


def test_a_request_that_only_loads_it_ends_well(bench: Bench) -> None:
    cache = CachePolicy(read=False, write=False)
    asked = GenerateRequest("r", "tiny", TextPrompt("hello"), prefill_only=True, cache=cache)
    bench.loop.submit(Submit(asked, 0.0, load_ms=7.0))
    (frame,) = bench.sent()
    assert isinstance(frame, StepResult)
    ((item,),) = (frame.items,)
    (ended,) = item.deltas
    assert isinstance(ended, Finished)
    assert (item.id, ended.reason, ended.timings.load_ms) == ("r", FinishReason.STOP, 7.0)


def test_memory_is_freed_after_a_while_and_stop_ends_it(bench: Bench) -> None:
    bench.ask("a", Embed(()), [1])
    bench.turn()
    bench.clock.advance(61.0)
    bench.turn()
    assert not bench.encoder.is_open
    bench.loop.interrupt(Stop())
    assert bench.encoder.is_aborted
    assert not bench.loop.turn()
