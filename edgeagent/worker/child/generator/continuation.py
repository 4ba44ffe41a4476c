"""Turns the beginning of an answer, which another machine generated, into tokens that this model can continue."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass

from edgeagent.engine.sampling.sampler import Sampler, TokenConstraint
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.errors import ContextLengthExceeded, InternalError, InvalidRequest, NotSupported
from edgeagent.text.output.respelling import RespellConstraint, num_open
from edgeagent.text.output.stream import OutputStream
from edgeagent.text.tool_format import REASONING, THINK, ReasoningMarkers
from edgeagent.text.vocabulary import LongTextVocabulary
from edgeagent.types import AnswerSoFar, ChatPrompt, GenerateRequest, replace
from edgeagent.worker.child.prompt import ReadPrompt

# White space around reasoning is not shown to clients. Models write it after the open marker, and before and after the
# close marker.
_NO_SPACE = ("", "", "")
_SPACES = {THINK: ("\n", "\n", "\n\n")}


def _check_continuable(request: GenerateRequest, so_far: AnswerSoFar) -> None:
    """Raise NotSupported if a request's answer cannot be continued from its text alone."""
    if request.logprobs is not None:
        raise _not_continuable("its log probabilities have positions in the text from there", "logprobs")
    if request.echo or request.prefill_only:
        raise _not_continuable("it asks for an echo of the prompt, or only for the prompt to be computed", "echo")
    if request.max_tokens is not None and so_far.num_tokens >= request.max_tokens:
        raise _not_continuable(f"it already has its {request.max_tokens} tokens", "max_tokens")


@dataclass(frozen=True, slots=True)
class Continuation:
    """The beginning of an answer, in this model's tokens.

    The beginning consists of `tokens`, which are kept, and `num_open` more tokens of a word that may be incomplete. The
    text of that word, `open_text`, is generated again. `count_difference` is the other machine's token count for the
    beginning minus this model's count. It is not negative if the other machine's count is an estimate.
    """

    so_far: AnswerSoFar
    tokens: tuple[int, ...]
    open_text: bytes
    num_open: int
    count_difference: int

    def join(self, sampler: Sampler, output: OutputStream, vocabulary: LongTextVocabulary) -> RespellConstraint | None:
        """Advance the sampler and the output by the answer's beginning; raise NotSupported if that is impossible.

        Return the constraint under which `open_text` is generated again; None if `open_text` is empty.
        """
        try:
            for token in self.tokens:
                sampler.accept(token)
        except (InternalError, InvalidRequest) as error:
            raise _not_continuable("it does not fit this model's form of the output format", "text.format") from error
        if not output.resume(self.tokens, self.so_far.text, self.so_far.reasoning) or output.has_tool_calls:
            raise _not_continuable("it contains a stop string, or text that this model takes for a tool call", "stop")
        if not self.open_text:
            return None
        made: list[RespellConstraint] = []

        def make(inner: TokenConstraint | None) -> RespellConstraint:
            made.append(RespellConstraint(vocabulary, self.open_text, inner))
            return made[0]

        sampler.constrain(make)
        return made[0]

    def extend(self, spec: SequenceSpec) -> SequenceSpec:
        """Return `spec` with the answer's beginning as its first delivered tokens.

        Subtract `count_difference` from `max_tokens`, since the client's limit counts the beginning as the other
        machine counted it. If no more tokens are allowed, generate none.
        """
        first, *others = spec.step_lengths or (0,)
        is_whole = spec.max_tokens is not None and self.so_far.num_tokens >= spec.max_tokens
        return dataclasses.replace(
            spec,
            delivered=(*self.tokens, *spec.delivered),
            step_lengths=(len(self.tokens) + first, *others) if spec.step_lengths else (),
            max_tokens=None if spec.max_tokens is None else spec.max_tokens - self.count_difference,
            prefill_only=spec.prefill_only or is_whole,
        )


def read_continuation(
    request: GenerateRequest,
    so_far: AnswerSoFar,
    prompt: ReadPrompt,
    vocabulary: LongTextVocabulary,
    context_length: int,
) -> Continuation:
    """Return the answer so far as tokens that follow the prompt.

    Raise NotSupported if the request's options forbid a continuation, if the answer already has all its tokens, if this
    model cannot continue reasoning, or if no tokens give exactly this text. Raise ContextLengthExceeded if the context
    is full.
    """
    _check_continuable(request, so_far)
    is_chat = isinstance(request.prompt, ChatPrompt)
    segments: list[list[int]] = []
    if is_chat and (so_far.reasoning or prompt.open_reasoning is not None):
        segments += _reasoning_tokens(so_far, prompt.open_reasoning, vocabulary)
    if so_far.text:
        # White space at the beginning of a chat answer is dropped, so a blank that the tokenizer adds is harmless.
        segments.append(_text_tokens(so_far.text, vocabulary, may_add_blank=is_chat and not segments))
    num_all = len(prompt.tokens) + sum(map(len, segments))
    if num_all >= context_length:
        raise ContextLengthExceeded(
            f"The prompt and the answer so far have {num_all} tokens, but the context holds {context_length}.",
            param="input",
            served_by="local",
        )
    last = segments.pop() if segments else []
    cut = len(last) - num_open([vocabulary.piece(token) for token in last])
    tokens = (*itertools.chain.from_iterable(segments), *last[:cut])
    num_here = len(tokens) + len(last[cut:])
    if so_far.is_estimated:
        so_far = replace(so_far, num_tokens=max(so_far.num_tokens, num_here))
    count_difference = so_far.num_tokens - num_here
    return Continuation(so_far, tokens, _bytes(last[cut:], vocabulary), len(last[cut:]), count_difference)


def _reasoning_tokens(
    so_far: AnswerSoFar, opened: ReasoningMarkers | None, vocabulary: LongTextVocabulary
) -> list[list[int]]:
    """Return the tokens of the reasoning in parts, with the open marker if the prompt does not end inside reasoning.

    If the answer's text has begun, add the close marker. If the vocabulary has no reasoning markers, return [], so that
    only the text is continued. If there are no such markers and no text, raise NotSupported.
    """
    pair = opened or next((pair for pair in REASONING if _is_one_token(pair.open, vocabulary)), None)
    if pair is None:
        if so_far.text:
            return []
        raise _not_continuable("this model does not reason, and the answer has begun with reasoning", "input")
    inside, before_close, behind = _SPACES.get(pair, _NO_SPACE)
    segments: list[list[int]] = []
    if opened is None:
        segments += [vocabulary.tokenize(pair.open, parse_special=True), _text_tokens(inside, vocabulary)]
    reasoning = so_far.reasoning.lstrip() if opened is None else so_far.reasoning
    if so_far.text:
        segments.append(_text_tokens(reasoning.rstrip() + before_close, vocabulary))
        segments += [vocabulary.tokenize(pair.close, parse_special=True), _text_tokens(behind, vocabulary)]
    elif reasoning:
        segments.append(_text_tokens(reasoning, vocabulary))
    return segments


def _is_one_token(text: str, vocabulary: LongTextVocabulary) -> bool:
    return len(vocabulary.tokenize(text, parse_special=True)) == 1


def _text_tokens(text: str, vocabulary: LongTextVocabulary, *, may_add_blank: bool = False) -> list[int]:
    """Return tokens that give exactly this text at any position; raise NotSupported if there are none.

    Some vocabularies add a blank before the first word of a text, but not after a line feed. So a line feed is put
    before the text, and the tokens of the line feed are removed. With `may_add_blank`, an added blank is accepted.
    """
    if not text:
        return []
    wanted = text.encode("utf-8", "replace")
    tokens = vocabulary.tokenize(text, parse_special=False)
    given = _bytes(tokens, vocabulary)
    if given == wanted or (may_add_blank and given == b" " + wanted):
        return tokens
    head = vocabulary.tokenize("\n", parse_special=False)
    tokens = vocabulary.tokenize(f"\n{text}", parse_special=False)
    if tokens[: len(head)] == head and _bytes(tokens[len(head) :], vocabulary) == wanted:
        return tokens[len(head) :]
    raise _not_continuable("no tokens of this model give exactly its text", "input")


def _bytes(tokens: list[int], vocabulary: LongTextVocabulary) -> bytes:
    return b"".join(map(vocabulary.piece, tokens))


def _not_continuable(why: str, param: str) -> NotSupported:
    return NotSupported(f"the answer began elsewhere and cannot continue here: {why}", param=param, served_by="local")
