"""Measures one generation, from its acceptance to its end, and judges it by its latency target.

It counts tokens. It reads the text only as far as the end of the first sentence.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

from edgeagent import metrics
from edgeagent.errors import ModelNotFound
from edgeagent.types import (
    AnswerSoFar,
    ChoiceScores,
    Finished,
    FinishReason,
    GenerateRequest,
    Queued,
    ReasoningDelta,
    Sink,
    Started,
    Step,
    Target,
    TextDelta,
    Timings,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    Verdict,
    is_remote,
    replace,
)

NO_TARGET = Target(math.inf, math.inf)
"""The target of what no client waits for: what is computed ahead, and whether a model works. It is not measured."""
ABANDONED = "abandoned"
MET, FAILED, UNKNOWN = "met", "failed", "unknown"
"""Outcomes of an answer besides the stage that broke its target."""

_OUTPUT = frozenset({TextDelta, ReasoningDelta, ToolCallStarted, ToolCallDelta})
# A target of ITL is kept if it is kept by this share of the tokens: targets of latencies are 95th percentiles.
_ON_TIME = 0.95
# The end of a sentence, with something before it. A full stop counts behind two letters or digits and before a space,
# so that 3.14, "e.g. ", "1. " and an initial do not end one; the commonest titles are left out by name.
_SENTENCE_END = re.compile(
    r"(?:(?<=\w\w)(?<!\bDr)(?<!\bMr)(?<!\bMs)(?<!\bSt)(?<!\bMrs)(?<!\bvs)\.|[!?…])[\"'”’)\]*_]*\s|[。！？]|\S[^\S\n]*\n"
)
_TAIL_CHARS = 8  # more than any match of _SENTENCE_END can begin before the delta that completes it


class Meter(Sink):
    """The measurements of one generation, which counts as live until `end`. Call `end` once.

    It measures each step, and then passes it on to `sink`; the terminal delta gets its Verdict. What the request has
    waited before counts as waiting in a queue. `label` returns the name of a served model; the model's canonical name
    may become known only after the request has arrived.
    """

    def __init__(self, label: Callable[[], str], sink: Sink, request: GenerateRequest, target: Target) -> None:
        self._label = label
        self._sink = sink
        self._tier = request.tier
        # A client that gets the answer as a whole waits for no token, and one that only computes a prompt for none.
        first_token_s = math.inf if request.prefill_only else target.first_token_s
        self._target = Target(first_token_s, math.inf if request.is_whole else target.token_s)
        self._token_s = self._target.token_s
        self._is_part, self._is_prefill = request.is_part, request.prefill_only
        self._is_measured = target != NO_TARGET and not request.is_part
        self.model = model = label()
        self._of_answer = (model, self._tier.value, "local")
        self._waited_s = request.waited_s
        self.began_s = time.monotonic() - self._waited_s
        self.first_s: float | None = None
        self.usable_s: float | None = None
        self.last_s = 0.0
        self.ended_s = 0.0
        self.has_begun = False
        self.is_refused_at_once = False
        """Whether it was refused before it waited. It then counts as no answer, however long the refusal took."""
        self.failed_stage = ""
        """The stage in which a limit of its time passed."""
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.verdict: Verdict | None = None
        self.num_tokens = 0
        self._is_steady = False  # nothing but tokens and the end is still to be measured
        self._delivery_s = 0.0  # from the engine to here, of the first output
        self._num_late = 0  # tokens that came later after the one before than the target allows
        self._late_s = 0.0  # by how much, together
        self._tail = ""  # the end of the text, while no sentence has ended
        self._has_calls = False
        self._gaps = metrics.inter_token_seconds.labels(*self._of_answer)
        metrics.live_requests.labels(model, "waiting").inc()
        self._num_given = 0 if request.so_far is None else request.so_far.num_tokens
        if request.so_far is not None and self._num_given:
            self._give(request.so_far)

    @property
    def usage(self) -> Usage:
        """The token counts of the Finished delta, or of the steps so far if there is none yet."""
        if self.finished is not None:
            return self.finished.usage
        started = self.started or Started(0, 0)
        return Usage(started.num_prompt_tokens, started.num_cached_tokens, self.num_tokens)

    def put(self, step: Step) -> None:
        """Count a step, in about half a microsecond, and pass it on."""
        deltas = step.deltas
        if not self._is_steady:
            if deltas and isinstance(deltas[0], Queued):
                self._sink.put(step)
                return
            self._begin(step)
        if step.tokens or (deltas and type(deltas[-1]) in _OUTPUT):
            self.num_tokens += step.num_delivered
            if self.first_s is None:
                self._observe_first(step)
            else:
                gap_s = step.at_s - self.last_s
                self._gaps.observe(gap_s)
                if gap_s > self._token_s:
                    self._num_late += 1
                    self._late_s += gap_s - self._token_s
            self.last_s = step.at_s
        if deltas and type(deltas[-1]) is Finished:
            step = self._finish(step, deltas[-1])
        self._sink.put(step)

    async def room(self) -> None:
        await self._sink.room()

    def end(self, code: str = ABANDONED) -> str:
        """Count the end of the generation. Return its finish reason, or `code` if it has none.

        `code` is an error's code, or ABANDONED if the client left.
        """
        self.ended_s = time.monotonic()
        if not self.has_begun:
            self._rename()
        metrics.live_requests.labels(self.model, "running" if self.has_begun else "waiting").dec()
        end = self.finished.reason.value if self.finished is not None else code
        # The requested model does not exist, and `model` is then the name of the default model, which was not used.
        metrics.generations_total.labels("unknown" if end == ModelNotFound.code else self.model, end).inc()
        if self.has_begun:
            self._observe(metrics.generation_seconds, self.ended_s)
            self._count_tokens()
        elif self.finished is None and code != ABANDONED:
            metrics.refused_total.labels(code).inc()
        if outcome := self._outcome(end):
            metrics.answers_total.labels(*self._of_answer, outcome).inc()
        return end

    def _give(self, ahead: AnswerSoFar) -> None:
        """Measure what was generated ahead of the request. The client has it already."""
        self.num_tokens, self.first_s = self._num_given, time.monotonic()
        self.last_s = self.first_s
        self._observe(metrics.first_token_seconds, self.first_s)
        if self._is_usable(Step((TextDelta(ahead.text),))):
            self.usable_s = self.first_s
            self._observe(metrics.usable_seconds, self.usable_s)

    def _rename(self) -> None:
        """Count the generation under its model's present name."""
        if (model := self._label()) != self.model:
            metrics.live_requests.labels(self.model, "waiting").dec()
            metrics.live_requests.labels(model, "waiting").inc()
            self.model = model

    def _begin(self, step: Step) -> None:
        """Measure what comes once: the beginning, and the first sentence or call."""
        if not self.has_begun:
            self._rename()
            self.has_begun = True
            if step.deltas and isinstance(step.deltas[0], Started):
                self.started = step.deltas[0]
            placement = None if self.started is None else self.started.placement
            served_by = "local" if placement is None else placement.served_by
            self._of_answer = (self.model, self._tier.value, served_by)
            self._gaps = metrics.inter_token_seconds.labels(*self._of_answer)
            metrics.live_requests.labels(self.model, "waiting").dec()
            metrics.live_requests.labels(self.model, "running").inc()
        if self.usable_s is None and self._is_usable(step):
            self.usable_s = time.monotonic()
            self._observe(metrics.usable_seconds, self.usable_s)
        self._is_steady = self.usable_s is not None and self.first_s is not None

    def _is_usable(self, step: Step) -> bool:
        """Whether a step completes the first sentence of the answer, or its first tool call."""
        for delta in step.deltas:
            match delta:
                case TextDelta(text):
                    tail = self._tail + text
                    if self._has_calls or _SENTENCE_END.search(tail):
                        return True
                    self._tail = tail[-_TAIL_CHARS:]
                case ToolCallStarted():
                    if self._has_calls or self._tail:
                        return True
                    self._has_calls = True
                case Finished(reason):
                    return reason is not FinishReason.CANCELLED and bool(self._tail or self._has_calls)
        return False

    def _observe_first(self, step: Step) -> None:
        self.first_s = time.monotonic()
        begun_s = self.began_s + self._waited_s
        self._delivery_s = max(0.0, self.first_s - max(step.at_s, begun_s)) if step.at_s else 0.0
        self._observe(metrics.first_token_seconds, self.first_s)

    def _observe(self, histogram: metrics.FastHistogram, at_s: float) -> None:
        """Observe the time since the acceptance, if the request has a target, and is no part of another one."""
        if self._is_measured:
            histogram.labels(*self._of_answer).observe(at_s - self.began_s)

    def _finish(self, step: Step, finished: Finished) -> Step:
        """Return the last step, with the verdict and the time that the request waited before."""
        self.finished = finished
        is_end = finished.reason is not FinishReason.CANCELLED and not self._is_prefill
        if self.first_s is None and (is_end or any(type(delta) is ChoiceScores for delta in step.deltas)):
            self._observe_first(step)  # an answer without tokens: its end is all that its client waited for
        first_s = (self.first_s or time.monotonic()) - self.began_s
        is_due = self.first_s is not None or first_s > self._target.first_token_s
        timings, waited_ms = finished.timings, 1000.0 * self._waited_s
        if is_due and self._is_measured:
            stage = late_stage(timings, self._target, first_s, self._delivery_s, self._excess_s, self._waited_s)
            self.verdict = Verdict(self._tier, self._target, stage)
        if self.verdict is not None or waited_ms:
            first_ms = timings.first_token_ms + (waited_ms if self.first_s is not None else 0.0)
            timings = replace(
                timings, queue_ms=timings.queue_ms + waited_ms, first_token_ms=first_ms, verdict=self.verdict
            )
            self.finished = replace(finished, timings=timings)
            step = replace(step, deltas=(*step.deltas[:-1], self.finished))
        return step

    @property
    def _excess_s(self) -> float:
        """By how much the tokens were late, together; 0 if enough of them were on time."""
        return self._late_s if self._num_late > (1.0 - _ON_TIME) * (self.num_tokens - 1) else 0.0

    def _outcome(self, end: str) -> str:
        """Return whether the answer kept its target; "" if that cannot be said."""
        if self.verdict is not None:
            return self.verdict.late_stage or MET
        is_cancelled = self.finished is not None and self.finished.reason is FinishReason.CANCELLED
        is_left = self._is_part and (is_cancelled or (self.finished is None and end == ABANDONED))
        if (self.finished is not None and not is_left) or self._target == NO_TARGET or self.is_refused_at_once:
            return ""
        if self.failed_stage:
            return self.failed_stage
        if self.has_begun and end != ABANDONED and not is_left:
            return FAILED
        first_s = None if is_left else self.first_s  # its client has seen nothing of a part
        if (first_s or self.ended_s) - self.began_s > self._target.first_token_s or self._excess_s:
            return UNKNOWN if self.has_begun else "queue"
        return "" if self.first_s is None or not self._is_measured else MET

    def _count_tokens(self) -> None:
        if self.finished is not None and self.finished.timings.origin is not None:
            return  # no model computed them for this request
        if self._num_given and self.started is None:
            return  # all was generated ahead, and counted then
        usage = self.usage
        metrics.prefill_tokens_total.labels(self.model).inc(usage.num_prompt_tokens - usage.num_cached_tokens)
        metrics.prefix_cache_hit_tokens_total.labels(self.model).inc(usage.num_cached_tokens)
        metrics.decode_tokens_total.labels(self.model).inc(max(0, usage.num_output_tokens - self._num_given))
        if self.finished is not None and self._is_measured:
            self._observe_stages(self.finished.timings)
        if self.finished is None:
            return
        metrics.shifted_tokens_total.labels(self.model).inc(self.finished.timings.num_shifted_tokens)
        if (miss := self.finished.timings.miss) is not None:
            part = "instructions" if miss.in_instructions else "messages"
            metrics.recomputed_tokens_total.labels(self.model, part).inc(miss.num_lost)

    def _observe_stages(self, timings: Timings) -> None:
        metrics.draft_tokens_total.labels("true").inc(timings.num_accepted_tokens)
        metrics.draft_tokens_total.labels("false").inc(timings.num_draft_tokens - timings.num_accepted_tokens)
        stages_ms = timings.stages_before_first_token_ms | {"decode": timings.decode_ms}
        for stage, milliseconds in stages_ms.items():
            metrics.stage_seconds.labels(stage, *self._of_answer[1:]).observe(milliseconds / 1000.0)
        if self.first_s is not None:
            metrics.stage_seconds.labels("delivery", *self._of_answer[1:]).observe(self._delivery_s)


def late_stage(
    timings: Timings,
    target: Target,
    first_s: float,
    delivery_s: float,
    late_tokens_s: float,
    waited_s: float = 0.0,
) -> str:
    """Return the stage that broke an answer's latency target; "" if the target was kept.

    `first_s`: the time to the first token. `delivery_s`: the part of it between the engine and this process.
    `late_tokens_s`: by how much the later tokens exceeded their target, together. `waited_s`: the part of `first_s`
    before the service had the request, which counts as queue.

    1. Neither the first token nor the later ones exceed their target: none.
    2. The later tokens exceed it by more than the first one: decode, or remote if a remote sent the end of the answer.
    3. Otherwise the longest of queue, load, render, cache, prefill and delivery. What no stage accounts for is the
       remote's if one was asked, even if it failed, and else part of queue. It is unknown if the worker that sent the
       first token has crashed, since its times are lost.
    """
    late_first_s = first_s - target.first_token_s
    if late_first_s <= 0.0 and late_tokens_s <= 0.0:  # 1
        return ""
    if late_tokens_s > late_first_s:  # 2
        return "remote" if is_remote(timings.route) else "decode"
    stages_s = {
        stage: milliseconds / 1000.0 for stage, milliseconds in timings.stages_before_first_token_ms.items()
    }  # 3
    asked = (timings.route, *(move.source for move in timings.handovers))
    rest = "remote" if any(map(is_remote, asked)) else "queue" if stages_s else UNKNOWN
    rest_s = first_s - sum(stages_s.values()) - delivery_s - waited_s
    stages_s["queue"] = stages_s.get("queue", 0.0) + waited_s
    stages_s[rest] = stages_s.get(rest, 0.0) + rest_s
    stages_s["delivery"] = delivery_s
    return max(stages_s, key=stages_s.__getitem__)
