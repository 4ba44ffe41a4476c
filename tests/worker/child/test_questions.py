"""The worker's thread for queries: answers in frames that fit, and no answer to a dropped query."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Event

import pytest

from edgeagent.errors import InvalidRequest
from edgeagent.types import Embed, QueryAnswer, Rerank, TextQuery, Tokenize
from edgeagent.worker.child.process import Questions
from edgeagent.worker.protocol import MAX_FRAME_FROM_WORKER_BYTES, AnswerPart, Ask, Failed, FromWorker, encode


class Bench:
    """A query thread whose answers wait for a gate."""

    def __init__(self) -> None:
        self.frames: SimpleQueue[FromWorker | None] = SimpleQueue()
        self.gate, self.reached = Event(), Event()
        self.gate.set()
        self.embeds: list[tuple[str, Embed | Rerank]] = []
        self.result: QueryAnswer | BaseException = QueryAnswer()
        self.questions = Questions(self._answer, self.frames, self._embed)
        self.questions.start()

    def _answer(self, query: TextQuery) -> QueryAnswer:
        self.reached.set()
        self.gate.wait()
        if isinstance(self.result, QueryAnswer):
            return self.result
        raise self.result

    def _embed(self, ask_id: str, query: Embed | Rerank) -> None:
        self.embeds.append((ask_id, query))
        if isinstance(self.result, BaseException):
            raise self.result

    def ask(self, ask_id: str = "a") -> None:
        self.questions.ask(Ask(ask_id, Tokenize("x")))

    def answer(self) -> QueryAnswer:
        """Return the next answer, with its parts joined."""
        parts: list[QueryAnswer] = []
        while True:
            frame = self.frames.get()
            assert isinstance(frame, AnswerPart)
            assert len(encode(frame)) < MAX_FRAME_FROM_WORKER_BYTES
            parts.append(frame.part)
            if frame.is_last:
                return QueryAnswer(
                    "".join(part.text for part in parts),
                    tuple(token for part in parts for token in part.tokens),
                    tuple(piece for part in parts for piece in part.pieces),
                )


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.gate.set()


@pytest.mark.parametrize(
    "answer",
    [
        QueryAnswer(),
        QueryAnswer("é" * 200_000),
        QueryAnswer("x", tuple(range(10_000))),
        QueryAnswer(tokens=tuple(range(300_000, 310_000)), pieces=(b"x" * 200,) * 10_000),
        QueryAnswer(tokens=(1, 2), pieces=(b"x" * 300_000, b"y" * 300_000)),
    ],
)
def test_an_answer_of_any_size_comes_whole(bench: Bench, answer: QueryAnswer) -> None:
    bench.result = answer
    bench.ask()
    assert bench.answer() == answer


def test_a_refusal_names_its_field_and_a_bug_does_not_end_the_thread(bench: Bench) -> None:
    bench.result = InvalidRequest("bad", param="tokens")
    bench.ask()
    assert bench.frames.get() == Failed("a", "invalid_value", "bad", "tokens")
    bench.result = ZeroDivisionError("secret")
    bench.ask()
    failed = bench.frames.get()
    assert isinstance(failed, Failed)
    assert failed.code == "internal_error"
    assert "secret" not in failed.message
    bench.result = QueryAnswer("fine")
    bench.ask()
    assert bench.answer() == QueryAnswer("fine")


def test_what_is_dropped_is_not_told(bench: Bench) -> None:
    bench.gate.clear()
    bench.ask("running")
    bench.reached.wait()
    bench.ask("waiting")
    bench.ask("kept")
    bench.questions.drop("running")
    bench.questions.drop("waiting")
    bench.questions.drop("unknown")
    bench.gate.set()
    frame = bench.frames.get()
    assert isinstance(frame, AnswerPart)
    assert frame.id == "kept"


def test_an_embed_is_handed_on_and_its_refusal_told() -> None:
    bench = Bench()
    bench.questions.ask(Ask("e", Embed(())))
    bench.ask("a")
    bench.answer()
    assert bench.embeds == [("e", Embed(()))]
    bench.result = InvalidRequest("too long", param="input")
    bench.questions.ask(Ask("f", Embed(())))
    assert bench.frames.get() == Failed("f", "invalid_value", "too long", "input")
