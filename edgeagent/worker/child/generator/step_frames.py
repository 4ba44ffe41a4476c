"""Turns the engine's outputs into the frames of a step, on the writer's thread.

So the text of one step is made while the engine computes the next one. A stop string is found late then: the engine may
generate more tokens behind it, which are dropped here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edgeagent.engine.cache.cached_prefix import MIN_LOST
from edgeagent.engine.media_tokens import is_medium
from edgeagent.engine.sampling.sampler import Logprob
from edgeagent.engine.sequence import Sequence as EngineSequence
from edgeagent.engine.verification import Output
from edgeagent.text.output.stream import OutputStream
from edgeagent.text.vocabulary import Vocabulary
from edgeagent.types import (
    CacheMiss,
    ChoiceScores,
    Delta,
    Finished,
    FinishReason,
    PromptProgress,
    PromptText,
    Started,
    TextDelta,
    Timings,
    TokenLogprob,
    Usage,
    replace,
)
from edgeagent.worker.child.generator.prepared_request import PreparedRequest
from edgeagent.worker.protocol import FromWorker, StepItem, StepResult, Submit, failed_message

# How many held-back log probabilities of a request are sent, at most. More tokens are held back only while a long text
# may be the beginning of a tool call.
_MAX_HELD_LOGPROBS = 64
# The most log probabilities of one text delta in a frame; the rest goes into further deltas. Text that was held back
# (long white space, for example) has many at once.
_MAX_LOGPROBS = 128
# How much of two prompts is shown where they differ, and in how many tokens before that the first word may begin.
_SHOWN_TOKENS, _WORD_TOKENS = 12, 4
# How long steps of answers that are sent as a whole may wait. The daemon then wakes four times a second, not for each.
_HOLD_S = 0.25


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request between its Submit and its end.

    The main thread sets `prepared` when the preparer has prepared the request. The writer's thread uses the rest.
    `has_started`: its Started delta was sent. `may_wait`: its first token was sent, and the client gets its answer
    as a whole. `is_over`: its end was sent.
    """

    submit: Submit
    prepared: PreparedRequest | None = None
    has_started: bool = False
    may_wait: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """The output of a step for a request. `progress`: how much of the prompt is computed, if the client is to know."""

    request: RunningRequest
    output: Output
    progress: int | None


class StepFrames:
    """Makes the frames of the answers, and counts their tokens. Only the writer's thread calls it."""

    def __init__(self, vocabulary: Vocabulary, on_text_ended: Callable[[RunningRequest, int], None]) -> None:
        """`on_text_ended` gets a request whose text a stop string has ended, and the number of its tokens until then.

        The engine may still generate it. It is called before the end of the request is sent.
        """
        self._vocabulary, self._on_text_ended = vocabulary, on_text_ended
        self.num_output_tokens = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.num_restored: Counter[str] = Counter()  # tokens by tier
        self._held: list[StepResult] = []
        self._released_at_s = 0.0

    def of_step(self, news: Sequence[News], at_s: float) -> Iterator[FromWorker]:
        """Yield the frames of a step, behind those that waited. If all of its requests may wait, hold them."""
        items, may_wait = [], True
        for each in news:
            if each.request.is_over:
                continue
            if each.output.error is not None:
                each.request.is_over = True
                yield from self._released(at_s)
                yield failed_message(each.request.submit.request.id, each.output.error)
                continue
            item = self._item(each, at_s)
            if item.deltas or item.tokens:
                items.append(item)
                may_wait &= each.request.may_wait and not each.request.is_over
                each.request.may_wait |= bool(item.tokens) and each.request.submit.request.is_whole
        self._held += _frames_of(items, at_s)
        if not may_wait or at_s - self._released_at_s >= _HOLD_S:
            yield from self._released(at_s)

    def _released(self, now_s: float) -> list[StepResult]:
        held, self._held, self._released_at_s = self._held, [], now_s
        return held

    def of_cancelled(
        self, request: RunningRequest, sequence: EngineSequence | None, at_s: float
    ) -> Iterator[FromWorker]:
        """Yield the frames that end a cancelled request; none if it is over already."""
        if request.is_over:
            return
        request.is_over = True
        deltas: list[Delta] = []
        num_delivered = 0
        if (prepared := request.prepared) is not None:
            num_delivered -= prepared.num_delivered
            deltas += prepared.output.cut()
            num_delivered += prepared.num_delivered
        deltas.append(self._finished(request, sequence, FinishReason.CANCELLED))
        yield from self._released(at_s)
        yield from _frames_of([StepItem(request.submit.request.id, tuple(deltas), num_withheld=-num_delivered)], at_s)

    def _item(self, news: News, at_s: float) -> StepItem:
        request, output = news.request, news.output
        assert request.prepared is not None
        stream, sequence = request.prepared.output, output.sequence
        deltas: list[Delta] = []
        if not request.has_started:
            deltas.append(self._start(request, sequence))
        num_before, num_delivered = stream.num_tokens, request.prepared.num_delivered
        if news.progress is not None:
            deltas.append(PromptProgress(news.progress))
        deltas += self._echo(request.prepared, output)
        if output.choice_logprobs and (choices := sequence.spec.choices) is not None:
            deltas.append(ChoiceScores(output.choice_logprobs, sum(map(len, choices.tokens))))
        if output.tokens:
            deltas += stream.feed(output.tokens, [self._with_piece(logprob) for logprob in output.logprobs])
        # A step with drafts may return tokens after a stop string; they are not part of the answer.
        tokens = tuple(output.tokens[: stream.num_tokens - num_before])
        self.num_output_tokens += len(tokens)
        if output.finish_reason is not None:
            deltas += self._end(request, output, output.finish_reason)
        elif stream.stopped is not None:
            self._on_text_ended(request, stream.num_tokens)
            sequence.marks.last_token_s = at_s
            deltas += self._end(request, output, FinishReason.STOP)
        num_withheld = len(tokens) - (request.prepared.num_delivered - num_delivered)
        held_logprobs = stream.held_logprobs[-_MAX_HELD_LOGPROBS:]
        return StepItem(sequence.id, tuple(deltas), tokens, held_logprobs=held_logprobs, num_withheld=num_withheld)

    def _start(self, request: RunningRequest, sequence: EngineSequence) -> Started:
        assert request.prepared is not None
        request.has_started = True
        self.num_prompt_tokens += sequence.num_prompt
        self.num_cached_tokens += sequence.num_cached
        self.num_restored.update(sequence.num_restored)
        num_dropped, warnings = request.prepared.num_dropped_items, request.prepared.warnings
        return Started(sequence.num_prompt, sequence.num_cached, num_dropped, warnings=warnings)

    def _end(self, request: RunningRequest, output: Output, reason: FinishReason) -> Iterator[Delta]:
        """Yield the last deltas of a request."""
        assert request.prepared is not None
        request.is_over = True
        stream = request.prepared.output
        if request.prepared.spec.prefill_only and not request.submit.request.prefill_only:
            reason = FinishReason.LENGTH  # the answer may have no more tokens
        yield from stream.cut() if reason is FinishReason.LENGTH else stream.finish()
        if output.end_logprob is not None and request.submit.request.echo:
            # Harnesses that score texts expect an entry for each token of prompt and answer, with that of its end.
            yield TextDelta("", (replace(self._with_piece(output.end_logprob), start=stream.num_shown),))
        yield self._finished(request, output.sequence, _reason(reason, stream))

    def _echo(self, prepared: PreparedRequest, output: Output) -> tuple[PromptText, ...]:
        """Return the prompt's text once, if the client asked for an echo of it; () otherwise.

        The text is returned with the answer's first tokens, or with the request's end if the answer has no tokens.
        """
        if prepared.echo is None:
            return ()
        prepared.echo.add([self._with_piece(logprob) for logprob in output.prompt_logprobs])
        has_begun = output.tokens or output.finish_reason is not None
        return prepared.echo.take() if has_begun else ()

    def _finished(self, request: RunningRequest, sequence: EngineSequence | None, reason: FinishReason) -> Finished:
        """Return the terminal delta; `sequence` is None if the request never reached the engine."""
        prepared = request.prepared
        if sequence is None or prepared is None:
            waited_ms = (time.monotonic() - request.submit.accepted_at_s) * 1000 - request.submit.load_ms
            return Finished(reason, Usage(), Timings(queue_ms=max(0.0, waited_ms), load_ms=request.submit.load_ms))
        self.num_cached_tokens += sequence.num_shifted
        marks, submit = sequence.marks, request.submit
        load_s, render_s = submit.load_ms / 1000, prepared.render_ms / 1000
        claimed_s = marks.claimed_s or time.monotonic()
        prefilled_s = marks.first_token_s or time.monotonic()
        prefill_ms = (prefilled_s - marks.prefill_s) * 1000 if marks.prefill_s else 0.0
        return Finished(
            reason=reason,
            usage=Usage(
                num_prompt_tokens=sequence.num_prompt,
                num_cached_tokens=sequence.num_cached + sequence.num_shifted,
                num_output_tokens=prepared.num_output_tokens,
                num_reasoning_tokens=prepared.output.num_reasoning_tokens,
            ),
            timings=Timings(
                queue_ms=max(0.0, claimed_s - submit.accepted_at_s - load_s - render_s - marks.cache_s) * 1000,
                load_ms=submit.load_ms,
                render_ms=prepared.render_ms,
                cache_ms=marks.cache_s * 1000,
                prefill_ms=prefill_ms,
                first_token_ms=(marks.first_token_s - submit.accepted_at_s) * 1000 if marks.first_token_s else 0.0,
                decode_ms=(marks.last_token_s - marks.first_token_s) * 1000,
                num_draft_tokens=sequence.num_drafted,
                num_accepted_tokens=sequence.num_accepted,
                miss=self._miss(sequence, prefill_ms),
                num_shifted_tokens=sequence.num_shifted,
            ),
            stop=prepared.output.stopped or "",
        )

    def _miss(self, sequence: EngineSequence, prefill_ms: float) -> CacheMiss | None:
        """Return why most of the prompt was computed; None if no earlier prompt explains it."""
        found = sequence.divergence
        num_lost = 0 if found is None else found.num_lost - sequence.num_shifted
        if found is None or num_lost < MIN_LOST:
            return None
        num_computed = sequence.num_prompt - sequence.num_cached - sequence.num_shifted
        return CacheMiss(
            num_shared=found.at,
            num_lost=num_lost,
            lost_ms=prefill_ms * num_lost / max(1, num_computed),
            in_instructions=found.at < sequence.spec.num_system,
            earlier=self._words(found.earlier, found.at),
            now=self._words(sequence.tokens[: sequence.num_prompt], found.at),
        )

    def _words(self, tokens: Sequence[int], at: int) -> str:
        """Return the words from position `at` on, the whole first word included. An image or a sound is a space."""
        pieces = [
            b" " if is_medium(token) else self._vocabulary.piece(token)
            for token in tokens[max(0, at - _WORD_TOKENS) : at + _SHOWN_TOKENS]
        ]
        begin = min(at, _WORD_TOKENS)
        while begin > 0 and not pieces[begin].startswith(b" "):
            begin -= 1
        return b"".join(pieces[begin:]).decode("utf-8", "replace").strip()

    def _with_piece(self, logprob: Logprob) -> TokenLogprob:
        top = tuple(self._with_piece(alternative) for alternative in logprob.top)
        return TokenLogprob(logprob.token, self._vocabulary.piece(logprob.token), logprob.logprob, top)


def _reason(reason: FinishReason, stream: OutputStream) -> FinishReason:
    """Return why an answer ended. A stop string in the text gives STOP; with tool calls, STOP becomes TOOL_CALLS."""
    if stream.stopped is not None:
        reason = FinishReason.STOP
    return FinishReason.TOOL_CALLS if reason is FinishReason.STOP and stream.has_tool_calls else reason


def _frames_of(items: Sequence[StepItem], at_s: float) -> Iterator[StepResult]:
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
    return [*parts, replace(item, deltas=tuple(deltas))]
