"""A prepared request: the specification for the engine, and the objects that turn its tokens into deltas."""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgeagent.engine.choices import Choices
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.text.output.prompt_text import PromptEcho
from edgeagent.text.output.respelling import RespellConstraint
from edgeagent.text.output.stream import OutputStream
from edgeagent.text.vocabulary import Vocabulary
from edgeagent.types import GenerateRequest
from edgeagent.worker.child.generator.continuation import Continuation
from edgeagent.worker.child.prompt import ReadPrompt
from edgeagent.worker.protocol import Delivered


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request ready for the engine, and the output stream that turns its tokens into deltas.

    `num_dropped_items`: see ReadPrompt. `warnings`: see Started. `echo` is None if the client asked for no echo of the
    prompt.
    """

    spec: SequenceSpec
    output: OutputStream
    render_ms: float
    echo: PromptEcho | None = None
    num_dropped_items: int = 0
    warnings: tuple[str, ...] = ()
    earlier: Continuation | None = None
    """The beginning of the answer, if another machine generated it; otherwise None."""
    respelling: RespellConstraint | None = None
    """The constraint under which `earlier.open_text` is generated again; None if there is no such text."""

    @property
    def corrected_count_difference(self) -> int:
        """The other machine's token count for the beginning minus this model's count; 0 if no other machine began.

        It changes once `earlier.open_text` is generated again, if that text then has more or fewer tokens.
        """
        if self.earlier is None:
            return 0
        return self.earlier.count_difference - self._num_extra_tokens

    @property
    def num_output_tokens(self) -> int:
        """How many tokens the answer has, at least those that came from another machine."""
        num = self.output.num_tokens + self.corrected_count_difference
        return num if self.earlier is None else max(num, self.earlier.so_far.num_tokens)

    @property
    def num_delivered(self) -> int:
        """How many tokens of the answer have their text in the deltas so far, or came from another machine.

        Text of the other machine that is generated again does not count.
        """
        num = self.output.num_returned + self.corrected_count_difference
        if self.earlier is None:
            return num
        is_respelled = self.respelling is None or self.respelling.is_over
        return max(self.earlier.so_far.num_tokens, num if is_respelled else 0)

    def settle(self, sequence: Sequence, context_length: int) -> None:
        """Correct the sequence's length limit once `earlier.open_text` has been generated again.

        That text may now have more or fewer tokens than before. Call this after each step. Only one call has an effect.
        """
        if self.respelling is None or not self.respelling.is_over or self.respelling.is_settled:
            return
        self.respelling.is_settled = True
        if self.spec.max_tokens is not None:
            wanted = min(sequence.max_length + self._num_extra_tokens, context_length)
            sequence.max_length = max(len(sequence.tokens), wanted)

    @property
    def _num_extra_tokens(self) -> int:
        if self.earlier is None or self.respelling is None or not self.respelling.is_over:
            return 0
        return self.respelling.num_respelled - self.earlier.num_open


def make_spec(
    request: GenerateRequest,
    prompt: ReadPrompt,
    sampler: Sampler,
    delivered: Delivered,
    num_scored: int | None,
    adapter: str,
) -> SequenceSpec:
    """Return the engine's specification of a request.

    `num_scored` is the number of alternatives for each prompt token if log probabilities of the prompt are requested;
    otherwise None. `adapter` is the identity of the request's adapter, "" for none.
    """
    cache, target, max_tokens = request.cache, request.target, request.max_tokens
    return SequenceSpec(
        id=request.id,
        prompt=prompt.tokens,
        sampler=sampler,
        max_tokens=max_tokens,
        tier=request.tier,
        is_ahead=request.is_ahead,
        partition=cache.partition,
        read_cache=cache.read and num_scored is None,
        write_cache=cache.write,
        persist=cache.persist,
        pin=cache.pin,
        prefill_only=request.prefill_only or request.max_tokens == 0,
        delivered=delivered.tokens,
        step_lengths=delivered.step_lengths,
        num_prompt_logprobs=num_scored,
        reports_progress=request.reports_progress,
        boundaries=prompt.boundaries,
        num_system=prompt.num_system,
        adapter=adapter,
        draft_tokens=request.draft_tokens,
        is_exact=bool(prompt.media),
        token_s=request.need.token_s,
        target_s=math.inf if target is None else target.token_s,
        media=prompt.media,
    )


def read_choices(request: GenerateRequest, prompt: ReadPrompt, vocabulary: Vocabulary, max_tokens: int) -> Choices:
    """Return the tokens of a request's choices, each of which may have at most `max_tokens`.

    A choice is the text that the model would write behind the prompt, so control tokens in it are plain text. An end of
    the answer follows it: otherwise "yes" would be likelier than "yes, please" whatever the prompt says, since its
    probability would include that of all answers that begin with it.

    Raise InvalidRequest for a choice that is too long, or NotSupported if the prompt opens the model's reasoning.
    """
    if prompt.open_reasoning is not None:
        raise NotSupported(
            "This model always reasons before it answers, so none of the choices could follow the prompt. Serve a "
            "model that can answer at once.",
            param="model",
        )
    tokens = tuple(tuple(vocabulary.tokenize(text, parse_special=False)) for text in request.choices)
    for index, each in enumerate(tokens):
        if not 0 < len(each) <= max_tokens:
            raise InvalidRequest(
                f"choices[{index}] has {len(each)} tokens of this model; it must have 1 to {max_tokens}",
                param=f"choices[{index}]",
            )
    return Choices(tokens, vocabulary.end_tokens)
