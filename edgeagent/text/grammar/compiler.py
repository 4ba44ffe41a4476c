"""Compiles the required form of an answer into constraints on tokens, with llguidance."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from edgeagent.errors import InvalidRequest, InvalidToolSchema, NotSupported
from edgeagent.text.grammar.calls import BannedText, CallBan, CallRules, banned_texts, callable_tools
from edgeagent.text.grammar.constraint import Constraint, GrammarPlan
from edgeagent.text.grammar.fault import LIMITS, grammar_fault, reason
from edgeagent.text.grammar.json_guard import TokenStarts
from edgeagent.text.grammar.library import LLMatcher, LLTokenizer
from edgeagent.text.partition_cache import PartitionCache
from edgeagent.text.schema.closing import Schema, SchemaError, WorkLimit
from edgeagent.text.schema.reading import ReadSchema, SchemaReader, Wanted, followable
from edgeagent.text.tool_format import ReasoningMarkers, ToolFormat, call_opener
from edgeagent.text.vocabulary import Vocabulary
from edgeagent.types import JsonObjectFormat, JsonSchemaFormat, OutputFormat, TextFormat, Tool, ToolChoice

MAX_CACHED_GRAMMARS = 64
MAX_GRAMMAR_CHARS = 1 << 20
# llguidance panics at a longer token. Answers that must follow a grammar do not get such tokens.
_MAX_TOKEN_BYTES = 1024

Grammar = dict[str, Any]


class _TokenizerAdapter:
    """Gives a vocabulary the interface that LLTokenizer requires."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = vocabulary.end_tokens[0]
        self.special_token_ids = [token for token in range(vocabulary.num_tokens) if vocabulary.is_control(token)]
        # llguidance marks special tokens with a leading 0xff byte, which no UTF-8 text has.
        special = set(self.special_token_ids)
        pieces = [
            (b"\xff" if token in special else b"") + vocabulary.piece(token) for token in range(vocabulary.num_tokens)
        ]
        self.tokens = [piece if len(piece) <= _MAX_TOKEN_BYTES else b"" for piece in pieces]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._vocabulary.tokenize(text, parse_special=False)


class GrammarCompiler:
    """Compiles grammars for one vocabulary and caches the latest ones, for each partition its own.

    `check` is called before a grammar is compiled for the first time in a partition. It returns why the grammar cannot
    be compiled, or takes too much time or memory; an empty text if it can be compiled.
    """

    def __init__(self, vocabulary: Vocabulary, check: Callable[[str], str] = grammar_fault) -> None:
        self._check = check
        self.vocabulary = vocabulary
        self.end_tokens = list(vocabulary.end_tokens)
        self.max_trigger_bytes = max(len(call_opener(tool_format)) for tool_format in ToolFormat)
        self._tokenizer: LLTokenizer | None = None
        self._starts: TokenStarts | None = None
        # By partition and grammar: its matcher, or why it was refused.
        self._prototypes: PartitionCache[str, LLMatcher | str] = PartitionCache(MAX_CACHED_GRAMMARS)
        self._reader = SchemaReader(self._try)
        self._bans: dict[ToolFormat, tuple[BannedText, ...]] = {}

    @cached_property
    def quote(self) -> int | None:
        """The token that is exactly one double quote ("), which ends JSON strings; None if there is none."""
        tokens = self.vocabulary.tokenize('"', parse_special=False)
        found = [token for token in tokens if self.vocabulary.piece(token) == b'"']
        return found[0] if found else None

    @property
    def starts(self) -> TokenStarts:
        """The tokens grouped by how they begin. Available only after `prepare`."""
        assert self._starts is not None
        return self._starts

    def prepare(self) -> None:
        """Read the vocabulary, at the first call only. This takes a second of CPU time for 262,144 tokens.

        The interpreter's lock is held for most of this time, so call it while nothing else runs. The first compilation
        of a grammar calls it too. Raise NotSupported if the vocabulary has no token that ends an
        answer.
        """
        if self._tokenizer is None:
            if not self.end_tokens:
                raise NotSupported("the model has no token that ends an answer, so its format cannot be constrained")
            adapter: Any = _TokenizerAdapter(self.vocabulary)
            self._tokenizer = LLTokenizer(adapter, n_vocab=self.vocabulary.num_tokens, eos_token=self.end_tokens)
            self._starts = TokenStarts(adapter.tokens)

    def compile(
        self,
        format: OutputFormat,  # noqa: A002
        tools: Sequence[Tool],
        tool_choice: ToolChoice,
        parallel_tool_calls: bool,
        tool_format: ToolFormat,
        *,
        partition: str,
        open_reasoning: ReasoningMarkers | None = None,
        has_called: bool = False,
    ) -> Constraint | CallBan | None:
        """Return the constraint of a request; None if the model may write anything.

        partition: the client, see CachePolicy. open_reasoning: the markers of reasoning that the prompt leaves open.
        has_called: the conversation contains calls. If the answer is to be free text without calls, and the request has
        `tools` or `has_called`, the result is a CallBan, because the model may imitate what it sees. Keywords that
        cannot be followed are left out of a schema that is not strict; the constraint's `warnings` name them. Raise
        InvalidRequest for a format or a tool choice that cannot be followed, InvalidToolSchema for a tool with an
        unusable name or schema, and NotSupported if the vocabulary has no token that ends an answer.
        """
        usable = callable_tools(tools, tool_choice)
        if not usable and isinstance(format, TextFormat):
            return CallBan(self.vocabulary, self._banned(tool_format)) if tools or has_called else None
        rules = CallRules(tool_format, usable, self.vocabulary)
        limit = WorkLimit()
        read = _read(format, usable, lambda wanted: self._reader.read(partition, wanted, limit))
        try:
            return self._constraint(partition, _plan(rules, read, tool_choice, parallel_tool_calls, open_reasoning))
        except _RefusedError as refused:
            why = str(refused)
        read = _read(format, usable, lambda wanted: self._reader.relax(partition, wanted, why))
        try:
            return self._constraint(partition, _plan(rules, read, tool_choice, parallel_tool_calls, open_reasoning))
        except _RefusedError as refused:  # each schema alone can be followed
            raise InvalidToolSchema(f"the tools together cannot be followed: {refused}", param="tools") from None

    def tokenize_bytes(self, text: bytes) -> list[int]:
        """Return tokens for these bytes, not always the canonical ones. Available only after `prepare`."""
        assert self._tokenizer is not None
        return self._tokenizer.tokenize_bytes(text)

    def _constraint(self, partition: str, plan: GrammarPlan) -> Constraint:
        """Return the constraint of a plan; raise _RefusedError."""
        text = None if plan.text_grammar is None else self._prototype(partition, plan.text_grammar)
        return Constraint(self, plan, self._prototype(partition, plan.grammar), text)

    def _banned(self, tool_format: ToolFormat) -> tuple[BannedText, ...]:
        if tool_format not in self._bans:
            self._bans[tool_format] = banned_texts(tool_format, self.vocabulary)
        return self._bans[tool_format]

    def _prototype(self, partition: str, grammar: str) -> LLMatcher:
        """Return a grammar's matcher in its initial state, which callers must copy. Raise _RefusedError."""
        prototype = self._prototypes.get(partition, grammar)
        if prototype is None:
            prototype = self._compile(grammar)
            self._prototypes.put(partition, grammar, prototype)
        if isinstance(prototype, str):
            raise _RefusedError(prototype)
        return prototype

    def _compile(self, grammar: str) -> LLMatcher | str:
        """Return a grammar's matcher in its initial state, or why the grammar is refused."""
        self.prepare()
        assert self._tokenizer is not None
        if len(grammar) > MAX_GRAMMAR_CHARS:
            return f"the schemas have {len(grammar)} characters; at most {MAX_GRAMMAR_CHARS}"
        if fault := self._check(grammar):
            return fault
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            # A grammar that matches no text (e.g. a schema that refers to itself) fails only on first use.
            matcher.compute_bitmask()
        return reason(matcher.get_error()) if matcher.is_error() else matcher

    def _try(self, schema: Schema) -> str | None:
        """Return why a schema cannot be followed; None if it can."""
        made = self._compile(_joined("start: @answer", [{"name": "answer", "json_schema": schema}]))
        return made if isinstance(made, str) else None


class _RefusedError(Exception):
    """The compiler refused a grammar. The text of the error is the reason."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The schemas of a request in the form that is compiled: the answer's (None for free text) and the tools'."""

    answer: Schema | None
    tools: tuple[Schema, ...]
    warnings: tuple[str, ...]


def _read(output_format: OutputFormat, tools: Sequence[Tool], read: Callable[[Wanted], ReadSchema]) -> _Read:
    """Read each schema of a request. If `read` raises SchemaError, raise InvalidRequest that names format or tool."""
    warnings: list[str] = []

    def take(wanted: Wanted, name: str) -> Schema:
        result = read(wanted)
        if result.warning:
            warnings.append(f"{name}: {result.warning}")
        return result.schema

    answer: Schema | None = None
    match output_format:
        case JsonObjectFormat():
            answer = followable({"type": "object"}, lenient=False)
        case JsonSchemaFormat(schema=text, name=given, strict=strict):
            name = f"format {given[:100]!r}"
            try:
                answer = take(Wanted(text, strict, is_call=False), name)
            except SchemaError as error:
                raise InvalidRequest(f"{name}: {error}", param="text.format") from error
    schemas = []
    for tool in tools:
        name = f"parameters of tool {tool.name!r}"
        try:
            schemas.append(take(Wanted(tool.parameters, tool.strict, is_call=True), name))
        except SchemaError as error:
            raise InvalidToolSchema(f"{name}: {error}", param="tools") from error
    return _Read(answer, tuple(schemas), tuple(warnings))


def _plan(
    rules: CallRules,
    read: _Read,
    tool_choice: ToolChoice,
    parallel_tool_calls: bool,
    open_reasoning: ReasoningMarkers | None,
) -> GrammarPlan:
    answer = [] if read.answer is None else [{"name": "answer", "json_schema": read.answer}]
    if not read.tools:
        return _whole_plan("@answer", "", answer, open_reasoning, read.warnings)
    schemas = [{"name": f"tool_{index}", "json_schema": schema} for index, schema in enumerate(read.tools)]
    calls = rules.whole(several=parallel_tool_calls)
    if tool_choice.mode == "required":
        return _whole_plan(calls, rules.rules(), schemas, open_reasoning, read.warnings)
    if answer:
        text = _whole_plan("@answer", "", answer, open_reasoning)
        both = _whole_plan(f"@answer | {calls}", rules.rules(), [*answer, *schemas], open_reasoning, read.warnings)
        return replace(both, text_grammar=text.grammar)
    start = f"start: {rules.after_marker(several=parallel_tool_calls)}\n{rules.rules()}"
    return GrammarPlan(
        _joined(start, schemas),
        rules.triggers,
        parallel_tool_calls,
        goes_on=rules.go_on(several=parallel_tool_calls),
        open_reasoning=open_reasoning,
        warnings=read.warnings,
    )


def _whole_plan(
    body: str,
    rules: str,
    grammars: Sequence[Grammar],
    open_reasoning: ReasoningMarkers | None,
    warnings: tuple[str, ...] = (),
) -> GrammarPlan:
    """Return the plan of an answer that is constrained from its first token, or from the end of its reasoning."""
    # White space after reasoning belongs to the closing marker.
    space = "" if open_reasoning is None else "/[ \\n]{0,4}/ "
    grammar = _joined(f"start: {space}({body})\n{rules}", grammars)
    return GrammarPlan(grammar, open_reasoning=open_reasoning, warnings=warnings)


def _joined(start: str, grammars: Sequence[Grammar]) -> str:
    return json.dumps({"grammars": [{"lark_grammar": start}, *grammars]})
