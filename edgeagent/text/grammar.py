"""Compiles what an answer has to look like into constraints on tokens, with llguidance.

A constraint is the state of one answer. Free text costs nothing: where only calls are constrained, the grammar wakes up
when a call's marker has been generated and sleeps again when the call is over.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from edgeagent.errors import InternalError, InvalidRequest, InvalidToolSchema, NotSupported
from edgeagent.text.call_grammar import CallRules, Grammar, callable_tools, tool_schemas
from edgeagent.text.json_schema import SchemaError, parse_schema, with_options
from edgeagent.text.tool_format import REASONING, ReasoningMarkers, ToolFormat, call_opener
from edgeagent.text.vocabulary import Vocabulary
from edgeagent.types import JsonObjectFormat, JsonSchemaFormat, OutputFormat, TextFormat, Tool, ToolChoice

MAX_CACHED_GRAMMARS = 64
MAX_GRAMMAR_CHARS = 1 << 20
_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Text that wakes the grammar. is_start: only as the answer's first text, and then part of the grammar's text."""

    text: bytes
    is_start: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """When a grammar applies: from the start, or after a trigger; then once, or each time a trigger comes up.

    goes_on: text that is complete may still grow within the grammar, so it stays awake.
    """

    grammar: str
    triggers: tuple[Trigger, ...] = ()
    repeats: bool = False
    goes_on: bool = False
    open_reasoning: ReasoningMarkers | None = None


class Constraint:
    """Which tokens may come next in one answer; an `engine.constraint.TokenConstraint`.

    Tokens that end generation may come exactly when the answer is complete. InvalidRequest is raised where the grammar
    exceeds its limits in mid-answer.
    """

    def __init__(self, compiler: GrammarCompiler, plan: Plan, prototype: LLMatcher) -> None:
        self._compiler = compiler
        self._plan = plan
        self._prototype = prototype
        self._matcher: LLMatcher | None = None
        self._is_over = False
        self._has_started = False
        self._skip_until = plan.open_reasoning.close.encode() if plan.open_reasoning else b""
        self._text = b""
        self._bits: NDArray[np.uint8] | None = None
        if not plan.triggers and not self._skip_until:
            self._matcher = prototype.deep_copy()

    def copy(self) -> Constraint:
        """Return a constraint in the same state that goes its own way."""
        twin = Constraint(self._compiler, self._plan, self._prototype)
        twin._matcher = self._matcher and self._matcher.deep_copy()
        twin._is_over, twin._has_started = self._is_over, self._has_started
        twin._skip_until, twin._text = self._skip_until, self._text
        return twin

    def allows(self, token: int) -> bool:
        """Whether `token` may come next. No side effect."""
        is_end = self._compiler.vocabulary.is_end(token)
        if self._is_over:
            return is_end
        if self._matcher is None:
            return True
        if is_end:
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token]) == 1

    def mask(self) -> NDArray[np.bool_] | None:
        """Return which tokens may come next, shape (num_tokens,); None when all may. A new array each time."""
        num_tokens = self._compiler.vocabulary.num_tokens
        if self._is_over:
            mask = np.zeros(num_tokens, dtype=np.bool_)
            mask[self._compiler.end_tokens] = True
            return mask
        if self._matcher is None:
            return None
        if self._bits is None:
            self._bits = np.zeros((num_tokens + 31) // 32 * 4, dtype=np.uint8)
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check(self._matcher)
        mask = np.unpackbits(self._bits, count=num_tokens, bitorder="little").view(np.bool_)
        mask[self._compiler.end_tokens] = self._matcher.is_accepting()
        return mask

    def accept(self, token: int) -> None:
        """Take a token as generated; it must be allowed."""
        if self._compiler.vocabulary.is_end(token):
            return
        if self._matcher is None:
            self._accept_free(self._compiler.vocabulary.piece(token))
            return
        had_ended = self._matcher.is_stopped()
        if not self._matcher.consume_token(token):
            # A format may grow too large only where it is followed: after its second optional property, say.
            if not had_ended:
                self._check(self._matcher)
            raise InternalError(f"token {token} is against the grammar")
        self._sleep_if_done(self._matcher)

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next, in order, where there is no choice."""
        if self._matcher is None or self._matcher.is_accepting():
            return ()
        return self._matcher.compute_ff_tokens()

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
        """Begin to skip reasoning where the answer begins with it."""
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
            self._text = self._text[-self._compiler.max_trigger_bytes :]

    def _wake(self, rest: bytes) -> None:
        """Begin to constrain; `rest` came with the trigger's last token and is the grammar's first text."""
        self._text, self._has_started = b"", True
        matcher = self._prototype.deep_copy()
        if rest and not matcher.consume_tokens(self._compiler.tokenize_bytes(rest)):
            # The answer has already left the grammar, inside one token: it stays free text until the next trigger.
            return
        self._matcher = matcher
        self._sleep_if_done(matcher)

    def _sleep_if_done(self, matcher: LLMatcher) -> None:
        if not self._plan.triggers or matcher.is_error():
            return
        if matcher.is_stopped() if self._plan.goes_on else matcher.is_accepting():
            self._matcher = None
            self._is_over = not self._plan.repeats

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error():
            raise InvalidRequest(f"the output format is too complex to follow: {_reason(matcher.get_error())}")


class _TokenizerAdapter:
    """A vocabulary in the shape that LLTokenizer asks for."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.end_tokens[0]
        self.special_token_ids = [token for token in range(vocabulary.num_tokens) if vocabulary.is_control(token)]
        # llguidance's convention: a leading 0xff byte, which no UTF-8 text has, says that a token is special.
        special = set(self.special_token_ids)
        self.tokens = [
            (b"\xff" if token in special else b"") + vocabulary.piece(token) for token in range(vocabulary.num_tokens)
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._vocabulary.tokenize(text, parse_special=False)


class GrammarCompiler:
    """Compiles grammars for one vocabulary and keeps the last ones."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.end_tokens = list(vocabulary.end_tokens)
        self.max_trigger_bytes = max(len(call_opener(tool_format)) for tool_format in ToolFormat)
        self._tokenizer: LLTokenizer | None = None
        self._prototypes: OrderedDict[str, LLMatcher] = OrderedDict()
        # Errors must not carry the client's schema into logs.
        self._limits = LLParserLimits(verbose_errors=False, precompute_large_lexemes=False, max_grammar_size=200_000)

    def prepare(self) -> None:
        """Read the vocabulary, once; half a second for 150,000 tokens. The first compile does it otherwise."""
        if self._tokenizer is None:
            if not self.end_tokens:
                raise NotSupported("the model has no token that ends an answer, so its format cannot be constrained")
            adapter: Any = _TokenizerAdapter(self.vocabulary)
            self._tokenizer = LLTokenizer(adapter, n_vocab=self.vocabulary.num_tokens, eos_token=self.end_tokens)

    def compile(
        self,
        format: OutputFormat,  # noqa: A002
        tools: Sequence[Tool],
        tool_choice: ToolChoice,
        parallel_tool_calls: bool,
        tool_format: ToolFormat,
        *,
        open_reasoning: ReasoningMarkers | None = None,
    ) -> Constraint | None:
        """Return the constraint of a request; None where anything may be written.

        Raises InvalidRequest for a format, InvalidToolSchema for tools, that cannot be followed.
        """
        usable = callable_tools(tools, tool_choice)
        answer = _format_grammar(format)
        if not usable:
            if answer is None:
                return None
            return self._constraint(_whole_plan("@answer", "", [answer], open_reasoning), "text.format")
        rules = CallRules(tool_format, usable, self.vocabulary)
        schemas = tool_schemas(usable)
        calls = rules.whole(several=parallel_tool_calls)
        if tool_choice.mode == "required":
            plan = _whole_plan(calls, rules.rules(), schemas, open_reasoning)
        elif answer is not None:
            plan = _whole_plan(f"@answer | {calls}", rules.rules(), [answer, *schemas], open_reasoning)
        else:
            start = f"start: {rules.after_marker(several=parallel_tool_calls)}\n{rules.rules()}"
            triggers = [Trigger(call_opener(tool_format).encode())]
            goes_on = tool_format is ToolFormat.LLAMA and parallel_tool_calls
            if tool_format is ToolFormat.LLAMA:
                triggers.append(Trigger(b"{", is_start=True))
            plan = Plan(_joined(start, schemas), tuple(triggers), parallel_tool_calls, goes_on, open_reasoning)
        return self._constraint(plan, "tools")

    def tokenize_bytes(self, text: bytes) -> list[int]:
        """Return tokens of these bytes, canonical or not."""
        assert self._tokenizer is not None
        return self._tokenizer.tokenize_bytes(text)

    def _constraint(self, plan: Plan, param: str) -> Constraint:
        prototype = self._prototypes.get(plan.grammar)
        if prototype is None:
            prototype = self._compile(plan.grammar, param)
            self._prototypes[plan.grammar] = prototype
            if len(self._prototypes) > MAX_CACHED_GRAMMARS:
                self._prototypes.popitem(last=False)
        self._prototypes.move_to_end(plan.grammar)
        return Constraint(self, plan, prototype)

    def _compile(self, grammar: str, param: str) -> LLMatcher:
        self.prepare()
        assert self._tokenizer is not None
        error_type = InvalidToolSchema if param == "tools" else InvalidRequest
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise error_type(f"the schemas have {len(grammar)} characters; at most {MAX_GRAMMAR_CHARS}", param=param)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if not matcher.is_error():
            # A grammar without any sentence (a schema that refers to itself, say) shows only when it is used.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise error_type(f"the schema cannot be followed: {_reason(matcher.get_error())}", param=param)
        return matcher


def _format_grammar(output_format: OutputFormat) -> Grammar | None:
    match output_format:
        case TextFormat():
            return None
        case JsonObjectFormat():
            schema, lenient = {"type": "object"}, False
        case JsonSchemaFormat():
            lenient = not output_format.strict
            try:
                schema = parse_schema(output_format.schema)
            except SchemaError as error:
                raise InvalidRequest(f"format {output_format.name!r}: {error}", param="text.format") from error
    return {"name": "answer", "json_schema": with_options(schema, lenient=lenient)}


def _whole_plan(body: str, rules: str, grammars: Sequence[Grammar], open_reasoning: ReasoningMarkers | None) -> Plan:
    """Return the plan of an answer that is constrained from its first token, or from the end of its reasoning."""
    # White space after reasoning is part of its marker.
    space = "" if open_reasoning is None else "/[ \\n]{0,4}/ "
    return Plan(_joined(f"start: {space}({body})\n{rules}", grammars), open_reasoning=open_reasoning)


def _joined(start: str, grammars: Sequence[Grammar]) -> str:
    return json.dumps({"grammars": [{"lark_grammar": start}, *grammars]})


def _reason(text: str) -> str:
    """Return what is wrong, in a line: the first, with the last where that one only announces it (a regex's error)."""
    lines = text.strip().splitlines() or ["unknown reason"]
    reason = lines[0]
    if reason.endswith(":") and len(lines) > 1:
        reason = f"{reason} {lines[-1].removeprefix('error: ')}"
    return reason[:300]
