"""Commands and requests that interrupt a long step, and those that wait for its end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from edgeagent.engine.choices import Choices
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import Rank
from edgeagent.types import CachePolicy, Embed, FinishReason, GenerateRequest, MemoryKind, Tier, TokenPrompt
from edgeagent.worker.child.generator.prepared_request import PreparedRequest
from edgeagent.worker.protocol import Ask, Cancel, Stop
from tests.fakes import FakeRunner
from tests.worker.child.generator.fake_host import Bench, naive

LONG = tuple(range(1, 61))


class Abortable(FakeRunner):
    """Calls `during` within its first step, which then ends early if it was interrupted."""

    during: Callable[[], None] | None = None

    def decode(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        during, self.during = self.during, None
        if during is not None:
            during()
        if self.num_aborts:
            self.num_aborts, self.cancel_next = 0, 0
        super().decode(slices, min_tokens)


def cancelled_within(during: Callable[[Bench], None]) -> tuple[Bench, int]:
    """Cancel a prompt within its step, where `during` follows. Return how many tokens the same prompt finds then."""
    bench = Bench(runner_class=Abortable)
    bench.give(tokens=LONG, max_tokens=3)

    def cancel() -> None:
        bench.loop.interrupt(Cancel("a"))
        during(bench)

    bench.host.runner.during = cancel  # type: ignore[attr-defined]
    bench.turn()
    bench.turn()
    assert bench.finished().reason is FinishReason.CANCELLED
    bench.give("again", LONG, max_tokens=1)
    bench.run()
    assert bench.tokens("again") == naive(1, LONG)
    return bench, bench.finished("again").usage.num_cached_tokens


class TestAbandonedStep:
    def test_a_cancelled_prompt_leaves_what_its_step_computes(self) -> None:
        _, num_cached = cancelled_within(lambda bench: None)
        assert num_cached == len(LONG) - 1

    def test_a_request_that_begins_with_the_same_tokens_waits_for_the_step(self) -> None:
        bench, _ = cancelled_within(lambda bench: bench.give("next", (*LONG, 99, 98), max_tokens=1))
        assert bench.finished("next").usage.num_cached_tokens == len(LONG)
        assert bench.tokens("next") == naive(1, (*LONG, 99, 98))

    @pytest.mark.parametrize(
        "arrive",
        [
            lambda bench: bench.give("next", (*LONG[:1], 99, 98), max_tokens=1),
            lambda bench: bench.give("next", LONG, max_tokens=1, cache=CachePolicy(read=False, write=False)),
            lambda bench: bench.give("next", LONG, max_tokens=1, cache=CachePolicy(partition="other")),
            lambda bench: bench.loop.ask(Ask("e", Embed((TokenPrompt((7,)),)))),
            lambda bench: bench.loop.interrupt(Stop()),
        ],
    )
    def test_another_request_ends_the_step_at_once(self, arrive: Callable[[Bench], None]) -> None:
        bench = Bench(runner_class=Abortable)
        bench.give(tokens=LONG, max_tokens=3)

        def during() -> None:
            bench.loop.interrupt(Cancel("a"))
            assert bench.host.runner.num_aborts == 0
            arrive(bench)
            assert bench.host.runner.num_aborts == 1

        bench.host.runner.during = during  # type: ignore[attr-defined]
        bench.turn()
        assert bench.host.runner.num_tokens_computed == 0

    def test_a_prompt_that_is_not_cached_ends_at_once(self) -> None:
        bench = Bench(runner_class=Abortable)
        bench.give(tokens=LONG, max_tokens=3, cache=CachePolicy(read=False, write=False))
        bench.host.runner.during = lambda: bench.loop.interrupt(Cancel("a"))  # type: ignore[attr-defined]
        bench.turn()
        assert bench.host.runner.num_tokens_computed == 0

    def test_a_prompt_beside_another_request_ends_at_once(self) -> None:
        bench = Bench(runner_class=Abortable)
        bench.give(tokens=LONG, max_tokens=3)
        bench.give("b", max_tokens=3)
        bench.host.runner.during = lambda: bench.loop.interrupt(Cancel("a"))  # type: ignore[attr-defined]
        bench.turn()
        assert bench.host.runner.num_tokens_computed == 0
        bench.run()
        assert bench.tokens("b") == naive(3)

    def test_a_request_behind_cancelled_choices_is_answered(self) -> None:
        bench = Bench(runner_class=Abortable)
        prepare = bench.host.prepare

        def with_choices(request: GenerateRequest, *rest: Any) -> PreparedRequest:
            prepared = prepare(request, *rest)
            if request.id != "a":
                return prepared
            tree = Choices(tuple((3, number, number + 1) for number in range(4, 34)), (2,))
            return replace(prepared, spec=replace(prepared.spec, choices=tree))

        def cancel() -> None:
            if bench.host.runner.num_tokens_computed < len(LONG):  # the choices come in the next step
                bench.host.runner.during = cancel  # type: ignore[attr-defined]
                return
            bench.host.engine.current_step.is_long = True
            bench.loop.interrupt(Cancel("a"))
            bench.give("next", max_tokens=1)

        bench.host.prepare = with_choices  # type: ignore[assignment, method-assign]
        bench.host.runner.during = cancel  # type: ignore[attr-defined]
        bench.give(tokens=LONG, max_tokens=3)
        bench.run()
        assert bench.finished().reason is FinishReason.CANCELLED
        assert bench.tokens("next") == naive(1)


class TestInterrupt:
    @pytest.mark.parametrize("command", [Cancel("a"), Stop()])
    def test_only_a_long_step_is_interrupted(self, command: Cancel | Stop) -> None:
        bench = Bench()
        bench.submit()
        bench.turn()
        bench.loop.interrupt(command)
        assert bench.host.runner.num_aborts == 0
        bench.host.engine.current_step.is_long = True
        bench.loop.interrupt(command)
        assert bench.host.runner.num_aborts == 1

    def test_what_a_newer_prompt_needs_too_is_not_interrupted(self) -> None:
        bench = Bench()
        bench.submit(is_ahead=True, prefill_only=True)
        bench.submit("answer", is_ahead=True)
        bench.turn()
        bench.host.engine.current_step.is_long = True
        bench.loop.interrupt(Cancel("a"))
        assert bench.host.runner.num_aborts == 0
        bench.loop.interrupt(Cancel("answer"))
        assert bench.host.runner.num_aborts == 1

    @pytest.mark.parametrize(
        ("tier", "rank", "num_aborts"),
        [
            (Tier.REALTIME, Rank.INTERACTIVE, 1),
            (Tier.REALTIME, Rank.REALTIME, 0),
            (Tier.INTERACTIVE, Rank.INTERACTIVE, 0),
            (Tier.INTERACTIVE, Rank.BATCH, 1),
            (Tier.BATCH, Rank.BATCH, 0),
            (Tier.REALTIME, Rank.AHEAD, 0),
        ],
    )
    def test_a_request_waits_for_no_long_step_of_less_urgent_ones(
        self, tier: Tier, rank: Rank, num_aborts: int
    ) -> None:
        bench = Bench()
        engine = bench.host.engine
        engine.current_step.is_long, engine.current_step.rank = True, rank
        bench.give(tier=tier, max_tokens=1)
        assert bench.host.runner.num_aborts == num_aborts
        bench.run()
        assert bench.tokens() == naive(1)

    def test_a_realtime_request_waits_for_one_step_of_a_memory_that_is_not_interrupted(self) -> None:
        bench = Bench(num_cells=2048, ends=False, memory_kind=MemoryKind.RECURRENT)
        bench.give("long", tuple(range(1, 256)) * 4, max_tokens=1, tier=Tier.BATCH)
        bench.turn()
        bench.give("now", max_tokens=1, tier=Tier.REALTIME)
        for _ in range(2):  # its last token has its own step, after the saved state
            bench.turn()
        assert bench.finished("now").usage.num_output_tokens == 1
        assert "long" not in bench.ends

    def test_a_cancel_that_comes_before_a_long_step_begins_is_taken_first(self) -> None:
        bench = Bench()
        bench.give(tokens=tuple(range(1, 61)), max_tokens=3)
        # The cancel arrives while the round runs, before there is a step to interrupt.
        bench.host.adjust_threads = lambda: bench.loop.interrupt(Cancel("a"))  # type: ignore[method-assign]
        bench.turn()
        bench.host.adjust_threads = lambda: None  # type: ignore[method-assign]
        bench.run()
        assert bench.finished().reason is FinishReason.CANCELLED
        assert bench.host.runner.num_tokens_computed == 0

    def test_a_flood_of_commands_does_not_hold_up_the_engine(self) -> None:
        bench = Bench(ends=False)
        bench.give(max_tokens=3)
        cancel, num_cancels = bench.loop._cancel, itertools.count()

        def cancel_and_get_another(request_id: str) -> None:
            cancel(request_id)
            assert next(num_cancels) < 100
            bench.loop.commands.put(Cancel("of the flood"))

        bench.loop._cancel = cancel_and_get_another  # type: ignore[method-assign]
        bench.loop.commands.put(Cancel("of the flood"))
        while "a" not in bench.ends:
            bench.turn()
        assert len(bench.tokens()) == 3
