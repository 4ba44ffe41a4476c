"""Tracks one answer with a required form, and decides which tokens may come next.

Free text is not constrained and costs nothing. If only calls are constrained, the grammar is active only from a call's
marker to the end of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeagent.errors import InternalError, InvalidRequest
from edgeagent.text.grammar.fault import reason
from edgeagent.text.grammar.json_guard import JsonGuard
from edgeagent.text.grammar.library import LLMatcher
from edgeagent.text.tool_format import REASONING, ReasoningMarkers

if TYPE_CHECKING:
    from edgeagent.text.grammar.compiler import GrammarCompiler

_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Text that activates the grammar.

    `is_start`: the text activates the grammar only at the start of the answer, and the grammar also describes this
    text.
    """

    text: bytes
    is_start: bool = False


@dataclass(frozen=True, slots=True)
class GrammarPlan:
    """A grammar, and when it applies.

    - `triggers`: the texts after which the grammar applies. Without any, it applies from the start.
    - `repeats`: the grammar applies after each trigger, not only after the first one. Otherwise the answer ends with
      the grammar's text.
    - `goes_on`: the grammar stays active when its text is complete, because another call may follow.
    - `open_reasoning`: the markers of reasoning that the prompt has opened. The grammar applies only after the
      reasoning.
    - `warnings`: about keywords of the request's schemas that are ignored.
    - `text_grammar`: the same grammar without tool calls; None if the grammar does not combine JSON text and calls.
    """

    grammar: str
    triggers: tuple[Trigger, ...] = ()
    repeats: bool = False
    goes_on: bool = False
    open_reasoning: ReasoningMarkers | None = None
    text_grammar: str | None = None
    warnings: tuple[str, ...] = ()


class Constraint:
    """Decides which tokens may come next in one answer. It is an `engine.sampling.sampler.TokenConstraint`.

    While the grammar is active, tokens that end generation are allowed exactly when its text is complete. `mask` and
    `accept` raise InvalidRequest if the grammar exceeds its limits in the middle of the answer.
    """

    def __init__(
        self, tokens: GrammarCompiler, plan: GrammarPlan, prototype: LLMatcher, text_prototype: LLMatcher | None = None
    ) -> None:
        """`prototype` matches the plan's `grammar`, `text_prototype` its `text_grammar`. Both are copied before use."""
        self._tokens = tokens
        self._plan = plan
        self._prototype = prototype
        self._text_prototype = text_prototype
        # Follows the text grammar as long as the model has written nothing but white space.
        self._text_matcher: LLMatcher | None = None
        self._matcher: LLMatcher | None = None
        self._is_over = False
        self._has_started = False
        self._skip_until = plan.open_reasoning.close.encode() if plan.open_reasoning else b""
        self._text = b""
        self._bits: NDArray[np.uint8] | None = None
        self._guard = JsonGuard(self._tokens.starts)
        if not plan.triggers and not self._skip_until:
            self._matcher = prototype.deep_copy()
            self._text_matcher = text_prototype and text_prototype.deep_copy()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the constraint does not enforce, although the request asks for it. Each is a line for the client."""
        return self._plan.warnings

    def copy(self) -> Constraint:
        twin = copy(self)
        twin._text_matcher = self._text_matcher and self._text_matcher.deep_copy()
        twin._matcher = self._matcher and self._matcher.deep_copy()
        twin._guard, twin._bits = self._guard.copy(), None
        return twin

    def allows(self, token: int) -> bool:
        is_end = self._tokens.vocabulary.is_end(token)
        if self._is_over:
            return is_end
        if self._matcher is None:
            return True
        if is_end:
            return self._matcher.is_accepting()
        if self._matcher.validate_tokens([token]) != 1:
            return False
        if self._guard.refuses(token):
            mask = self.mask()
            return mask is not None and bool(mask[token])
        return True

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:
        """Return which tokens may come next, shape (num_tokens,); None if all may. The array is new at each call.

        If the plan has a `text_grammar`, the answer may be a call or JSON text. If the model's `likeliest` first token
        begins neither, only the text grammar applies. Without this rule, the beginning of a call could be more likely
        than that of JSON text, and the model would call a tool for no reason.
        """
        num_tokens = self._tokens.vocabulary.num_tokens
        if self._is_over:
            mask = np.zeros(num_tokens, dtype=np.bool_)
            mask[self._tokens.end_tokens] = True
            return mask
        if self._matcher is None:
            return None
        matcher = self._matcher
        if self._text_matcher is not None and likeliest is not None and not self.allows(likeliest):
            matcher = self._text_matcher
        if self._bits is None:
            self._bits = np.zeros((num_tokens + 31) // 32 * 4, dtype=np.uint8)
        matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check(matcher)
        mask = np.unpackbits(self._bits, count=num_tokens, bitorder="little").view(np.bool_)
        mask[self._tokens.end_tokens] = matcher.is_accepting()
        return self._guard.narrowed(mask)

    def instead_of(self, token: int) -> int | None:
        """Return the token to write instead of the model's `token`, which is not allowed; None to draw an allowed one.

        If the model ends the answer or writes a control token inside a JSON string, the string is taken as complete.
        Then the result is the quote mark that closes it.
        """
        vocabulary, quote = self._tokens.vocabulary, self._tokens.quote
        if self._matcher is None or not self._guard.is_in_string or quote is None:
            return None
        if not (vocabulary.is_end(token) or vocabulary.is_control(token)):
            return None
        return quote if self._matcher.validate_tokens([quote]) == 1 else None

    def accept(self, token: int) -> None:
        """Record a generated token, which must be allowed. Raise InternalError if the grammar does not allow it."""
        if self._tokens.vocabulary.is_end(token):
            return
        if self._matcher is None:
            self._accept_free(self._tokens.vocabulary.piece(token))
            return
        had_ended = self._matcher.is_stopped()
        if not self._matcher.consume_token(token):
            # Some grammars exceed their limits only during use, e.g. after a second optional property.
            if not had_ended:
                self._check(self._matcher)
            raise InternalError(f"token {token} is against the grammar")
        piece = self._tokens.vocabulary.piece(token)
        self._guard.feed(piece)
        self._follow_text(piece, [token])
        self._sleep_if_done(self._matcher)

    def forced(self) -> Sequence[int]:
        if self._matcher is None or self._matcher.is_accepting():
            return ()
        return self._matcher.compute_ff_tokens()

    def _follow_text(self, piece: bytes, tokens: list[int]) -> None:
        """Give generated white space to the text grammar too. Drop that grammar at any other text."""
        if self._text_matcher is not None and (piece.strip() or not self._text_matcher.consume_tokens(tokens)):
            self._text_matcher = None

    def _accept_free(self, piece: bytes) -> None:
        self._text += piece
        if not self._has_started and not self._skip_until:
            self._look_at_start()
        if self._skip_until:
            before, found, after = self._text.partition(self._skip_until)
            self._text = after if found else before[-len(self._skip_until) + 1 :]
            if not found:
                return
            self._skip_until = b""
            self._has_started = False
            if not self._plan.triggers:
                self._wake(after.lstrip(_SPACE))
                return
        self._look_for_triggers()

    def _look_at_start(self) -> None:
        """If the answer begins with reasoning, leave the reasoning unconstrained."""
        text = self._text.lstrip(_SPACE)
        for pair in REASONING:
            if text.startswith(pair.open.encode()):
                self._skip_until, self._text = pair.close.encode(), text[len(pair.open) :]
                return

    def _look_for_triggers(self) -> None:
        text = self._text.lstrip(_SPACE)
        for trigger in self._plan.triggers:
            if trigger.is_start:
                if not self._has_started and text.startswith(trigger.text):
                    self._wake(text)
                    return
            elif (start := self._text.find(trigger.text)) >= 0:
                self._wake(self._text[start + len(trigger.text) :])
                return
        could_be_reasoning = any(pair.open.encode().startswith(text) for pair in REASONING)
        self._has_started = self._has_started or not could_be_reasoning
        if self._has_started:
            self._text = self._text[-self._tokens.max_trigger_bytes :]

    def _wake(self, rest: bytes) -> None:
        """Activate the grammar and feed it `rest`, the generated text that belongs to it.

        If `rest` does not fit the grammar, the grammar stays inactive.
        """
        self._text, self._has_started = b"", True
        matcher = self._prototype.deep_copy()
        tokens = self._tokens.tokenize_bytes(rest)
        if rest and not matcher.consume_tokens(tokens):
            # The answer left the grammar within this token, so it is free text until the next trigger.
            return
        self._matcher = matcher
        self._guard = JsonGuard(self._tokens.starts)
        self._guard.feed(rest)
        self._text_matcher = self._text_prototype and self._text_prototype.deep_copy()
        self._follow_text(rest, tokens)
        self._sleep_if_done(matcher)

    def _sleep_if_done(self, matcher: LLMatcher) -> None:
        if not self._plan.triggers or matcher.is_error():
            return
        if matcher.is_stopped() if self._plan.goes_on else matcher.is_accepting():
            self._matcher = None
            self._is_over = not self._plan.repeats

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise InvalidRequest(f"the output format is too complex to follow: {reason(matcher.get_error())}")
