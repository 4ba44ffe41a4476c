"""Turns the logits of a step into outputs: sampled tokens, accepted drafts and log probabilities of the prompt.

It handles the part of one sequence (its BatchPart) at a time, and records the computed tokens in the prefix cache. The
engine decides which sequences run.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.choices import Tree, score_tree
from edgeagent.engine.runner import Logits, Runner
from edgeagent.engine.sampling.sampler import Logprob, Sampler, draw_rows, score, taken_rows
from edgeagent.engine.scheduler import BatchPart
from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.proposals import Proposals
from edgeagent.errors import EdgeAgentError
from edgeagent.types import FinishReason


@dataclass(slots=True)
class Output:
    """The result of a step for one sequence. If it has a `finish_reason` or an `error`, the sequence has ended.

    `prompt_logprobs`: the log probabilities of the prompt tokens that this step scored, in order. The first token of a
    prompt has none. `end_logprob`: that of the token that ended the text, which is not among `tokens`.
    `choice_logprobs`: those of the sequence's choices, when all are computed.
    """

    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    prompt_logprobs: list[Logprob] = field(default_factory=list)
    end_logprob: Logprob | None = None
    choice_logprobs: tuple[float, ...] = ()
    finish_reason: FinishReason | None = None
    error: EdgeAgentError | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


class Verifier:
    """Turns the computed parts of a batch into outputs."""

    def __init__(
        self,
        runner: Runner,
        prefixes: PrefixStore,
        proposals: Proposals,
        on_first: Callable[[Sequence, Logits], None],
        clock: Callable[[], float],
    ) -> None:
        """`on_first` is called with the logits from which the first token of a sequence is drawn."""
        self._runner = runner
        self._prefixes = prefixes
        self._proposals = proposals
        self._on_first = on_first
        self._clock = clock

    def draw(self, parts: Items[BatchPart]) -> list[int | None]:
        """Draw the tokens of several sequences at once. Return one for each row of logits; None where none was drawn.

        Nothing is drawn from the rows of drafts, scored prompts and choices: their tokens may not be needed.
        """
        places, samplers, num_rows = list[int](), list[Sampler](), 0
        for part in parts:
            sampler = part.sequence.spec.sampler
            if part.num_logits == 1 and sampler.num_ranked and not part.num_scored and part.tree is None:
                places.append(num_rows)
                samplers.append(sampler)
            num_rows += part.num_logits
        drawn: list[int | None] = [None] * num_rows
        if len(places) > 1:
            rows = self._runner.all_logits()
            tokens = draw_rows(samplers, rows if len(places) == num_rows else taken_rows(rows, places))
            for place, token in zip(places, tokens, strict=True):
                drawn[place] = token
        return drawn

    def verify(self, part: BatchPart, row: int, drawn: Items[int | None]) -> Output:
        """Record the computed tokens of a part, sample from its logits, and return the output.

        `row`: the index of the part's first row of logits in the batch. `drawn`: what `draw` returned for the batch.
        Errors are not raised, but returned in the output.
        """
        sequence, output = part.sequence, Output(part.sequence)
        if part.tree is not None:
            self._choose(sequence, part.tree, row, output)
            return output
        try:
            if part.num_scored:
                self._score(part, row, output)
        except EdgeAgentError as error:
            output.error = error
        num_new, span = part.num_tokens, sequence.span
        if span is not None and span.is_one:
            sequence.num_rows += num_new
            if sequence.num_rows < span.end - sequence.num_computed:
                return output
            num_new, sequence.num_rows = sequence.num_rows, 0
        self._advance(sequence, sequence.tokens[sequence.num_computed : sequence.num_computed + num_new])
        if output.error is not None:
            return output
        if part.num_logits == part.num_scored:
            if sequence.num_pending == 0:
                output.finish_reason = FinishReason.STOP
            return output
        try:
            output.finish_reason = self._sample(part, row + part.num_scored, output, drawn)
        except EdgeAgentError as error:
            output.error = error
        return output

    def rewind(self, sequence: Sequence) -> None:
        """Remove from the runner all tokens that were not recorded, such as refused drafts or an interrupted batch."""
        assert sequence.seq_id is not None
        # The rows are removed too. They are computed again in one step: if each second step were interrupted, parts
        # would never come to an end.
        sequence.is_one_whole |= sequence.num_rows > 0
        sequence.num_rows = 0
        sequence.num_computed = self._prefixes.slots.rewind(sequence.seq_id)
        if sequence.spec.media:  # the runner forgets them if it could not be cut
            self._runner.place_media(sequence.seq_id, sequence.stretches)

    def _score(self, part: BatchPart, row: int, output: Output) -> None:
        """Add log probabilities of prompt tokens to `output`. The logits after a token give the next token's."""
        sequence, num_top = part.sequence, part.sequence.spec.num_prompt_logprobs
        assert num_top is not None
        first = sequence.num_computed + 1
        for position in range(first, min(first + part.num_scored, sequence.num_prompt)):
            if position > sequence.num_scored:  # a preempted prompt is computed twice and scored once
                logits = self._runner.logits(row + position - first)
                output.prompt_logprobs.append(score(logits, sequence.tokens[position], num_top))
                sequence.num_scored = position

    def _choose(self, sequence: Sequence, tree: Tree, row: int, output: Output) -> None:
        """Add the log probabilities of a tree's choices to the sequence. After the last choice, the sequence ends."""
        choices, scores, now_s = sequence.spec.choices, sequence.choice_scores, self._clock()
        assert choices is not None
        try:
            scores += score_tree(tree, choices, len(scores), lambda index: self._runner.logits(row + index))
        except EdgeAgentError as error:
            output.error = error
            return
        sequence.advanced_s = now_s
        if len(scores) == len(choices.tokens):
            sequence.marks.first_token_s = sequence.marks.last_token_s = now_s
            output.choice_logprobs = tuple(score for _, score in sorted(zip(choices.order, scores, strict=True)))
            output.finish_reason = FinishReason.STOP

    def _sample(self, part: BatchPart, row: int, output: Output, drawn: Items[int | None]) -> FinishReason | None:
        """Draw tokens, add them to the sequence and `output`, and return why the sequence ended; None if it continues.

        After each drawn token, the next one is drawn only if the draft had the same token.
        """
        sequence, sampler = part.sequence, part.sequence.spec.sampler
        num_accepted, reason, has_ended = 0, None, False
        for index in range(1 + len(part.drafts)):
            logits = self._runner.logits(row + index)
            if sequence.num_output == 0:
                self._on_first(sequence, logits)
            sampled = sampler.sample(logits, drawn[row + index])
            is_accepted = index < len(part.drafts) and part.drafts[index] == sampled.token
            if self._runner.is_end(sampled.token):
                reason, has_ended, output.end_logprob = FinishReason.STOP, is_accepted, sampled.logprob
                num_accepted += is_accepted
                break
            sampler.accept(sampled.token)
            sequence.tokens.append(sampled.token)
            output.tokens.append(sampled.token)
            if sampled.logprob is not None:
                output.logprobs.append(sampled.logprob)
            if len(sequence.tokens) >= sequence.max_length:
                reason = FinishReason.LENGTH
                break
            if not is_accepted:
                break
            num_accepted += 1
            self._advance(sequence, (sampled.token,))
        sequence.record_batch(sequence.num_computed)
        sequence.marks.last_token_s = self._clock()
        if sequence.marks.first_token_s == 0.0:
            sequence.marks.first_token_s = sequence.marks.last_token_s
        if part.drafts:
            self._proposals.observe(sequence, len(part.drafts), num_accepted, has_ended=has_ended)
            self.rewind(sequence)
        return reason

    def _advance(self, sequence: Sequence, tokens: Items[int]) -> None:
        assert sequence.seq_id is not None
        self._prefixes.slots.append(sequence.seq_id, tokens)
        sequence.num_computed += len(tokens)
