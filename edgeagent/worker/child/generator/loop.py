"""The main thread of a generating model's worker: runs requests on the engine, and sends their steps."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgeagent.engine.costs.cost_model import PredictionError
from edgeagent.engine.sampling.sampler import Logprob
from edgeagent.engine.verification import Output
from edgeagent.errors import EdgeAgentError, NotSupported
from edgeagent.freed_memory import give_back_freed_memory
from edgeagent.text.output.stream import OutputStream
from edgeagent.types import (
    Delta,
    Embed,
    Finished,
    FinishReason,
    PromptProgress,
    PromptText,
    PurgeCache,
    QueryAnswer,
    Rerank,
    Started,
    TextDelta,
    Tier,
    Timings,
    TokenLogprob,
    Usage,
    WorkerStatus,
    replace,
)
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.child.generator.embeddings import Embeddings
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.learned import TuningSender
from edgeagent.worker.child.generator.prepare_queue import PrepareQueue
from edgeagent.worker.child.generator.prepared_request import PreparedRequest
from edgeagent.worker.child.job_loop import JobLoop
from edgeagent.worker.protocol import AnswerPart, Ask, Cancel, StepItem, StepResult, Stop, Submit, failed_message

# How many held-back log probabilities of a request are sent, at most. More tokens are held back only while a long text
# may be the beginning of a tool call.
_MAX_HELD_LOGPROBS = 64
# The most log probabilities of one text delta in a frame; the rest goes into further deltas. Text that was held back
# (long white space, for example) has many at once.
_MAX_LOGPROBS = 128
_NO_ERROR = PredictionError(0.0, 0.0)  # too few steps were measured, or there is no draft model


@dataclass(slots=True)
class _Request:
    """A request between its Submit and its end. `prepared` is None until the preparer thread has prepared it.

    `started`: whether its Started delta was sent.
    """

    submit: Submit
    prepared: PreparedRequest | None = None
    started: bool = False


@dataclass(frozen=True, slots=True)
class PromptReady:
    """The preparer's result for a request that is ready for the engine."""

    submit: Submit
    prepared: PreparedRequest


@dataclass(frozen=True, slots=True)
class PromptRefused:
    """The preparer's error for a request that it could not prepare."""

    submit: Submit
    error: EdgeAgentError


class GeneratorLoop(JobLoop):
    """The loop of a model that generates: it runs requests on the engine, and chunks of embeddings between steps."""

    def __init__(self, host: Host, frames: Frames) -> None:
        self._embeddings = Embeddings(host.embedder, frames, host.itl_budget_s)
        super().__init__(self._embeddings, frames)
        self._host = host
        self._engine = host.engine
        self.to_prepare = PrepareQueue()
        self._requests: dict[str, _Request] = {}
        self._num_output_tokens = 0
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_restored: Counter[str] = Counter()  # tokens by tier

    def run(self) -> None:
        """Carry out commands and run steps until a Stop command."""
        tuning_sender = TuningSender(self._engine, lambda: self._host.saved_tuning, self._frames)
        while self.turn():
            tuning_sender.send_if_due()
        tuning_sender.send_if_due(is_last=True)

    def submit(self, message: Submit) -> None:
        """Queue a request for the main thread and for the preparer; any thread may call it."""
        self.commands.put(message)
        self.to_prepare.put(message)

    def interrupt(self, command: Cancel | Ask | Stop) -> None:
        """Queue a command from the reader thread, and interrupt a long step that would delay it.

        If no long step is running yet, the engine sees the command (`_has_command`) before it starts one, and postpones
        that step. But it never postpones two steps in a row.
        """
        self.commands.put(command)
        if self._engine.current_step.is_long:
            self._host.request_abort()

    def hand_in(self, ready: PromptReady) -> None:
        """Queue a prepared request. If its tier is REALTIME, interrupt a long step without requests of that tier."""
        self.commands.put(ready)
        is_urgent = ready.submit.request.tier is Tier.REALTIME
        if is_urgent and self._engine.current_step.is_long and not self._engine.current_step.is_urgent:
            self._host.request_abort()

    def _has_command(self) -> bool:
        return not self.commands.empty()

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work or self._embeddings.has_work

    def _wake_after_s(self) -> float | None:
        limits_s = (self._embeddings.wake_after_s(), self._engine.wake_after_s)
        return min((limit_s for limit_s in limits_s if limit_s is not None), default=None)

    def _clear_abort(self) -> None:
        self._host.clear_abort()

    def _step(self) -> None:
        if self._has_work:
            self._host.adjust_threads()
        else:
            self._host.rest_threads()
        if self._engine.has_work:
            self.step_started_at_s = time.monotonic()
            self._send(self._engine.admit())
            self._send(self._engine.step(self._has_command))
            self._engine.save_step()
            self.step_started_at_s = 0.0
        is_busy = self._engine.num_live > 0
        self._embeddings.step(is_busy=is_busy, num_threads=self._host.num_threads)

    def _read(self, query: Embed | Rerank) -> list[list[int]]:
        if isinstance(query, Rerank):
            raise NotSupported("This model ranks no documents: it generates text. Serve a reranker.", param="model")
        return self._host.read_texts(query)

    def _carry_out(self, command: Submit | PromptReady | PromptRefused | Cancel | Ask | Stop) -> None:
        match command:
            case Submit():
                # A second request with the same id is ignored: the daemon could not tell their ends apart.
                self._requests.setdefault(command.request.id, _Request(command))
            case PromptReady():
                self._begin(command)
            case PromptRefused(submit, error):
                if self._is_awaited(submit):
                    self._refuse(submit.request.id, error)
            case Cancel():
                self._cancel(command.id)
            case Ask(ask_id, PurgeCache(partition)):
                num_gone = self._engine.purge(partition)
                give_back_freed_memory()
                self._frames.put(AnswerPart(ask_id, QueryAnswer(str(num_gone)), is_last=True))
            case Stop():
                for request_id in list(self._requests):
                    self._cancel(request_id)

    def _is_awaited(self, submit: Submit) -> bool:
        """Whether this request is still live. If it was cancelled, another request may already have the same id."""
        request = self._requests.get(submit.request.id)
        return request is not None and request.submit is submit

    def _begin(self, ready: PromptReady) -> None:
        if not self._is_awaited(ready.submit):
            return
        try:
            self._engine.add(ready.prepared.spec)
            self._requests[ready.submit.request.id].prepared = ready.prepared
        except EdgeAgentError as error:
            self._refuse(ready.submit.request.id, error)

    def _refuse(self, request_id: str, error: EdgeAgentError) -> None:
        """End a request with an error, and send the error to the daemon."""
        del self._requests[request_id]
        self._frames.put(failed_message(request_id, error))

    def _cancel(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is None:
            return
        sequence = self._engine.cancel(request_id)
        deltas: list[Delta] = []
        if request.prepared is not None:
            deltas += request.prepared.output.cut()
        output = Output(sequence) if sequence is not None else None
        deltas.append(self._finished(request, output, FinishReason.CANCELLED))
        self._put([StepItem(request_id, tuple(deltas))], time.monotonic())

    def _send(self, outputs: list[Output]) -> None:
        """Send a step's outputs to the daemon. End the requests that failed in this step."""
        at_s = time.monotonic()
        items = []
        for output in outputs:
            request = self._requests[output.sequence.id]
            if output.error is not None:
                self._refuse(output.sequence.id, output.error)
                continue
            item = self._item(request, output)
            if item.deltas or item.tokens:
                items.append(item)
        self._put(items, at_s)

    def _put(self, items: list[StepItem], at_s: float) -> None:
        for frame in _step_frames(items, at_s):
            self._frames.put(frame)

    def _item(self, request: _Request, output: Output) -> StepItem:
        assert request.prepared is not None
        stream, sequence = request.prepared.output, output.sequence
        deltas: list[Delta] = []
        if not request.started:
            request.started = True
            self._num_prompt_tokens += sequence.num_prompt
            self._num_cached_tokens += sequence.num_cached
            self._num_restored.update(sequence.num_restored)
            num_dropped, warnings = request.prepared.num_dropped_items, request.prepared.warnings
            deltas.append(Started(sequence.num_prompt, sequence.num_cached, num_dropped, warnings=warnings))
        self._num_output_tokens += len(output.tokens)
        num_before = stream.num_tokens
        if sequence.spec.reports_progress and sequence.num_output == len(output.tokens):
            deltas.append(PromptProgress(min(sequence.num_computed, sequence.num_prompt)))
        deltas += self._echo(request.prepared, output)
        if output.tokens:
            deltas += stream.feed(output.tokens, [self._with_piece(logprob) for logprob in output.logprobs])
            request.prepared.settle(sequence, self._engine.context_length)
        reason = output.finish_reason
        if reason is None and stream.stopped is not None:
            self._engine.cancel(sequence.id)
            reason = FinishReason.STOP
        if reason is not None:
            del self._requests[sequence.id]
            if reason is FinishReason.STOP and request.submit.request.max_tokens == 0:
                reason = FinishReason.LENGTH
            deltas += stream.cut() if reason is FinishReason.LENGTH else stream.finish()
            if output.end_logprob is not None and request.submit.request.echo:
                # Harnesses that score texts expect an entry for each token of prompt and answer, with that of its end.
                end = replace(self._with_piece(output.end_logprob), start=stream.num_shown)
                deltas.append(TextDelta("", (end,)))
            deltas.append(self._finished(request, output, _reason(reason, stream)))
        # A step with drafts may return tokens after a stop string; they are not part of the answer.
        tokens = tuple(output.tokens[: stream.num_tokens - num_before])
        return StepItem(sequence.id, tuple(deltas), tokens, held_logprobs=stream.held_logprobs[-_MAX_HELD_LOGPROBS:])

    def _echo(self, prepared: PreparedRequest, output: Output) -> tuple[PromptText, ...]:
        """Return the prompt's text once, if the client asked for an echo of it; () otherwise.

        The text is returned with the answer's first tokens, or with the request's end if the answer has no tokens.
        """
        if prepared.echo is None:
            return ()
        prepared.echo.add([self._with_piece(logprob) for logprob in output.prompt_logprobs])
        has_begun = output.tokens or output.finish_reason is not None
        return prepared.echo.take() if has_begun else ()

    def _with_piece(self, logprob: Logprob) -> TokenLogprob:
        top = tuple(self._with_piece(alternative) for alternative in logprob.top)
        return TokenLogprob(logprob.token, self._host.model.piece(logprob.token), logprob.logprob, top)

    def _finished(self, request: _Request, output: Output | None, reason: FinishReason) -> Finished:
        """Return the terminal delta; `output` is None if the request never reached the engine."""
        prepared = request.prepared
        if output is None or prepared is None:
            waited_ms = (time.monotonic() - request.submit.accepted_at_s) * 1000 - request.submit.load_ms
            return Finished(reason, Usage(), Timings(queue_ms=max(0.0, waited_ms), load_ms=request.submit.load_ms))
        sequence, marks, submit = output.sequence, output.sequence.marks, request.submit
        load_s, render_s = submit.load_ms / 1000, prepared.render_ms / 1000
        claimed_s = marks.claimed_s or time.monotonic()
        prefilled_s = marks.first_token_s or time.monotonic()
        return Finished(
            reason=reason,
            usage=Usage(
                num_prompt_tokens=sequence.num_prompt,
                num_cached_tokens=sequence.num_cached,
                num_output_tokens=prepared.output.num_tokens + prepared.corrected_count_difference,
                num_reasoning_tokens=prepared.output.num_reasoning_tokens,
            ),
            timings=Timings(
                queue_ms=max(0.0, claimed_s - submit.accepted_at_s - load_s - render_s - marks.cache_s) * 1000,
                load_ms=submit.load_ms,
                render_ms=prepared.render_ms,
                cache_ms=marks.cache_s * 1000,
                prefill_ms=(prefilled_s - marks.prefill_s) * 1000 if marks.prefill_s else 0.0,
                first_token_ms=(marks.first_token_s - submit.accepted_at_s) * 1000 if marks.first_token_s else 0.0,
                decode_ms=(marks.last_token_s - marks.first_token_s) * 1000,
                num_draft_tokens=sequence.num_drafted,
                num_accepted_tokens=sequence.num_accepted,
            ),
            stop=prepared.output.stopped or "",
        )

    @property
    def planned_bytes(self) -> int:
        """The most memory that cached blocks and further contexts may take now, in bytes. Any thread may read it."""
        status = self._engine.status()
        return status.host.num_bytes + status.num_side_bytes + self._host.embedder_bytes

    @property
    def status(self) -> WorkerStatus:
        """The worker's counters and times. Any thread may read them, even in the middle of a step."""
        status = self._engine.status()
        error, draft_error = ([each or _NO_ERROR for each in status.step_errors] + [_NO_ERROR])[:2]
        return WorkerStatus(
            num_steps=status.num_steps + self._embeddings.num_chunks,
            step_expected_s=self._engine.current_step.expected_s,
            num_running=status.num_running,
            num_waiting=status.num_waiting,
            num_cells_used=status.num_cells_used,
            num_cells=self._host.num_cells,
            prefill_tokens_per_s=status.prefill_tokens_per_s,
            token_s=status.token_s,
            step_error_median=error.median,
            step_error_p95=error.p95,
            draft_step_error_median=draft_error.median,
            draft_step_error_p95=draft_error.p95,
            drafts=status.drafts,
            draft_gain=status.draft_gain,
            num_prompt_tokens_total=self._num_prompt_tokens,
            num_cached_tokens_total=self._num_cached_tokens,
            num_tokens_from_memory_total=self._num_restored["host"],
            num_tokens_from_disk_total=self._num_restored["disk"],
            num_output_tokens_total=self._num_output_tokens,
            num_threads=self._host.num_threads,
            max_threads=self._host.max_threads,
            memory_cache=status.host,
        )


def _reason(reason: FinishReason, stream: OutputStream) -> FinishReason:
    """Return why an answer ended. A stop string in the text gives STOP; with tool calls, STOP becomes TOOL_CALLS."""
    if stream.stopped is not None:
        reason = FinishReason.STOP
    return FinishReason.TOOL_CALLS if reason is FinishReason.STOP and stream.has_tool_calls else reason


def _step_frames(items: Sequence[StepItem], at_s: float) -> Iterator[StepResult]:
    """Yield the frames of a step.

    First come the parts of long items, one part in each frame. The last frame has the rest of all items. A part ends
    with a PromptText of any size, or with a TextDelta of _MAX_LOGPROBS log probabilities.
    """
    last = []
    for item in items:
        *parts, rest = _split(item)
        last.append(rest)
        for part in parts:
            yield StepResult(at_s, (part,))
    if last:
        yield StepResult(at_s, tuple(last))


def _split(item: StepItem) -> list[StepItem]:
    """Return the parts of an item in order, then its rest, which is small enough for a frame with other items."""
    parts: list[StepItem] = []
    deltas: list[Delta] = []
    for delta in item.deltas:
        rest = delta
        if isinstance(delta, PromptText):
            parts.append(StepItem(item.id, (*deltas, delta), is_part=True))
            deltas = []
            continue
        while isinstance(rest, TextDelta) and len(rest.logprobs) > _MAX_LOGPROBS:
            part = (*deltas, TextDelta(rest.text, rest.logprobs[:_MAX_LOGPROBS]))
            parts.append(StepItem(item.id, part, is_part=True))
            deltas, rest = [], TextDelta("", rest.logprobs[_MAX_LOGPROBS:])
        deltas.append(rest)
    return [*parts, StepItem(item.id, tuple(deltas), item.tokens, held_logprobs=item.held_logprobs)]
