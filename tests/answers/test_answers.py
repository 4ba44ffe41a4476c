"""The answer cache in front of a scripted backend: what is given again, to whom, and what is not kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edgeagent.answers.answers import Answers
from edgeagent.answers.key import Question
from edgeagent.answers.recent import RecentAnswers
from edgeagent.answers.similar.similar_answers import SimilarAnswers
from edgeagent.config import Config
from edgeagent.errors import DeadlineUnreachable, EdgeAgentError, RequestTimeout, WorkerCrashed
from edgeagent.remotes import EndpointConfig, Remote
from edgeagent.remotes.file import add_remote
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.types import (
    AnswerPolicy,
    AnswerSoFar,
    CachePolicy,
    ChatPrompt,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Handover,
    Media,
    Message,
    Need,
    PromptProgress,
    RouteMode,
    SamplingParams,
    Sink,
    Started,
    Step,
    TextDelta,
    TextPrompt,
    Timings,
    ToolCallDelta,
    ToolCallStarted,
    replace,
)
from tests.answers.caches import SEAL, ModelBackend, asking, caching
from tests.backends.fake import TIMINGS, FakeBackend, Gate, failing, finished
from tests.patience import patient


class Client(Sink):
    """Keeps the deltas that come."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.news = asyncio.Event()

    def put(self, step: Step) -> None:
        self.deltas += step.deltas
        self.news.set()

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def end(self) -> Finished:
        assert isinstance(self.deltas[-1], Finished)
        return self.deltas[-1]

    @property
    def kind(self) -> str:
        """How the answer cache gave the answer; "" if a model did."""
        origin = self.end.timings.origin
        return "" if origin is None else origin.kind

    async def until_text(self, text: str) -> None:
        """Wait until this much text has come."""
        async with asyncio.timeout(patient(10)):
            while self.text != text:
                self.news.clear()
                await self.news.wait()


async def ask(answers: Answers, request: GenerateRequest) -> Client:
    client = Client()
    await answers.generate(request, client)
    return client


def replace_file(path: Path) -> None:
    path.write_bytes(path.read_bytes())


async def settle(answers: Answers) -> None:
    """Wait until what was given to the store is written."""
    await answers.store.listed(None, 1)


async def test_an_equal_question_is_answered_without_a_model(model_file: Path) -> None:
    backend = ModelBackend(model_file)
    async with caching(backend) as answers:
        first, again = await ask(answers, asking("a")), await ask(answers, asking("b"))
    assert len(backend.requests) == 1 and (first.kind, again.kind) == ("", "exact")
    assert first.text == again.text == "one two"
    started, end = again.deltas[0], again.end
    assert isinstance(started, Started) and started.placement is not None
    assert (started.placement.served_by, started.placement.reason) == ("answers", "exact")
    assert (end.reason, end.usage.num_prompt_tokens, end.usage.num_cached_tokens) == (FinishReason.STOP, 2, 2)
    assert end.timings.origin is not None and end.timings.origin.age_s >= 0 and len(end.timings.origin.id) == 16
    assert answers.counts == {"miss": 1, "exact": 1}


@pytest.mark.parametrize(("num_bytes", "is_inline"), [(1 << 20, True), ((1 << 20) + 1, False)])
async def test_the_key_of_a_long_question_is_made_beside_the_event_loop(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int, is_inline: bool
) -> None:
    threads, make = list[threading.Thread](), Question.key

    def noted(question: Question, secret: bytes) -> bytes:
        threads.append(threading.current_thread())
        return make(question, secret)

    monkeypatch.setattr(Question, "key", noted)
    backend = ModelBackend(model_file, lambda _: (Started(3, 0), TextDelta("hi"), finished()))
    async with caching(backend) as answers:
        for name in ("a", "b"):
            client = await ask(answers, asking(name, "x" * num_bytes))
    assert client.kind == "exact"
    assert (threading.main_thread() in threads) == is_inline


def other(**given: Any) -> dict[str, Any]:
    return given


NOT_GIVEN = {
    "none": other(cache=CachePolicy(answers=AnswerPolicy.NONE)),
    "another client": other(client="kiosk", cache=CachePolicy(partition="kiosk", answers=AnswerPolicy.USE)),
    "another prompt": other(prompt=TextPrompt("one  two")),
    "sampled": other(sampling=SamplingParams(temperature=0.7)),
    "no temperature": other(sampling=SamplingParams()),
    "another limit": other(max_tokens=1),
    "continued": other(so_far=AnswerSoFar("one")),
    "an image": other(prompt=ChatPrompt((Message("user", "one two"),), media=(Media("image", b"png", bytes(32)),))),
    "a prompt only": other(prefill_only=True),
    "a remote wanted": other(asked_route=RouteMode.REMOTE_ONLY),
}


@pytest.mark.parametrize("given", NOT_GIVEN.values(), ids=NOT_GIVEN.keys())
async def test_another_question_is_not(model_file: Path, given: dict[str, Any]) -> None:
    backend = ModelBackend(model_file)
    async with caching(backend) as answers:
        await ask(answers, asking("a"))
        assert (await ask(answers, replace(asking("b"), **given))).kind == ""
    assert len(backend.requests) == 2


async def test_a_reader_gets_what_is_kept_and_leaves_nothing(model_file: Path) -> None:
    backend = ModelBackend(model_file)
    reading = CachePolicy(answers=AnswerPolicy.READ)
    async with caching(backend) as answers:
        for name in "ab":
            assert (await ask(answers, asking(name, cache=reading))).kind == ""
        await ask(answers, asking("c"))
        assert (await ask(answers, asking("d", cache=reading))).kind == "exact"
    assert len(backend.requests) == 3


async def test_the_owner_chooses_clients_models_and_sharing(model_file: Path) -> None:
    random = SamplingParams()
    for options, first, then, kind in (
        ({"clients": ("kiosk",)}, asking("a"), asking("b"), ""),
        ({"clients": ("kiosk",)}, asking("a", client="kiosk"), asking("b", client="kiosk"), "exact"),
        ({"clients": ("kiosk",)}, asking("a", client="kiosk:kiosk"), asking("b", client="kiosk:kiosk"), "exact"),
        ({"models": ("big",)}, asking("a"), asking("b"), ""),
        ({"models": ("fake",)}, asking("a"), asking("b"), "exact"),
        ({"shared": True}, asking("a", client="ann"), asking("b", client="ben"), "exact"),
        ({"sampled": True}, asking("a", sampling=random), asking("b", sampling=random), "exact"),
        ({"exact": False}, asking("a"), asking("b"), ""),
    ):
        async with caching(ModelBackend(model_file), **options) as answers:
            await ask(answers, first)
            assert (await ask(answers, then)).kind == kind, options


def ended(reason: FinishReason = FinishReason.STOP, **timings: Any) -> tuple[Delta, ...]:
    return (Started(1, 0), TextDelta("x"), replace(finished(reason), timings=replace(TIMINGS, **timings)))


NOT_KEPT: dict[str, tuple[Delta | Exception, ...]] = {
    "failed": (Started(1, 0), TextDelta("x"), WorkerCrashed("signal 9")),
    "moved": ended(handovers=(Handover("local", "remote:gpu", 1, "late"),)),
    "at a remote": ended(route="remote:gpu"),
    "shifted": ended(num_shifted_tokens=3),
    "cut by the context": ended(FinishReason.LENGTH),
    "shortened": (Started(1, 0, num_dropped_items=1), TextDelta("x"), finished()),
}


@pytest.mark.parametrize("script", NOT_KEPT.values(), ids=NOT_KEPT.keys())
async def test_what_is_not_kept(model_file: Path, script: tuple[Any, ...]) -> None:
    backend = ModelBackend(model_file, lambda _: script)
    async with caching(backend) as answers:
        for name in "ab":
            try:
                assert (await ask(answers, asking(name))).kind == ""
            except EdgeAgentError as error:
                assert error.code == "worker_crashed"
        await settle(answers)
        assert answers.store.num_answers == 0
    assert len(backend.requests) == 2


async def test_an_answer_that_its_own_limit_cut_is_kept_and_one_that_the_context_cut_before_is_not(
    model_file: Path,
) -> None:
    backend = ModelBackend(model_file, lambda _: ended(FinishReason.LENGTH))  # after 2 tokens
    async with caching(backend) as answers:
        requests = [asking(name, max_tokens=number) for name, number in zip("abcd", (2, 2, 3, 3), strict=True)]
        kinds = [(await ask(answers, request)).kind for request in requests]
    assert kinds == ["", "exact", "", ""]


async def test_where_the_owner_prefers_remotes_an_answer_of_this_machine_is_not_given(
    model_file: Path, tmp_path: Path
) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir(mode=0o700)
    add_remote(state_dir, Remote("gpu", (EndpointConfig("https://gpu.example"),)))
    async with caching(ModelBackend(model_file)) as answers:
        assert [(await ask(answers, asking(name))).kind for name in "ab"] == ["", "exact"]
        access = answers.remote_access = RemoteAccess(Config(state_dir=state_dir, route="prefer_remote"))
        assert (await ask(answers, asking("c"))).kind == ""
        assert (await ask(answers, asking("d", route=RouteMode.LOCAL_ONLY))).kind == "exact"
        access.close()


async def test_calls_get_new_ids_and_all_other_deltas_come_again(model_file: Path) -> None:
    call = (ToolCallStarted(0, "call_1", "look"), ToolCallDelta(0, '{"a":'), ToolCallDelta(0, "1}"))
    script = (Started(3, 0), PromptProgress(3), *call, finished(FinishReason.TOOL_CALLS))
    async with caching(ModelBackend(model_file, lambda _: script)) as answers:
        await ask(answers, asking("a"))
        again, third = await ask(answers, asking("b")), await ask(answers, asking("c"))
    assert [type(delta) for delta in again.deltas] == [Started, ToolCallStarted, ToolCallDelta, Finished]
    ids = {delta.id for each in (again, third) for delta in each.deltas if isinstance(delta, ToolCallStarted)}
    assert len(ids) == 2 and "call_1" not in ids
    assert again.end.reason is FinishReason.TOOL_CALLS


async def test_a_replaced_model_file_answers_anew(model_file: Path) -> None:
    backend = ModelBackend(model_file)
    async with caching(backend) as answers:
        await ask(answers, asking("a"))
        replace_file(model_file)
        # The worker still has the old file: its answers are not kept as those of the new one.
        for name in "bc":
            assert (await ask(answers, asking(name))).kind == ""
        backend.reload("fake")
        assert (await ask(answers, asking("d"))).kind == ""
        assert (await ask(answers, asking("e"))).kind == "exact"


async def test_a_model_without_a_known_file_is_left_alone() -> None:
    backend = FakeBackend()
    async with caching(backend) as answers:
        for name in "ab":
            assert (await ask(answers, asking(name))).kind == ""
    assert not answers.counts


async def test_what_is_forgotten_while_it_is_generated_is_not_kept(model_file: Path) -> None:
    gate = Gate()
    script = (Started(1, 0), TextDelta("x"), gate, finished())
    async with caching(ModelBackend(model_file, lambda _: script)) as answers:
        first = Client()
        running = asyncio.create_task(answers.generate(asking("a"), first))
        await gate.reached.wait()
        assert await answers.forget(None) == 0
        gate.opened.set()
        await running
        await settle(answers)
        assert answers.store.num_answers == 0


async def test_one_clients_answers_are_forgotten(model_file: Path) -> None:
    async with caching(ModelBackend(model_file)) as answers:
        for client in ("ann", "ben"):
            await ask(answers, asking(client, client=client))
        assert await answers.forget("ann") == 1
        assert (await ask(answers, asking("b", client="ben"))).kind == "exact"
        kept = (await answers.listed(None, 10))[0]
        assert (kept.partition, kept.model, kept.question, kept.num_uses) == ("ben", "fake", "one two", 1)
        assert not await answers.forget_one(kept.id, "ann")
        assert await answers.forget_one(kept.id, "ben") and not await answers.forget_one(kept.id, None)
        assert not await answers.forget_one("no id", None)
        assert (await ask(answers, asking("c", client="ben"))).kind == ""


class Shared:
    """Several equal requests at a backend that waits after its first word."""

    def __init__(self, model_file: Path) -> None:
        self.gate = Gate()
        script = (Started(2, 0), TextDelta("one"), self.gate, TextDelta(" two"), finished())
        self.backend = ModelBackend(model_file, lambda _: script)

    async def ask(self, answers: Answers, *requests: GenerateRequest) -> list[tuple[asyncio.Task[None], Client]]:
        """Send the requests, one after the other, and wait until each has the first word."""
        running = []
        for request in requests:
            client = Client()
            running.append((asyncio.create_task(answers.generate(request, client)), client))
            await client.until_text("one")
        return running


async def test_equal_requests_at_the_same_time_share_one_answer(model_file: Path) -> None:
    shared = Shared(model_file)
    async with caching(shared.backend) as answers:
        running = await shared.ask(answers, *(asking(name) for name in "abcdefgh"))
        # One disconnects, the first of all; one cancels; the others get all.
        running[0][0].cancel()
        answers.cancel("c")
        await running[2][0]
        shared.gate.opened.set()
        for index in (1, 3, 4, 5, 6, 7):
            await running[index][0]
            assert (running[index][1].text, running[index][1].kind) == ("one two", "joined")
        assert running[2][1].end.reason is FinishReason.CANCELLED and running[2][1].text == "one"
        assert running[0][1].text == "one" and not any(isinstance(each, Finished) for each in running[0][1].deltas)
        assert (await ask(answers, asking("i"))).kind == "exact"
    assert len(shared.backend.requests) == 1 and not shared.backend.closed


async def test_when_all_have_left_the_generation_ends(model_file: Path) -> None:
    shared = Shared(model_file)
    async with caching(shared.backend) as answers:
        running = await shared.ask(answers, asking("a"), asking("b"))
        for task, _ in running:
            task.cancel()
        await asyncio.gather(*(task for task, _ in running), return_exceptions=True)
        async with asyncio.timeout(patient(10)):
            await shared.backend.until(lambda backend: backend.closed == ["a"])
        # A later request starts its own generation.
        shared.gate.opened.set()
        assert (await ask(answers, asking("c"))).kind == ""


async def test_the_last_ones_cancel_cancels_the_generation(model_file: Path) -> None:
    shared = Shared(model_file)
    async with caching(shared.backend) as answers:
        [(first, _), (last, client)] = await shared.ask(answers, asking("a"), asking("b"))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        answers.cancel("b")
        await last
    assert client.end.reason is FinishReason.CANCELLED and shared.backend.cancelled == ["a"]


async def test_a_slow_reader_delays_no_other(model_file: Path) -> None:
    """The fake backend pauses until its sink has room, as a remote does."""

    class Slow(Client):
        async def room(self) -> None:
            await asyncio.Event().wait()

    gate = Gate()
    script = (Started(2, 0), TextDelta("one"), gate, TextDelta(" two"), TextDelta(" three"), finished())
    async with caching(ModelBackend(model_file, lambda _: script)) as answers:
        fast, slow = Client(), Slow()
        first = asyncio.create_task(answers.generate(asking("a"), fast))
        await gate.reached.wait()
        second = asyncio.create_task(answers.generate(asking("b"), slow))
        await slow.until_text("one")
        gate.opened.set()
        await asyncio.gather(first, second)
    assert fast.text == slow.text == "one two three"


async def test_an_error_ends_each_with_an_error_of_its_own(model_file: Path) -> None:
    gate = Gate()
    backend = ModelBackend(model_file, lambda _: (Started(1, 0), gate, *failing(WorkerCrashed("signal 9"))(_)))
    async with caching(backend) as answers:
        clients = [Client(), Client()]
        tasks = [asyncio.create_task(answers.generate(asking(name), clients[i])) for i, name in enumerate("ab")]
        for client in clients:
            async with asyncio.timeout(patient(10)):
                await client.news.wait()
        gate.opened.set()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [WorkerCrashed, WorkerCrashed] and errors[0] is not errors[1]


async def test_each_followers_limits_are_its_own(model_file: Path) -> None:
    gate = Gate()
    backend = ModelBackend(model_file, lambda _: (gate, Started(1, 0), TextDelta("x"), finished()))
    async with caching(backend) as answers:
        first = asyncio.create_task(answers.generate(asking("a"), Client()))
        await gate.reached.wait()
        for limits, error in (
            ({"timeout_s": 0.01}, RequestTimeout),
            ({"need": Need(first_token_s=0.01)}, DeadlineUnreachable),
        ):
            with pytest.raises(error):
                await answers.generate(asking("b", **limits), Client())
        gate.opened.set()
        await first
    assert len(backend.requests) == 1


async def test_a_request_with_a_limit_of_time_leads_no_other(model_file: Path) -> None:
    shared = Shared(model_file)
    async with caching(shared.backend) as answers:
        running = await shared.ask(answers, asking("a", timeout_s=60.0), asking("b"))
        shared.gate.opened.set()
        await asyncio.gather(*(task for task, _ in running))
        assert (await ask(answers, asking("c"))).kind == "exact"
    limits_s = [request.timeout_s for request in shared.backend.requests]
    assert limits_s[0] and limits_s[1:] == [None]


async def test_a_request_that_is_cancelled_while_it_is_looked_up_ends_as_cancelled(model_file: Path) -> None:
    backend = ModelBackend(model_file)
    async with caching(backend) as answers:
        client = Client()
        running = asyncio.create_task(answers.generate(asking("a"), client))
        await asyncio.sleep(0)
        answers.cancel("a")
        await running
        assert client.end.reason is FinishReason.CANCELLED and not backend.requests
        answers.cancel("a")  # it has ended


class Cancelling(RecentAnswers):
    """A store in which nothing is found. The request "a" is cancelled as soon as the event loop runs again."""

    def __init__(self, answers: Answers) -> None:
        assert isinstance(answers.store, RecentAnswers)
        super().__init__(answers.store.store, 1000.0)
        self._answers_of = answers

    async def get(self, key: bytes, *, is_use: bool = True) -> None:
        del key, is_use
        asyncio.get_running_loop().call_soon(self._answers_of.cancel, "a")


@pytest.mark.parametrize("is_similar", [False, True])
async def test_a_cancel_before_the_router_has_the_request_is_not_lost(model_file: Path, *, is_similar: bool) -> None:
    backend = ModelBackend(model_file, lambda _: (Gate(),))
    async with caching(backend) as answers:
        answers.store = Cancelling(answers)
        if is_similar:
            answers.similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        async with asyncio.timeout(patient(10)):
            client = await ask(answers, asking("a"))
        assert client.end.reason is FinishReason.CANCELLED


@asynccontextmanager
async def silent(answers: Answers) -> AsyncIterator[None]:
    """Keep the store's thread busy, so that it answers nothing within this context."""
    assert isinstance(answers.store, RecentAnswers)
    busy, loop = asyncio.Event(), asyncio.get_running_loop()
    blocked = answers.store.store.run(lambda: asyncio.run_coroutine_threadsafe(busy.wait(), loop).result())
    try:
        yield
    finally:
        busy.set()
        await blocked


async def test_a_store_that_does_not_answer_delays_nothing_for_long(model_file: Path) -> None:
    backend = ModelBackend(model_file)
    async with caching(backend, budget_s=0.01) as answers, silent(answers):
        for name in "abcde":
            assert (await ask(answers, asking(name))).kind == ""
    assert answers.counts == {"slow": 5} and len(backend.requests) == 5


async def test_who_warms_the_cache_waits_for_a_slow_store(model_file: Path) -> None:
    backend = ModelBackend(model_file)
    async with caching(backend, budget_s=0.01) as answers:

        async def warm() -> bool:
            with answers.patience():
                await ask(answers, asking("a"))
                return await answers.has(asking("a"))

        async with silent(answers):
            warming = asyncio.create_task(warm())
            await asyncio.wait({warming}, timeout=0.1)  # far longer than the budget
        assert await warming
    assert answers.counts.get("slow") is None


async def test_no_timing_is_shared_by_accident(model_file: Path) -> None:
    async with caching(ModelBackend(model_file)) as answers:
        await ask(answers, asking("a"))
        timings = (await ask(answers, asking("b"))).end.timings
    expected = Timings(route="answers", reason="exact", placement=timings.placement, origin=timings.origin)
    assert timings == expected
