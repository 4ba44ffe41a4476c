"""The worker's main thread on a fake host: every request ends once, with the right counts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.host import HostTier
from edgeagent.engine.cache.lookup import BlockCache
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.engine import Engine
from edgeagent.engine.llama.embedder import Rows
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.proposals import Drafters
from edgeagent.errors import InternalError, InvalidRequest
from edgeagent.text.output.prompt_text import PromptEcho
from edgeagent.text.output.stream import OutputStream
from edgeagent.types import (
    Delta,
    Embed,
    Finished,
    FinishReason,
    GenerateRequest,
    MemoryKind,
    PromptProgress,
    PromptText,
    SamplingParams,
    Started,
    TextDelta,
    Tier,
    TokenLogprob,
    TokenPrompt,
)
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.loop import Worker
from edgeagent.worker.child.generator.prepared import Prepared
from edgeagent.worker.child.process import _Preparer
from edgeagent.worker.protocol import (
    MAX_FRAME_FROM_WORKER_BYTES,
    NOTHING_DELIVERED,
    AnswerPart,
    Ask,
    Cancel,
    Delivered,
    Drop,
    Failed,
    FromWorker,
    StepItem,
    StepResult,
    Stop,
    Submit,
    encode,
)
from tests.fakes import ALWAYS, FakeRunner, FakeTier, next_token, warm_costs
from tests.present import present
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
    ) -> None:
        self._memory_kind = memory_kind
        self.model = FakeVocabulary()
        self._end_token = self.model.end_tokens[0] if ends else -1
        self.num_cells, self.num_threads = num_cells, 1
        self.num_aborts = 0
        self.runner = self._make_runner()
        draft = self._make_runner()
        self.engine = Engine(
            self.runner,
            max_running=2,
            drafters=Drafters(DraftModel(draft), max_tokens=num_drafts, planning_share=ALWAYS) if num_drafts else None,
            prefixes=PrefixStore(
                self.runner,
                None if below is None else self._make_blocks(below),
                warm_costs(self.runner.max_batch, batch_s=1.0),
            ),
        )
        self.refusal: BaseException | None = None
        self.embedder, self.itl_budget_s = FakeEmbedder(), 0.1

    def read_texts(self, query: Embed) -> list[list[int]]:
        if self.refusal is not None:
            raise self.refusal
        return [list(text.tokens) for text in query.inputs if isinstance(text, TokenPrompt)]

    def _make_runner(self) -> FakeRunner:
        return FakeRunner(
            num_vocab=self.model.num_tokens,
            num_cells=self.num_cells,
            memory_kind=self._memory_kind,
            end_token=self._end_token,
        )

    def _make_blocks(self, below: FakeTier) -> BlockCache:
        can_cut = self._memory_kind is MemoryKind.FULL_ATTENTION
        host = HostTier(1 << 20, can_cut=can_cut, below=below)
        return BlockCache(Keyring(b"fake", b"s" * 32), host, below, can_cut=can_cut)

    def prepare(self, request: GenerateRequest, delivered: Delivered = NOTHING_DELIVERED) -> Prepared:
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
            read_cache=not request.echo,
            num_prompt_logprobs=request.logprobs if request.echo else None,
            reports_progress=request.reports_progress,
            draft_tokens=request.draft_tokens,
        )
        output = OutputStream(self.model, stops=request.stop)
        output.feed(delivered.tokens, [None] * (len(delivered.tokens) - len(delivered.unsaid)) + list(delivered.unsaid))
        echo = None
        if request.echo:
            is_scored = request.logprobs is not None
            echo = PromptEcho(self.model, request.prompt.tokens, None, num_added=0, is_scored=is_scored)
        return Prepared(spec, output, 0.0, echo)

    def prepare_grammars(self) -> None: ...

    def adjust_threads(self) -> None: ...

    def clear_abort(self) -> None: ...

    def request_abort(self) -> None:
        self.num_aborts += 1


class Bench:
    """A worker whose rounds run one by one, with the preparer's work between them."""

    def __init__(self, **options: Any) -> None:
        self.host = FakeHost(**options)
        self.frames: SimpleQueue[FromWorker | None] = SimpleQueue()
        self.worker = Worker(cast(Host, self.host), self.frames)
        self._preparer = _Preparer(cast(Host, self.host), self.worker)
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
        self.worker.commands.put(submit)
        return submit

    def prepare(self, submit: Submit) -> None:
        self._preparer._prepare(submit)

    def give(self, *args: Any, **fields: Any) -> None:
        """Submit a request and prepare it."""
        self.prepare(self.submit(*args, **fields))

    def turn(self) -> bool:
        goes_on = self.worker.turn()
        self._take_frames()
        return goes_on

    def run(self) -> None:
        """Run rounds until nothing is left to do."""
        self.turn()
        while self.host.engine.has_work or not self.worker.commands.empty():
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
                frame = self.frames.get_nowait()
            except Empty:
                return
            assert frame is not None
            self.frame_sizes.append(len(encode(frame)))
            if isinstance(frame, AnswerPart):
                self.answers.append(frame)
                continue
            if isinstance(frame, Failed):
                self._end(frame.id, frame)
                continue
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


def scores_of(items: Sequence[StepItem]) -> list[tuple[int, float]]:
    deltas = [delta for item in items for delta in item.deltas if isinstance(delta, TextDelta)]
    return [(score.token, round(score.logprob, 4)) for delta in deltas for score in delta.logprobs]


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
        assert not bench.worker.status.num_running
        assert bench.worker.status.num_output_tokens_total == 5

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
            after.give(delivered=Delivered(tokens, step_lengths, items[-1].unsaid), **fields)
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
        bench.worker.commands.put(submit)
        prepared = bench.host.prepare(request)
        bench.host.prepare = lambda request, *rest: replace(prepared, output=Holding(bench.host.model))  # type: ignore[method-assign]
        bench.prepare(submit)
        while len(held) < 690:
            bench.turn()
        if is_cancelled:
            bench.worker.commands.put(Cancel("a"))
        bench.run()
        assert max(bench.frame_sizes) < MAX_FRAME_FROM_WORKER_BYTES / 4
        deltas = [delta for item in bench.items["a"] for delta in item.deltas if isinstance(delta, TextDelta)]
        assert [logprob for delta in deltas for logprob in delta.logprobs] == held
        assert bench.text() == " " * len(held)
        assert bench.finished().usage.num_output_tokens == len(held)

    def test_an_idle_worker_says_that_it_is_idle(self) -> None:
        bench = Bench()
        bench.give(max_tokens=100)
        bench.turn()
        assert bench.worker.status.num_running == 1
        bench.worker.commands.put(Cancel("a"))
        bench.turn()
        assert bench.worker.status.num_running == 0

    def test_nothing_is_kept_of_what_is_over(self) -> None:
        bench = Bench()
        for index in range(50):
            bench.give(f"r{index}", (index + 1, 2), max_tokens=2)
            bench.run()
        assert len(bench.ends) == 50
        assert not bench.worker._requests


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
        bench.worker.commands.put(Cancel("a"))
        bench.worker.commands.put(Cancel("a"))
        bench.worker.commands.put(Cancel("never heard of"))
        bench.prepare(submit)
        bench.run()
        assert bench.finished().reason is FinishReason.CANCELLED
        assert not bench.host.engine.has_work

    def test_a_refusal_after_a_cancel_is_no_second_end(self) -> None:
        bench = Bench()
        bench.host.refusal = InvalidRequest("no")
        submit = bench.submit()
        bench.worker.commands.put(Cancel("a"))
        bench.prepare(submit)
        bench.run()
        assert bench.finished().reason is FinishReason.CANCELLED

    def test_an_id_used_again_gets_its_own_prompt(self) -> None:
        bench = Bench()
        first = bench.submit(max_tokens=5)
        bench.worker.commands.put(Cancel("a"))
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
        bench.worker.commands.put(Cancel("a"))
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
        bench.worker.commands.put(Stop())
        assert not bench.turn()
        assert {name: bench.finished(name).reason for name in bench.ends} == dict.fromkeys(
            ("running", "new", "unprepared"), FinishReason.CANCELLED
        )


def _broken(slices: object, min_tokens: int = 0) -> None:
    raise InternalError("llama_decode failed with status -3")


class TestInterrupt:
    @pytest.mark.parametrize("command", [Cancel("a"), Stop()])
    def test_only_a_long_step_is_interrupted(self, command: Cancel | Stop) -> None:
        bench = Bench()
        bench.worker.interrupt(command)
        assert bench.host.num_aborts == 0
        bench.host.engine.current_step.is_long = True
        bench.worker.interrupt(command)
        assert bench.host.num_aborts == 1

    @pytest.mark.parametrize(
        ("tier", "is_urgent_step", "num_aborts"),
        [(Tier.REALTIME, False, 1), (Tier.REALTIME, True, 0), (Tier.INTERACTIVE, False, 0)],
    )
    def test_a_realtime_request_waits_for_no_step_without_its_like(
        self, tier: Tier, is_urgent_step: bool, num_aborts: int
    ) -> None:
        bench = Bench()
        engine = bench.host.engine
        engine.current_step.is_long, engine.current_step.is_urgent = True, is_urgent_step
        bench.give(tier=tier, max_tokens=1)
        assert bench.host.num_aborts == num_aborts
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
        bench.host.adjust_threads = lambda: bench.worker.interrupt(Cancel("a"))  # type: ignore[method-assign]
        bench.turn()
        bench.host.adjust_threads = lambda: None  # type: ignore[method-assign]
        bench.run()
        assert bench.finished().reason is FinishReason.CANCELLED
        assert bench.host.runner.num_tokens_computed == 0

    def test_a_flood_of_commands_does_not_hold_up_the_engine(self) -> None:
        bench = Bench(ends=False)
        bench.give(max_tokens=3)
        cancel, num_cancels = bench.worker._cancel, itertools.count()

        def cancel_and_get_another(request_id: str) -> None:
            cancel(request_id)
            assert next(num_cancels) < 100
            bench.worker.commands.put(Cancel("of the flood"))

        bench.worker._cancel = cancel_and_get_another  # type: ignore[method-assign]
        bench.worker.commands.put(Cancel("of the flood"))
        while "a" not in bench.ends:
            bench.turn()
        assert len(bench.tokens()) == 3


class TestDelivery:
    @pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
    def test_tokens_are_sent_before_anything_is_read_out_of_the_cells(self, kind: MemoryKind) -> None:
        bench = Bench(num_cells=2048, ends=False, memory_kind=kind, below=FakeTier())
        order: list[str] = []
        runner, put = bench.host.runner, bench.frames.put
        runner.decode = noting(order, "step", runner.decode)  # type: ignore[method-assign]
        runner.save = noting(order, "save", runner.save)  # type: ignore[method-assign]
        bench.worker._frames = SimpleNamespace(put=noting(order, "send", put))
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


def deltas_of(bench: Bench, request_id: str = "a") -> list[Delta]:
    return [delta for item in bench.items[request_id] for delta in item.deltas]


@pytest.mark.parametrize("logprobs", [None, 0, 20])
@pytest.mark.parametrize("num_prompt", [1, 3, 200])
def test_an_echo_comes_whole_with_the_first_token(num_prompt: int, logprobs: int | None) -> None:
    bench = Bench(ends=False)
    prompt = tuple(65 + index % 26 for index in range(num_prompt))
    bench.give("a", prompt, max_tokens=2, echo=True, logprobs=logprobs)
    bench.run()
    parts = [delta for delta in deltas_of(bench) if isinstance(delta, PromptText)]
    assert "".join(part.text for part in parts) == bytes(prompt).decode()
    scored = [logprob.token for part in parts for logprob in part.logprobs]
    assert scored == ([] if logprobs is None else list(prompt))
    with_tokens = next(index for index, item in enumerate(bench.items["a"]) if item.tokens)
    with_echo = [index for index, item in enumerate(bench.items["a"]) if any(part in item.deltas for part in parts)]
    # Output in parts is complete with the last part.
    assert all(bench.items["a"][index].is_part for index in with_echo)
    assert with_echo == list(range(with_tokens - len(parts), with_tokens))
    assert bench.finished().usage.num_output_tokens == 2
    assert max(bench.frame_sizes) < MAX_FRAME_FROM_WORKER_BYTES


def test_a_prompt_that_is_only_echoed_ends_as_too_long() -> None:
    bench = Bench()
    bench.give("a", max_tokens=0, echo=True, logprobs=1)
    bench.give("b", prefill_only=True)
    bench.run()
    assert any(isinstance(delta, PromptText) for delta in deltas_of(bench))
    assert bench.finished("a").reason is FinishReason.LENGTH
    assert bench.finished("b").reason is FinishReason.STOP
    assert bench.tokens("a") == []


def test_a_cancelled_request_is_not_echoed() -> None:
    bench = Bench(ends=False)
    bench.give("a", echo=True, max_tokens=2)
    bench.worker.commands.put(Cancel("a"))
    bench.run()
    assert not any(isinstance(delta, PromptText) for delta in deltas_of(bench))
    assert bench.finished().reason is FinishReason.CANCELLED


def test_progress_is_told_from_what_was_cached_to_the_whole_prompt() -> None:
    bench = Bench(ends=False)
    bench.give("a", tuple(range(65, 85)), max_tokens=1)
    bench.run()
    bench.give("b", tuple(range(65, 85)) * 8, max_tokens=2, reports_progress=True)
    bench.run()
    told = [delta.num_tokens for delta in deltas_of(bench, "b") if isinstance(delta, PromptProgress)]
    assert told[0] == 20
    assert told[-1] == 160
    assert told == sorted(set(told))
    assert not any(isinstance(delta, PromptProgress) for delta in deltas_of(bench, "a"))


class TestEmbeddings:
    def embed(self, bench: Bench, ask_id: str, *texts: tuple[int, ...]) -> None:
        query = Embed(tuple(TokenPrompt(text) for text in texts))
        bench.worker.commands.put(Ask(ask_id, query))
        bench.worker.read_texts(ask_id, query)

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
        assert bench.worker.status.num_steps >= 12

    def test_alone_it_is_work_enough(self) -> None:
        bench = Bench()
        self.embed(bench, "e", (7, 8), (9,))
        for _ in range(3):
            bench.turn()
        assert [answer.is_last for answer in bench.answers] == [False, True]

    def test_a_drop_is_heard_between_two_chunks(self) -> None:
        bench = Bench()
        self.embed(bench, "e", (7, 8))
        bench.turn()
        bench.worker.commands.put(Drop("e"))
        self.embed(bench, "f", (9,))
        bench.turn()
        assert [answer.id for answer in bench.answers] == ["f"]

    def test_what_cannot_be_read_is_forgotten(self) -> None:
        bench = Bench()
        bench.host.refusal = InvalidRequest("too long")
        with pytest.raises(InvalidRequest):
            self.embed(bench, "e", (7,))
        _, last = (bench.worker.commands.get() for _ in range(2))
        assert last == Drop("e")
        assert bench.worker.commands.empty()
