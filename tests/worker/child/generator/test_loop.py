"""The worker's main thread on a fake host: every request ends once, with the right counts."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from edgeagent.engine.llama.embedder import Rows
from edgeagent.errors import InternalError, InvalidRequest
from edgeagent.text.output.stream import OutputStream
from edgeagent.types import (
    Delta,
    Embed,
    FinishReason,
    GenerateRequest,
    MemoryKind,
    Started,
    Target,
    TextDelta,
    TokenLogprob,
    TokenPrompt,
)
from edgeagent.worker.child.generator import loop, step_frames
from edgeagent.worker.protocol import (
    MAX_FRAME_FROM_WORKER_BYTES,
    Ask,
    Cancel,
    Delivered,
    FromWorker,
    StepItem,
    Stop,
    Submit,
    encode,
)
from tests.fakes import AsynchronousRunner, FakeRunner, FakeTier
from tests.patience import patient
from tests.present import present
from tests.worker.child.generator.fake_host import PLAIN, PROMPT, Bench, made, naive, text_of


def scores_of(items: Sequence[StepItem]) -> list[tuple[int, float]]:
    deltas = [delta for item in items for delta in item.deltas if isinstance(delta, TextDelta)]
    return [(score.token, round(score.logprob, 4)) for delta in deltas for score in delta.logprobs]


def step_tokens(bench: Bench, request_id: str) -> list[tuple[int, ...]]:
    return [item.tokens for item in bench.items.get(request_id, ())]


class TestAnswers:
    def test_started_tokens_finished_and_their_counts(self) -> None:
        bench = Bench()
        bench.give(max_tokens=5)
        bench.run()
        assert bench.items["a"][0].deltas[0] == Started(len(PROMPT), 0)
        assert bench.tokens() == naive(5)
        finished = bench.finished()
        assert finished.reason is FinishReason.LENGTH
        usage = finished.usage
        assert (usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_output_tokens) == (3, 0, 5)
        times = finished.timings
        assert min(times.queue_ms, times.cache_ms, times.prefill_ms, times.decode_ms) >= 0
        assert times.first_token_ms > 0
        assert not bench.loop.status.num_running
        assert bench.loop.status.num_output_tokens_total == 5

    def test_on_a_cpu_the_first_token_is_written_before_the_next_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A step of a CPU holds the interpreter until it is planned, and would delay the writer's thread."""
        monkeypatch.setattr(loop, "_FIRST_TOKEN_S", patient(10.0))
        bench, written = Bench(), list[FromWorker]()
        num_written_before_step: list[int] = []
        submit = bench.host.runner.submit

        def recorded(*arguments: Any) -> None:
            num_written_before_step.append(len(written))
            submit(*arguments)

        monkeypatch.setattr(bench.host.runner, "submit", recorded)

        def write() -> None:
            while (item := bench.frames.get()) is not None:
                written.extend(made(item))

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        bench.give(max_tokens=3)
        while bench.host.engine.has_work or not bench.loop.commands.empty():
            bench.loop.turn()
        bench.frames.put(None)  # type: ignore[arg-type]
        writer.join()
        # The start of the answer comes before the prompt's step, and the first token before the second step.
        assert num_written_before_step[:2] == [1, 2]

    @pytest.mark.parametrize("logprobs", [None, 1])
    @pytest.mark.parametrize("num_drafts", [0, 3])
    def test_an_output_goes_on_from_any_of_its_tokens(self, num_drafts: int, logprobs: int | None) -> None:
        """Tokens and text before the cut were delivered; the next worker sends those after it."""
        # In half of the cases text is held back, since a stop string could begin there.
        fields: dict[str, Any] = {"max_tokens": 12, "logprobs": logprobs}
        plain = Bench()
        plain.give(**fields)
        plain.run()
        fields["stop"] = tuple(char + "no such text" for char in plain.text()[::2])
        whole = Bench(num_drafts=num_drafts)
        whole.give(**fields)
        whole.run()
        for num in range(12):
            before, after = Bench(num_drafts=num_drafts), Bench(num_drafts=num_drafts)
            before.give(**fields)
            while len(before.items.get("a", ())) <= num and not before.ends:
                before.turn()
            items = before.items["a"][: num + 1]
            tokens = tuple(token for item in items for token in item.tokens)
            text = "".join(delta.text for item in items for delta in item.deltas if isinstance(delta, TextDelta))
            if len(tokens) == 12:
                break
            step_lengths = tuple(len(item.tokens) for item in items if item.tokens)
            after.give(delivered=Delivered(tokens, step_lengths, items[-1].held_logprobs), **fields)
            after.run()
            assert [*tokens, *after.tokens()] == whole.tokens()
            assert text + after.text() == whole.text()
            assert scores_of(items) + scores_of(after.items["a"]) == scores_of(whole.items["a"])
            assert after.finished().reason is whole.finished().reason
            assert after.finished().usage.num_output_tokens == 12
            assert after.finished().usage.num_prompt_tokens == len(PROMPT)

    def test_more_than_was_asked_for_cannot_be_gone_on_with(self) -> None:
        bench = Bench()
        bench.give(max_tokens=2, delivered=Delivered((1, 2), (1, 1)))
        bench.run()
        assert bench.failed().code == "internal_error"

    def test_prefill_only_ends_without_a_token_cached_or_not(self) -> None:
        bench = Bench()
        for name, num_cached in (("a", 0), ("b", 3)):
            bench.give(name, prefill_only=True)
            bench.run()
            finished = bench.finished(name)
            assert finished.reason is FinishReason.STOP
            assert (finished.usage.num_cached_tokens, finished.usage.num_output_tokens) == (num_cached, 0)
            assert (finished.timings.first_token_ms, finished.timings.decode_ms) == (0.0, 0.0)
            assert bench.items[name][0].deltas[0] == Started(3, num_cached)

    @pytest.mark.parametrize("end", ["length", "cancel"])
    def test_the_steps_of_a_whole_answer_wait_for_its_end(self, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_frames, "_HOLD_S", float("inf"))
        bench = Bench()
        bench.give(max_tokens=6, is_whole=True)
        while not bench.items.get("a") or not bench.tokens():
            bench.turn()
        first = bench.tokens()
        for _ in range(2):
            bench.turn()
            assert bench.tokens() == first and not bench.ends
        if end == "cancel":
            bench.loop.commands.put(Cancel("a"))
        bench.run()
        tokens = bench.tokens()
        assert len(first) < len(tokens) and tokens == naive(6)[: len(tokens)]
        assert bench.finished().usage.num_output_tokens == len(tokens)
        assert (len(tokens) == 6) == (end == "length")

    def test_a_whole_answer_does_not_delay_a_stream(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_frames, "_HOLD_S", float("inf"))
        plain, beside = Bench(), Bench()
        for bench, fields in ((plain, {}), (beside, {"is_whole": True})):
            bench.give("a", max_tokens=6)
            bench.give("b", (1, 2), max_tokens=6, **fields)
        while not plain.ends:
            plain.turn()
            beside.turn()
            for name in ("a", "b"):
                assert step_tokens(beside, name) == step_tokens(plain, name)

    def test_what_waited_long_enough_is_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_frames, "_HOLD_S", 0.0)
        plain, whole = Bench(), Bench()
        plain.give(max_tokens=6)
        whole.give(max_tokens=6, is_whole=True)
        while not plain.ends:
            plain.turn()
            whole.turn()
            assert step_tokens(whole, "a") == step_tokens(plain, "a")

    def test_several_in_one_frame(self) -> None:
        bench = Bench()
        bench.give("a", max_tokens=3)
        bench.give("b", (1, 2), max_tokens=3)
        bench.run()
        assert (bench.tokens("a"), bench.tokens("b")) == (naive(3), naive(3, (1, 2)))

    def test_logprobs_have_their_tokens_bytes(self) -> None:
        bench = Bench()
        bench.give(tokens=PLAIN, max_tokens=4, logprobs=2)
        bench.run()
        deltas = [delta for item in bench.items["a"] for delta in item.deltas if isinstance(delta, TextDelta)]
        logprobs = [logprob for delta in deltas for logprob in delta.logprobs]
        assert [logprob.token for logprob in logprobs] == naive(4, PLAIN)
        assert b"".join(logprob.piece for logprob in logprobs).decode() == bench.text()
        assert [len(logprob.top) for logprob in logprobs] == [2] * 4

    @pytest.mark.parametrize("is_cancelled", [False, True])
    def test_text_held_back_for_long_fits_the_frames_with_all_its_logprobs(self, is_cancelled: bool) -> None:
        class Holding(OutputStream):
            def feed(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob | None] = ()) -> tuple[Delta, ...]:
                super().feed(tokens, logprobs)
                held.extend(map(present, logprobs))
                return ()

            def finish(self) -> tuple[Delta, ...]:
                return (TextDelta(" " * len(held), tuple(held)),)

        held: list[TokenLogprob] = []
        bench = Bench(num_cells=1024, ends=False)
        request = GenerateRequest(id="a", model="", prompt=TokenPrompt(PROMPT), max_tokens=700, logprobs=20)
        submit = Submit(request, time.monotonic())
        bench.loop.commands.put(submit)
        prepared = bench.host.prepare(request)
        bench.host.prepare = lambda request, *rest: replace(prepared, output=Holding(bench.host.model))  # type: ignore[method-assign]
        bench.prepare(submit)
        while len(held) < 690:
            bench.turn()
        if is_cancelled:
            bench.loop.commands.put(Cancel("a"))
        bench.run()
        assert max(bench.frame_sizes) < MAX_FRAME_FROM_WORKER_BYTES / 4
        deltas = [delta for item in bench.items["a"] for delta in item.deltas if isinstance(delta, TextDelta)]
        assert [logprob for delta in deltas for logprob in delta.logprobs] == held
        assert bench.text() == " " * len(held)
        assert bench.finished().usage.num_output_tokens == len(held)

    def test_a_target_sets_when_the_first_token_is_due(self) -> None:
        bench = Bench(ends=False)
        submit = bench.submit(max_tokens=30, target=Target(first_token_s=0.5, token_s=0.2))
        bench.prepare(submit)
        bench.give("b", max_tokens=30)
        bench.turn()
        running = bench.host.engine._running
        assert (running["a"].due_s, running["b"].due_s) == (submit.accepted_at_s + 0.5, math.inf)

    def test_an_idle_worker_says_that_it_is_idle(self) -> None:
        bench = Bench()
        bench.give(max_tokens=100)
        bench.turn()
        assert bench.loop.status.num_running == 1
        bench.loop.commands.put(Cancel("a"))
        bench.turn()
        assert bench.loop.status.num_running == 0

    def test_nothing_is_kept_of_what_is_over(self) -> None:
        bench = Bench()
        for index in range(50):
            bench.give(f"r{index}", (index + 1, 2), max_tokens=2)
            bench.run()
        assert len(bench.ends) == 50
        assert not bench.loop._requests


class TestStopStrings:
    def test_a_stop_string_ends_the_answer(self) -> None:
        bench = Bench()
        stop = text_of(naive(4, PLAIN))[2]
        bench.give(tokens=PLAIN, max_tokens=50, stop=(stop,))
        bench.run()
        assert bench.finished().reason is FinishReason.STOP
        assert bench.text() == text_of(naive(4, PLAIN))[:2]
        assert not bench.host.engine.has_work

    def test_a_stop_string_in_the_last_token_allowed_is_a_stop(self) -> None:
        bench = Bench()
        stop = text_of(naive(3, PLAIN))[-1]
        bench.give(tokens=PLAIN, max_tokens=3, stop=(stop,))
        bench.run()
        assert bench.finished().reason is FinishReason.STOP

    @pytest.mark.parametrize("num_drafts", [0, 3])
    def test_tokens_behind_a_stop_string_do_not_count_however_many_a_step_brings(self, num_drafts: int) -> None:
        bench = Bench(num_drafts=num_drafts)
        answer = naive(4, PLAIN)
        stop = text_of(answer)[len(text_of(answer[:1]))]  # the second token's first character
        bench.give(tokens=PLAIN, max_tokens=50, stop=(stop,), draft_tokens=num_drafts)
        bench.run()
        assert bench.tokens() == answer[:2]
        assert bench.finished().usage.num_output_tokens == 2
        if num_drafts:
            assert bench.finished().timings.num_accepted_tokens > 0, "the step did bring more"


class TestEnds:
    def test_cancelled_while_it_is_prepared(self) -> None:
        bench = Bench()
        submit = bench.submit()
        bench.loop.commands.put(Cancel("a"))
        bench.loop.commands.put(Cancel("a"))
        bench.loop.commands.put(Cancel("never heard of"))
        bench.prepare(submit)
        bench.run()
        assert bench.finished().reason is FinishReason.CANCELLED
        assert not bench.host.engine.has_work

    def test_a_refusal_after_a_cancel_is_no_second_end(self) -> None:
        bench = Bench()
        bench.host.refusal = InvalidRequest("no")
        submit = bench.submit()
        bench.loop.commands.put(Cancel("a"))
        bench.prepare(submit)
        bench.run()
        assert bench.finished().reason is FinishReason.CANCELLED

    def test_an_id_used_again_gets_its_own_prompt(self) -> None:
        bench = Bench()
        first = bench.submit(max_tokens=5)
        bench.loop.commands.put(Cancel("a"))
        bench.turn()
        assert bench.finished().reason is FinishReason.CANCELLED
        bench.ends.clear()
        second = bench.submit(tokens=(7, 8), max_tokens=2)
        bench.prepare(first)
        bench.prepare(second)
        bench.run()
        assert bench.tokens() == naive(2, (7, 8))

    def test_a_second_request_with_a_live_id_does_not_disturb_the_first(self) -> None:
        bench = Bench()
        bench.give(max_tokens=3)
        bench.give(tokens=(1, 2), max_tokens=9)
        bench.run()
        assert bench.tokens() == naive(3)

    def test_cancelled_in_mid_answer_with_what_was_used(self) -> None:
        bench = Bench()
        bench.give(tokens=PLAIN, max_tokens=100)
        for _ in range(3):
            bench.turn()
        bench.loop.commands.put(Cancel("a"))
        bench.run()
        finished = bench.finished()
        assert (finished.reason, finished.usage.num_output_tokens) == (FinishReason.CANCELLED, 3)
        assert bench.tokens() == naive(3, PLAIN)

    def test_too_long_a_prompt_fails_with_its_field(self) -> None:
        bench = Bench(num_cells=32)
        bench.give(tokens=(1,) * 40)
        bench.run()
        assert (bench.failed().code, bench.failed().param) == ("context_length_exceeded", "input")

    @pytest.mark.parametrize("error", [ValueError("a bug"), type("PanicException", (BaseException,), {})("in Rust")])
    def test_a_bug_in_preparing_ends_that_request_only(
        self, error: BaseException, capsys: pytest.CaptureFixture[str]
    ) -> None:
        bench = Bench()
        bench.host.refusal = error
        bench.give("a")
        bench.host.refusal = None
        bench.give("b", max_tokens=1)
        bench.run()
        assert (bench.failed("a").code, bench.finished("b").reason) == ("internal_error", FinishReason.LENGTH)
        assert str(error) in capsys.readouterr().err

    def test_an_error_however_long_fits_a_frame(self) -> None:
        bench = Bench()
        bench.host.refusal = InvalidRequest("schema " * 1_000_000)
        bench.give()
        bench.turn()
        assert len(encode(bench.failed())) < MAX_FRAME_FROM_WORKER_BYTES

    def test_a_batch_that_breaks_fails_its_requests(self) -> None:
        bench = Bench()
        bench.give("a", max_tokens=9)
        bench.turn()
        bench.host.runner.decode = _broken  # type: ignore[method-assign]
        bench.run()
        assert bench.failed().code == "internal_error"

    def test_stop_ends_what_is_prepared_waiting_and_running(self) -> None:
        bench = Bench()
        bench.give("running", max_tokens=100)
        bench.turn()
        bench.give("new", max_tokens=100)
        bench.submit("unprepared")
        bench.loop.commands.put(Stop())
        assert not bench.turn()
        assert {name: bench.finished(name).reason for name in bench.ends} == dict.fromkeys(
            ("running", "new", "unprepared"), FinishReason.CANCELLED
        )


def _broken(slices: object, min_tokens: int = 0) -> None:
    raise InternalError("llama_decode failed with status -3")


class TestDelivery:
    @pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
    def test_tokens_are_sent_before_anything_is_read_out_of_the_cells(self, kind: MemoryKind) -> None:
        bench = Bench(num_cells=2048, ends=False, memory_kind=kind, below=FakeTier())
        order: list[str] = []
        runner, put = bench.host.runner, bench.frames.put
        runner.decode = noting(order, "step", runner.decode)  # type: ignore[method-assign]
        runner.save = noting(order, "save", runner.save)  # type: ignore[method-assign]
        bench.loop._frames = SimpleNamespace(put=noting(order, "send", put))
        bench.give("a", max_tokens=100)
        bench.turn()
        bench.give("b", tuple(range(1, 256)) * 2, max_tokens=5)
        bench.run()
        assert order.count("save") >= 2
        assert not any(earlier == "step" and later == "save" for earlier, later in itertools.pairwise(order)), (
            "every step brought at least one stream a token"
        )


def noting(order: list[str], name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call that also records its name."""

    def noted(*args: object) -> object:
        order.append(name)
        return call(*args)

    return noted


class TestEmbeddings:
    def embed(self, bench: Bench, ask_id: str, *texts: tuple[int, ...]) -> None:
        query = Embed(tuple(TokenPrompt(text) for text in texts))
        bench.loop.commands.put(Ask(ask_id, query))
        bench.loop.read_texts(ask_id, query)

    def test_chunks_stand_between_the_steps_of_a_stream(self) -> None:
        bench = Bench()
        bench.give(max_tokens=12)
        bench.turn()
        self.embed(bench, "e", (7, 8, 9))
        while not bench.answers:
            if not bench.host.engine.has_work:
                bench.run()
            bench.turn()
        [answer] = bench.answers
        assert (answer.id, answer.is_last, answer.part.embeddings[0].num_tokens) == ("e", True, 3)
        bench.run()
        assert bench.tokens() == naive(12)
        assert bench.loop.status.num_steps >= 12

    def test_alone_it_is_work_enough(self) -> None:
        bench = Bench()
        self.embed(bench, "e", (7, 8), (9,))
        for _ in range(3):
            bench.turn()
        assert [answer.is_last for answer in bench.answers] == [False, True]

    def test_a_cancel_is_heard_between_two_chunks(self) -> None:
        bench = Bench()
        self.embed(bench, "e", (7, 8))
        bench.turn()
        bench.loop.commands.put(Cancel("e"))
        self.embed(bench, "f", (9,))
        bench.turn()
        assert [answer.id for answer in bench.answers] == ["f"]

    def test_what_cannot_be_read_is_forgotten(self) -> None:
        bench = Bench()
        bench.host.refusal = InvalidRequest("too long")
        with pytest.raises(InvalidRequest):
            self.embed(bench, "e", (7,))
        bench.turn()
        assert not bench.loop._jobs


class TestDeviceThatComputesAlone:
    """While it computes a step, the texts of the last step are made."""

    def test_answers_are_those_of_a_device_that_is_waited_for(self) -> None:
        texts = []
        for runner_class in (FakeRunner, AsynchronousRunner):
            bench = Bench(runner_class=runner_class)
            for name, tokens in (("a", PROMPT), ("b", (1, 2)), ("c", (9, 8, 7))):
                bench.give(name, tokens, max_tokens=9)
            bench.run()
            texts.append({name: (bench.text(name), bench.finished(name).usage) for name in "abc"})
        assert texts[0] == texts[1]

    @pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
    def test_what_follows_a_stop_string_is_neither_sent_nor_cached(self, kind: MemoryKind) -> None:
        bench = Bench(runner_class=AsynchronousRunner, memory_kind=kind)
        answer = naive(4, PLAIN)
        bench.give(tokens=PLAIN, max_tokens=4, stop=(text_of(answer[1:2]),))
        bench.run()
        assert bench.finished().reason is FinishReason.STOP
        assert bench.text() == text_of(answer[:1])
        assert bench.tokens() == answer[:2]
        assert bench.finished().usage.num_output_tokens == bench.loop.status.num_output_tokens_total == 2
        assert bench.host.runner.num_tokens_computed > len(PLAIN) + 1, "another token was being computed"
        slots = bench.host.engine.prefixes.slots
        assert all(slots.length(seq_id) <= len(PLAIN) + 2 for seq_id in slots.idle_ids)

    def test_a_chunk_of_a_text_does_not_count_as_the_time_of_a_step(self) -> None:
        bench = Bench(runner_class=AsynchronousRunner)
        bench.give(max_tokens=12)
        for _ in range(4):
            bench.turn()
        advance, in_flight = bench.host.embedder.advance, []

        def noted(budget_s: float, num_threads: int) -> Rows | None:
            in_flight.append(bench.host.runner.submitted)  # type: ignore[attr-defined]
            return advance(budget_s, num_threads)

        bench.host.embedder.advance = noted  # type: ignore[method-assign]
        TestEmbeddings().embed(bench, "e", (7,))
        bench.turn()
        assert in_flight == [None] and bench.loop.status.num_running == 1
        bench.run()
        assert bench.tokens() == naive(12)

    def test_a_cancel_in_mid_step_is_an_end_once(self) -> None:
        bench = Bench(runner_class=AsynchronousRunner)
        bench.give(max_tokens=50)
        for _ in range(4):
            bench.turn()
        assert bench.host.runner.submitted is not None  # type: ignore[attr-defined]
        bench.loop.interrupt(Cancel("a"))
        bench.run()
        assert bench.finished().reason is FinishReason.CANCELLED
        assert bench.tokens() == naive(50)[: len(bench.tokens())]
        assert bench.finished().usage.num_output_tokens == len(bench.tokens()) > 0
