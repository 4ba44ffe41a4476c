"""The router executes the policy's decision, and obeys the contract of a backend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator

import pytest

from edgeagent.backends.base import Backend, Estimate
from edgeagent.errors import BackendUnavailable, InternalError, ModelNotFound, Overloaded, RemoteUnavailable
from edgeagent.router.models import NO_MODEL, AllModels
from edgeagent.router.router import Router
from edgeagent.types import (
    AnswerSoFar,
    Detokenize,
    Finished,
    FinishReason,
    GenerateRequest,
    Permit,
    RouteMode,
    Started,
    Step,
    TextDelta,
    Tokenize,
)
from tests.backends.fake import FakeBackend, Gate, failing, finished
from tests.backends.reading import steps_of
from tests.worker.support import request


async def collect(router: Router, wanted: GenerateRequest) -> list[Step]:
    return [step async for step in steps_of(router.generate, wanted)]


class FullBackend(FakeBackend):
    """A fake without free capacity."""

    def estimate(self, request: GenerateRequest) -> Estimate:
        return Estimate(self.name, num_live=7, is_full=True, retry_after_s=5.0)


class FarBackend(FakeBackend):
    """A fake on another machine."""

    name = "remote:far"

    def estimate(self, request: GenerateRequest) -> Estimate:
        return Estimate(self.name, num_live=0)


async def test_the_end_tells_route_and_reason() -> None:
    router = Router([FakeBackend()])
    steps = await collect(router, request("hello there", model="fake"))
    assert [delta.text for step in steps for delta in step.deltas if isinstance(delta, TextDelta)] == [
        "hello",
        " there",
    ]
    last = steps[-1].deltas[-1]
    assert isinstance(last, Finished)
    assert (last.timings.route, last.timings.reason) == ("fake", "local_only")
    assert last.timings.prefill_ms == 8.0, "the backend's own figures stay"
    assert last.usage.num_output_tokens == 2


async def test_an_end_behind_other_deltas_is_marked_too() -> None:
    router = Router([FakeBackend(lambda _: [(Started(1, 0), TextDelta("x"), finished())])])
    (step,) = await collect(router, request("", model="fake"))
    assert [type(delta) for delta in step.deltas] == [Started, TextDelta, Finished]
    assert isinstance(step.deltas[-1], Finished) and step.deltas[-1].timings.reason == "local_only"


async def test_closing_reaches_the_backend() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: [TextDelta("x"), gate, finished()])
    steps = steps_of(Router([backend]).generate, request("", model="fake"))
    await anext(steps)
    await steps.aclose()
    assert backend.closed == ["r1"]


async def test_cancel_reaches_the_backend_and_the_end_comes_back() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: [TextDelta("x"), gate, finished()])
    router = Router([backend])
    got = []
    async for step in steps_of(router.generate, request("", model="fake")):
        got.append(step)
        router.cancel("r1")
    last = got[-1].deltas[-1]
    assert isinstance(last, Finished) and last.reason is FinishReason.CANCELLED


async def test_errors_pass_unchanged() -> None:
    with pytest.raises(InternalError, match="boom"):
        await collect(Router([FakeBackend(failing(InternalError("boom")))]), request("", model="fake"))
    with pytest.raises(ModelNotFound, match="other"):
        await collect(Router([FakeBackend()]), request("", model="other"))


async def test_a_full_backend_is_not_asked() -> None:
    backend = FullBackend()
    with pytest.raises(Overloaded) as caught:
        await collect(Router([backend]), request("", model="fake"))
    assert caught.value.retry_after_s == 5.0
    assert backend.requests == []


async def test_nothing_leaves_the_machine() -> None:
    backend = FarBackend()
    with pytest.raises(BackendUnavailable, match="local only"):
        await collect(Router([backend]), request("", model="fake"))
    assert backend.requests == []


async def test_models_start_and_stop_cover_all_backends() -> None:
    near, far = FakeBackend(models=("a", "b")), FarBackend(models=("c",))
    router = Router([near, far], machine_mode=lambda: RouteMode.PREFER_LOCAL)
    await router.start()
    assert near.is_started and far.is_started
    assert [model.name for model in router.models.statuses()] == ["a", "b", "c"]
    assert router.models.default() == "a"
    router.models.reload("c")
    assert (near.reloaded, far.reloaded) == ([], ["c"])
    with pytest.raises(ModelNotFound, match="'d'"):
        router.models.reload("d")
    await router.stop()
    assert not near.is_started and not far.is_started


async def test_a_remote_that_cannot_be_asked_hides_no_other_answer() -> None:
    class UnreadableFar(FakeBackend):
        name = "remote:unreadable"

        def find(self, name: str) -> str:
            raise RemoteUnavailable("its CA file is damaged")

        def default(self) -> str:
            raise RemoteUnavailable("its CA file is damaged")

    near, unreadable = FakeBackend(models=("a",)), UnreadableFar()
    alone = Router([unreadable], machine_mode=lambda: RouteMode.PREFER_LOCAL)
    assert alone.models.default() == NO_MODEL
    router = Router([unreadable, near], machine_mode=lambda: RouteMode.PREFER_LOCAL)
    assert router.models.default() == "a"
    router.models.reload("a")
    assert await router.models.unload("a") == 0
    assert (await router.models.ask("a", Tokenize("x"))).tokens
    with pytest.raises(ModelNotFound, match="'d'"):
        router.models.reload("d")
    with pytest.raises(ModelNotFound, match="'d'"):
        await router.models.unload("d")
    with pytest.raises(ModelNotFound, match="'d'"):
        await router.models.ask("d", Tokenize("x"))
    with pytest.raises(RemoteUnavailable, match="CA file"):
        await alone.models.ask("d", Tokenize("x"))


def test_naming_the_package_imports_no_backend() -> None:
    code = "import edgeagent.router, sys; print([m for m in sys.modules if m.startswith('edgeagent.backends')])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


async def test_a_question_goes_to_who_has_the_model() -> None:
    first, second = FakeBackend(), FakeBackend(models=("other",))
    second.name = "second"
    router = Router([first, second])
    assert (await router.models.ask("other", Tokenize("ab"))).tokens == (97, 98)
    assert (await router.models.ask("fake", Detokenize((97,)))).text == "a"
    with pytest.raises(ModelNotFound, match="there is fake"):
        await router.models.ask("nobody's", Tokenize("ab"))
    with pytest.raises(BackendUnavailable):
        await Router([]).models.ask("fake", Tokenize("ab"))


class Named(FakeBackend):
    """A fake with its own name."""

    def __init__(self, name: str, *models: str) -> None:
        super().__init__(models=models)
        self.name = name


async def test_where_nobody_knows_a_model_the_first_backend_s_word_is_told() -> None:
    router = Router([Named("one", "a"), Named("two", "b")])
    with pytest.raises(ModelNotFound) as told:
        await router.models.ask("c", Tokenize(""))
    assert "there is a" in told.value.message
    for call in (router.models.reload, router.models.find):
        with pytest.raises(ModelNotFound) as told:
            call("c")
        assert "there is a" in told.value.message
    with pytest.raises(ModelNotFound) as told:
        await collect(router, request("", model="c"))
    assert "there is a" in told.value.message


class Strict(Named):
    """A fake that raises on an estimate for an unknown model, as the local backend does."""

    def estimate(self, request: GenerateRequest) -> Estimate:
        self.find(request.model)
        return super().estimate(request)


async def test_a_request_goes_to_who_knows_the_model_and_to_nobody_where_none_does() -> None:
    one, two = Strict("one", "a"), Strict("two", "b")
    steps = await collect(Router([one, two]), request("hello", model="b"))
    assert isinstance(last := steps[-1].deltas[-1], Finished) and last.timings.route == "two"
    with pytest.raises(ModelNotFound, match="there is a"):
        await collect(Router([one, two]), request("hello", model="c"))
    with pytest.raises(BackendUnavailable, match="no model of its own"):
        await collect(Router([]), request("hello", model="a"))
    assert one.requests == []


async def test_a_model_is_found_wherever_it_is() -> None:
    router = Router([Named("one", "a"), Named("two", "b")])
    assert [router.models.find(name) for name in ("a", "b")] == ["a", "b"]
    with pytest.raises(BackendUnavailable, match="no backend"):
        Router([]).models.find("a")


async def test_steps_before_the_end_pass_as_they_are() -> None:
    first, empty = Step((TextDelta("x"),), (1,), 0.5), Step((), (), 0.6)

    class Given(FakeBackend):
        async def play(
            self, request: GenerateRequest, permit: Permit | None = None, so_far: AnswerSoFar | None = None
        ) -> AsyncGenerator[Step, None]:
            yield first
            yield empty
            yield Step((TextDelta("y"), finished()), (2,), 0.7)

    steps = await collect(Router([Given()]), request("", model="fake"))
    assert steps[0] is first and steps[1] is empty
    assert (steps[2].deltas[0], steps[2].tokens, steps[2].at_s) == (TextDelta("y"), (2,), 0.7)


async def test_a_cancel_reaches_every_backend() -> None:
    asked: list[str] = []

    class Listening(Named):
        def cancel(self, request_id: str) -> None:
            asked.append(f"{self.name} {request_id}")

    Router([Listening("one"), Listening("two")]).cancel("r1")
    assert asked == ["one r1", "two r1"]


async def test_a_refusal_says_how_many_are_there() -> None:
    with pytest.raises(Overloaded, match=r"^7 requests are running or waiting"):
        await collect(Router([FullBackend()]), request("", model="fake"))


class SearchingBackend(FakeBackend):
    """A fake that looks for models on disk."""

    async def locate(self, name: str) -> str:
        raise ModelNotFound(f"model '{name}' not found; near names: fake", param="model")


async def test_a_question_to_an_unknown_model_is_answered_with_near_names() -> None:
    with pytest.raises(ModelNotFound, match="near names: fake"):
        await Router([SearchingBackend()]).models.ask("fakee", Tokenize("hi"))


async def test_a_request_comes_back_to_a_model_that_was_unloaded_while_it_was_elsewhere() -> None:
    class Forgetful(FakeBackend):
        """A fake that unloads its model while it has no request."""

        is_known = False

        async def locate(self, name: str) -> str:
            self.is_known = True
            return await super().locate(name)

        def find(self, name: str) -> str:
            if not self.is_known:
                raise ModelNotFound("it was unloaded", param="model")
            return super().find(name)

        def estimate(self, request: GenerateRequest) -> Estimate:
            self.find(request.model)
            return super().estimate(request)

    def fail(_: GenerateRequest) -> list[Exception]:
        here.is_known = False
        return [RemoteUnavailable("gone")]

    here = Forgetful()
    router = Router([here, FarBackend(fail)], machine_mode=lambda: RouteMode.PREFER_REMOTE)
    (*_, last) = await collect(router, request("hello", model="fake"))
    assert isinstance(end := last.deltas[-1], Finished) and end.timings.route == "fake"
    assert len(here.requests) == 1


async def test_remotes_may_come_and_go_while_a_model_is_searched() -> None:
    backends: dict[str, Backend] = {}

    class Slow(SearchingBackend):
        """The owner adds a remote while this one searches."""

        async def locate(self, name: str) -> str:
            backends[f"remote:{len(backends)}"] = FakeBackend()
            return await super().locate(name)

        async def unload(self, name: str) -> int:
            backends[f"remote:{len(backends)}"] = FakeBackend()
            return await super().unload(name)

    backends["local"] = Slow()
    models = AllModels(backends, lambda: RouteMode.PREFER_LOCAL)
    with pytest.raises(ModelNotFound):
        await models.locate("fakee")
    with pytest.raises(ModelNotFound):
        await models.unload("fakee")
