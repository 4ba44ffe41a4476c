"""What the lookup by similarity learns from the model's own answers, and whose questions it keeps."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edgeagent.answers.answers import Answers
from edgeagent.answers.similar import similar_answers
from edgeagent.answers.similar.events import Compared
from edgeagent.answers.similar.similar_answers import SimilarAnswers
from edgeagent.metrics import REGISTRY
from edgeagent.service.client_sink import Ending
from edgeagent.types import (
    AnswerPolicy,
    ChatPrompt,
    ChoiceScores,
    Embed,
    Embedding,
    FinishReason,
    GenerateRequest,
    Message,
    ModelStatus,
    QueryAnswer,
    Started,
    TextDelta,
    TextQuery,
    WorkerState,
    replace,
)
from tests.answers.caches import SEAL, ModelBackend, asking, caching
from tests.answers.test_answers import replace_file
from tests.backends.fake import Act, Gate, finished
from tests.patience import patient

NUMBERS = itertools.count()


class OneVector(ModelBackend):
    """A backend whose embedding model finds all texts alike, after `embeds` is set."""

    says = "Downstairs."
    ends = FinishReason.STOP
    state = WorkerState.READY

    def __init__(self, path: Path) -> None:
        self.embeds = asyncio.Event()
        self.embeds.set()
        self.num_others = self.num_embedded = 0
        self.gates: tuple[Gate, ...] = ()
        super().__init__(path, self._answer)

    def _answer(self, request: GenerateRequest) -> Iterable[Act]:
        if request.choices:  # a verdict: yes
            return Started(3, 0), ChoiceScores((-0.1, -2.0), 2), finished(self.ends)
        return Started(3, 0), *self.gates, TextDelta(self.says), finished(self.ends)

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        """Return one vector for all texts."""
        if not isinstance(query, Embed):
            return await super().ask(name, query)
        self.num_embedded += 1
        await self.embeds.wait()
        return QueryAnswer(embeddings=(Embedding(struct.pack("<4f", 1, 0, 0, 0), 4),))

    def statuses(self) -> list[ModelStatus]:
        """Return the models with `num_others` requests of other clients."""
        return [replace(status, num_live=self.num_others, state=self.state) for status in super().statuses()]


class Always(Random):
    """It lets each answer be checked."""

    def random(self) -> float:
        return 0.0


async def ask(answers: Answers, text: str, policy: AnswerPolicy, **fields: Any) -> str:
    """Ask, and return the kind of the kept answer; "" if the model answered."""
    request = asking(f"{text} {next(NUMBERS)}", **fields)
    prompt, cache = ChatPrompt((Message("user", text),)), replace(request.cache, answers=policy)
    ending = Ending()
    await answers.generate(replace(request, prompt=prompt, cache=cache), ending)
    assert ending.finished is not None
    origin = ending.finished.timings.origin
    return "" if origin is None else origin.kind


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(10)):
        while not condition():  # noqa: ASYNC110 what is learned is learned in the background, without an event
            await asyncio.sleep(0.001)


async def test_a_client_that_only_reads_teaches_and_leaves_nothing(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()
        assert await ask(answers, "Where are the toilets?", AnswerPolicy.USE) == ""
        await until(lambda: similar.memory.num_questions == 1)
        assert await ask(answers, "Hello, where are the toilets?", AnswerPolicy.READ) == ""
        await until(lambda: similar.status()["num_compared"] == 1)
        await similar.settled()
        assert [each.num_wrong for each in similar.memory.boundaries.values()] == [0]
        assert similar.memory.num_questions == answers.store.num_answers == 1
        # Their vectors are equal, so one right answer is enough for this bound.
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.READ) == "similar"


@pytest.mark.parametrize("shared", [False, True])
async def test_another_clients_answers_are_found_only_if_they_are_shared(model_file: Path, *, shared: bool) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3, shared=shared) as answers:
        answers.similar = similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        await similar.start()
        for number, text in enumerate(("What is my balance?", "Please, what is my balance?"), 1):
            assert await ask(answers, text, AnswerPolicy.USE, client="ann") == ""
            await until(lambda number=number: similar.memory.num_questions == number)  # type: ignore[misc]
            await similar.settled()
        assert await ask(answers, "Hi, what is my balance?", AnswerPolicy.USE, client="ann") == "similar"
        others = await ask(answers, "Hello, what is my balance?", AnswerPolicy.USE, client="ben")
        assert others == ("similar" if shared else "")


async def test_the_model_begins_after_the_lookup(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        similar = await taught(answers, backend)
        backend.embeds.clear()
        num_asked = len(backend.requests)
        client = asyncio.create_task(ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE))
        await until(lambda: len(similar._pending) == 1)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(backend.requests) == num_asked
        backend.embeds.set()
        assert await client == "similar"


async def test_a_question_that_cannot_be_answered_from_similarity_waits_for_no_lookup(model_file: Path) -> None:
    """Before enough was learned, and where nothing is known, it is embedded once the model has answered."""
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()
        for number, text in enumerate(("Where are the toilets?", "Hello, where are the toilets?")):
            backend.embeds.clear()
            assert await ask(answers, text, AnswerPolicy.USE) == ""
            backend.embeds.set()
            await similar.settled()
            assert (backend.num_embedded, similar.memory.num_questions) == (number + 1, number + 1)
        assert similar.status()["num_compared"] == 1
        backend.embeds.clear()
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE, max_tokens=5) == "", "another place"
        backend.embeds.set()
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE) == "similar"


async def test_an_answer_teaches_nothing_about_itself(model_file: Path) -> None:
    """Equal requests with limits of time are answered each. The second one's look-up finds what the first one kept."""
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3, sampled=True) as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()
        backend.gates = (gate := Gate(),)
        asked = [
            asyncio.create_task(ask(answers, "Where are the toilets?", AnswerPolicy.USE, timeout_s=60.0))
            for _ in range(2)
        ]
        await until(lambda: len(backend.requests) == 2)
        gate.opened.set()
        assert await asyncio.gather(*asked) == ["", ""]
        await similar.settled()
        assert (similar.memory.num_questions, similar.status()["num_compared"]) == (1, 0)


async def test_equal_requests_that_are_looked_up_share_one_answer(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        similar = await taught(answers, backend)
        num_asked, num_embedded = len(backend.requests), backend.num_embedded
        backend.embeds.clear()
        backend.gates = (Gate(),)
        asked = [asyncio.create_task(ask(answers, "Are dogs not allowed?", AnswerPolicy.USE)) for _ in range(12)]
        await until(lambda: backend.num_embedded == num_embedded + 1)
        for _ in range(50):
            await asyncio.sleep(0)
        backend.embeds.set()
        await until(lambda: answers.counts["joined"] == 11)
        backend.gates[0].opened.set()
        assert await asyncio.gather(*asked) == ["", *["joined"] * 11]
        assert (len(backend.requests), backend.num_embedded) == (num_asked + 1, num_embedded + 1)
        await until(lambda: not similar._pending)


async def test_equal_requests_that_are_looked_up_get_the_similar_answer_each(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        await taught(answers, backend)
        asked = [ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE) for _ in range(5)]
        assert await asyncio.gather(*asked) == ["similar"] * 5


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_cancel_ends_a_lookup_at_once(model_file: Path, *, is_first: bool) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        await taught(answers, backend)
        num_asked, num_embedded = len(backend.requests), backend.num_embedded
        backend.embeds.clear()
        prompt, endings = ChatPrompt((Message("user", "Are dogs not allowed?"),)), [Ending(), Ending()]
        asked = [
            asyncio.create_task(answers.generate(replace(asking(name), prompt=prompt), ending))
            for name, ending in zip(("first", "second"), endings, strict=True)
        ]
        await until(lambda: backend.num_embedded == num_embedded + 1)
        at = 0 if is_first else 1
        answers.cancel("first" if is_first else "second")
        await asyncio.wait_for(asked[at], patient(10))
        finished = endings[at].finished
        assert finished is not None and finished.reason is FinishReason.CANCELLED
        backend.embeds.set()
        await asyncio.wait_for(asked[1 - at], patient(10))
        finished = endings[1 - at].finished
        assert finished is not None and finished.reason is FinishReason.STOP
        assert len(backend.requests) == num_asked + 1


@pytest.mark.parametrize("state", [WorkerState.READY, WorkerState.STARTING, None])
async def test_a_lookup_that_takes_long_is_not_waited_for_and_teaches(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, state: WorkerState | None
) -> None:
    """A model that is still loaded, or was unloaded, takes seconds, so nothing waits for it at all."""
    monkeypatch.setattr(similar_answers, "_WAIT_S", 0.001 if state is WorkerState.READY else patient(1000.0))
    backend = OneVector(model_file)
    name = "fake" if state is not None else "unloaded"
    async with caching(backend, similar=True, embedding_model=name, max_error=0.3) as answers:
        similar = await taught(answers, backend)
        backend.embeds.clear()
        backend.state = state or WorkerState.READY
        async with asyncio.timeout(patient(10)):
            for hello in ("Hi", "Hello there", "Hey", "Excuse me", "Please"):  # more than the breaker allows
                assert await ask(answers, f"{hello}, where are the toilets?", AnswerPolicy.USE) == ""
        assert similar.status()["num_compared"] == 1
        backend.embeds.set()
        await similar.settled()
        assert similar.status()["num_compared"] == 6


async def test_a_lookup_counts_in_the_limits_of_a_request(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        assert await ask(answers, "Where are the toilets?", AnswerPolicy.USE, timeout_s=1000.0) == ""
        limit_s = backend.requests[-1].timeout_s
        assert limit_s is not None and 0.0 < limit_s < 1000.0


async def test_a_lookup_that_fails_leaves_the_question_to_the_model(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        similar = await taught(answers, backend)

        def fail(*_: object) -> None:
            raise ArithmeticError("what nobody thought of")

        monkeypatch.setattr(similar.memory, "look_up", fail)
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE) == ""
        assert similar.status()["trouble"] == "what nobody thought of"


async def test_what_is_forgotten_before_it_is_learned_is_not_learned(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake") as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar  # it is not started, so what is to be learned waits
        assert await ask(answers, "Where are the toilets?", AnswerPolicy.USE) == ""
        assert await answers.forget("") == 1
        await similar.start()
        await similar.settled()
        assert similar.memory.num_questions == 0


async def test_only_what_is_forgotten_is_not_learned(model_file: Path) -> None:
    """A client's DELETE of one answer costs no other question."""
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake") as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar  # it is not started, so what is to be learned waits
        for text in ("Where are the toilets?", "Can I pay by card?"):
            assert await ask(answers, text, AnswerPolicy.USE) == ""
        forgotten = next(each.id for each in await answers.listed(None, 5) if "card" in each.question)
        assert await answers.forget_one(forgotten, None)
        await similar.start()
        await similar.settled()
        assert [known.text for known in similar.memory._known.values()] == ["Where are the toilets?"]
        assert await ask(answers, "Can I pay by card?", AnswerPolicy.USE) == ""
        await similar.settled()
        assert similar.memory.num_questions == 2, "it is asked again, and kept again"


async def test_a_question_whose_answer_is_gone_is_forgotten_and_teaches_nothing(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake") as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()
        for number, hello in enumerate(("", "Hello, ", "Hi, ")):
            assert await ask(answers, f"{hello}where are the toilets?", AnswerPolicy.USE) == ""
            await similar.settled()
            assert (similar.memory.num_questions, similar.status()["num_compared"]) == (1, 0), number
            assert await answers.store.forget(None) == 1  # as if it had expired
        assert await ask(answers, "Where are the toilets?", AnswerPolicy.USE) == ""
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE) == ""
        await similar.settled()
        assert similar.status()["num_compared"] == 1
        assert [each.num_uses for each in await answers.listed(None, 5)] == [0, 0], "a comparison is no use"


async def test_another_file_of_the_embedding_model_begins_anew(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake") as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()
        for text in ("Where are the toilets?", "When is lunch?"):
            assert await ask(answers, text, AnswerPolicy.USE) == ""
        await similar.settled()
        assert similar.memory.num_questions == 2
        replace_file(model_file)
        backend.reload("fake")
        # The first one shows that the file is another one, after its answer.
        for expected, text in enumerate(("Where is the exit?", "Are dogs allowed?")):
            assert await ask(answers, text, AnswerPolicy.USE) == ""
            await similar.settled()
            assert similar.memory.num_questions == expected


async def test_what_was_learned_is_known_after_a_restart_unless_another_judge_compares(
    model_file: Path, tmp_path: Path
) -> None:
    backend = OneVector(model_file)
    toilets = "where are the toilets?"
    runs = [
        ("model", (toilets, f"hello, {toilets}"), (1, 1)),
        ("model", (f"hi, {toilets}",), (1, 2)),
        ("text", (), (0, 0)),
    ]
    for judge, asked, expected in runs:
        options: dict[str, Any] = {"similar": True, "embedding_model": "fake", "max_error": 0.001, "judge": judge}
        async with caching(backend, tmp_path / "answers.sqlite3", **options) as answers:
            path = tmp_path / "similar.sqlite3"
            similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, path, "remote")
            answers.similar = similar
            await similar.start()
            for text in asked:
                policy = AnswerPolicy.USE if text == toilets else AnswerPolicy.READ
                assert await ask(answers, text, policy) == ""
                await similar.settled()
            assert (similar.memory.num_questions, similar.status()["num_compared"]) == expected


@pytest.mark.parametrize(
    ("judge", "own", "is_right", "num_verdicts"),
    [
        ("exact", "Downstairs.", True, 0),
        ("exact", "downstairs", False, 0),
        ("text", "downstairs", True, 0),
        ("text", "One floor down.", False, 0),
        ("model", "downstairs", True, 0),
        ("model", "One floor down.", True, 1),
    ],
)
async def test_the_judge_that_was_chosen_compares(
    model_file: Path, judge: str, own: str, is_right: bool, num_verdicts: int
) -> None:
    backend = OneVector(model_file)
    options: dict[str, Any] = {"similar": True, "embedding_model": "fake", "max_error": 0.001, "judge": judge}
    async with caching(backend, **options) as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()
        assert await ask(answers, "Where are the toilets?", AnswerPolicy.USE) == ""
        await similar.settled()
        backend.says = own
        assert await ask(answers, "Hello, where are the toilets?", AnswerPolicy.USE) == ""
        await similar.settled()
        assert [each.num_wrong for each in similar.memory.boundaries.values()] == [0 if is_right else 1]
        assert sum(bool(each.choices) for each in backend.requests) == num_verdicts


async def taught(answers: Answers, backend: OneVector, **fields: Any) -> SimilarAnswers:
    """Return similar answers that check each answer they give, and know one question in two wordings."""
    similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote", Always())
    answers.similar = similar
    await similar.start()
    for text in ("Where are the toilets?", "Hello, where are the toilets?"):
        assert await ask(answers, text, AnswerPolicy.USE, **fields) == ""
        await similar.settled()
    return similar


async def test_answers_are_checked_when_nothing_else_runs(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar_answers, "_LOOK_S", 0.0)
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        similar = await taught(answers, backend)
        backend.num_others = 1
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE) == "similar"
        num_asked = len(backend.requests)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(backend.requests) == num_asked
        backend.num_others = 0
        await until(lambda: len(backend.requests) > num_asked)
        assert backend.requests[-1].is_ahead
        await similar.settled()
        assert similar.status()["num_checked"] == 1


async def test_a_check_waits_until_its_answer_is_written(model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar_answers, "_WRITE_S", 60.0)
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        await taught(answers, backend)
        num_asked = len(backend.requests)
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE) == "similar"
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(backend.requests) == num_asked


async def test_a_check_counts_though_its_answer_is_forgotten_meanwhile(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong answers are forgotten more often than others. Without their checks the measured error is too small."""
    monkeypatch.setattr(similar_answers, "_LOOK_S", 0.0)
    backend = OneVector(model_file)
    options: dict[str, Any] = {"similar": True, "embedding_model": "fake", "max_error": 0.3, "judge": "text"}
    async with caching(backend, **options) as answers:
        similar = await taught(answers, backend)
        backend.num_others, backend.says = 1, "Upstairs."
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE) == "similar"
        for each in await answers.listed(None, 5):
            assert await answers.forget_one(each.id, None)
        num_asked = len(backend.requests)
        backend.num_others = 0
        await until(lambda: len(backend.requests) > num_asked)
        await similar.settled()
        status = similar.status()
        assert (status["num_questions"], status["num_checked"], status["num_found_wrong"]) == (0, 1, 1)


async def test_a_check_that_waits_while_all_is_forgotten_does_not_count(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured afresh says nothing of answers that were given before."""
    monkeypatch.setattr(similar_answers, "_LOOK_S", 0.0)
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        similar = await taught(answers, backend)
        backend.num_others = 1
        for hello in ("Hi", "Hello there"):  # one check has begun, and one waits for it
            assert await ask(answers, f"{hello}, where are the toilets?", AnswerPolicy.USE) == "similar"
        similar.forget(None)
        num_asked = len(backend.requests)
        backend.num_others = 0
        await until(lambda: len(backend.requests) == num_asked + 2)
        await similar.settled()
        assert similar.status()["num_checked"] == 0


async def test_an_answer_of_its_own_that_is_cut_differs_from_a_whole_one(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it did not count, the share of wrong answers among those that count would be too small."""
    monkeypatch.setattr(similar_answers, "_LOOK_S", 0.0)
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        similar = await taught(answers, backend, max_tokens=2)
        backend.ends = FinishReason.LENGTH
        num_asked = len(backend.requests)
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE, max_tokens=2) == "similar"
        await until(lambda: any(each.is_ahead for each in backend.requests[num_asked:]))
        await similar.settled()
        status = similar.status()
        assert (status["num_checked"], status["num_found_wrong"], status["num_compared"]) == (1, 1, 2)
        num_kept = status["num_questions"]
        assert await ask(answers, "Hello there, where are the toilets?", AnswerPolicy.USE, max_tokens=2) == ""
        await similar.settled()
        status = similar.status()
        assert (status["num_compared"], status["num_questions"]) == (3, num_kept), "it is compared, and not kept"
        assert sum(each.num_wrong for each in similar.memory.boundaries.values()) == 2


async def test_metrics_tell_the_errors_and_what_was_refused(model_file: Path) -> None:
    def error(kind: str) -> float | None:
        return REGISTRY.get_sample_value("edgeagent_answer_similar_error", {"kind": kind})

    def num_refused(rule: str) -> float:
        return REGISTRY.get_sample_value("edgeagent_answer_similar_refused_total", {"rule": rule}) or 0.0

    def num_looked_up(part: str) -> float:
        return REGISTRY.get_sample_value("edgeagent_answer_lookup_seconds_count", {"part": part}) or 0.0

    before = {rule: num_refused(rule) for rule in ("context", "numbers")}
    num_before = [num_looked_up(part) for part in ("embedding", "search")]
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.3) as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()
        assert (error("bound"), REGISTRY.get_sample_value("edgeagent_answer_similar_off")) == (0.3, 0)
        for text in ("Where are the toilets?", "Hello, where are the toilets?", "Where is toilet 5?"):
            assert await ask(answers, text, AnswerPolicy.USE) == ""
            await similar.settled()
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.USE) == "similar"
        assert error("expected") == similar.status()["expected_error"] != 0
        assert [num_looked_up(part) for part in ("embedding", "search")] == [number + 4 for number in num_before]
        assert similar.memory.refusal("Is it open?") == "context"
        for _ in range(20):
            similar._apply(Compared(b"forgotten", 0.9, False, 0.05))
        assert (error("measured"), REGISTRY.get_sample_value("edgeagent_answer_similar_off")) == (1, 1)
        similar.forget(None)
        assert REGISTRY.get_sample_value("edgeagent_answer_similar_off") == 0
    assert {rule: num_refused(rule) - before[rule] for rule in before} == {"context": 1, "numbers": 1}
