"""Generates the grammars of tool calls, one for each format, in llguidance's variant of Lark. It compiles nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from edgeagent.errors import InvalidRequest, InvalidToolSchema
from edgeagent.text.grammar.constraint import Trigger
from edgeagent.text.tool_format import (
    HERMES_CLOSE,
    HERMES_OPEN,
    LLAMA_OPEN,
    MISTRAL_ARGS,
    MISTRAL_OPEN,
    ToolFormat,
    arguments_key,
    call_opener,
    markers,
)
from edgeagent.text.vocabulary import Vocabulary, control_tokens
from edgeagent.types import Tool, ToolChoice

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
    """Return the tools that the model may call.

    Raise InvalidRequest if the choice names an unknown tool, or if it requires a call and there are no tools. Raise
    InvalidToolSchema (a subclass) if there are too many tools, or if a tool's name is invalid or used twice.
    """
    names = [tool.name for tool in tools]
    if len(tools) > MAX_TOOLS:
        raise InvalidToolSchema(f"{len(tools)} tools; at most {MAX_TOOLS}", param="tools")
    for index, name in enumerate(names):
        if not _NAME.fullmatch(name):
            raise InvalidToolSchema(
                f"tool name {name[:130]!r} is invalid: use 1 to 128 letters, digits and _ . : / -", param="tools"
            )
        if name in names[:index]:
            raise InvalidToolSchema(f"two tools are called {name!r}", param="tools")
    if choice.mode == "none":
        return ()
    for name in choice.names:
        if name not in names:
            raise InvalidRequest(f"tool_choice names {name[:130]!r}, which is not among the tools", param="tool_choice")
    if choice.mode == "required" and not tools:
        raise InvalidRequest("tool_choice is required, and there are no tools", param="tool_choice")
    return tuple(tool for tool in tools if not choice.names or tool.name in choice.names)


class CallRules:
    """The grammar rules of calls in one format, for these tools and this vocabulary.

    They refer to the grammars of the tools' arguments as @tool_0, @tool_1 …
    """

    def __init__(self, tool_format: ToolFormat, tools: Sequence[Tool], vocabulary: Vocabulary) -> None:
        self._format = tool_format
        self._tools = tools
        self._vocabulary = vocabulary

    def rules(self) -> str:
        """Return the rule `call`, which is one call without its markers, and the rules of its white space."""
        calls = " | ".join(self._call(index, tool.name) for index, tool in enumerate(self._tools))
        return f"call: {calls}\nws: /( |\\n {{0,8}})?/\nbreak: /[ \\n]{{0,2}}/\n"

    def _call(self, index: int, name: str) -> str:
        if self._format is ToolFormat.MISTRAL_ARGS:
            return f"{_quoted(name)} {self.marker(MISTRAL_ARGS)} @tool_{index}"
        name_key, arguments = '"\\"name\\""', _quoted(f'"{arguments_key(self._format)}"')
        pairs = f'{name_key} ws ":" ws {_quoted(_quoted(name))} ws "," ws {arguments} ws ":" ws @tool_{index}'
        return f'"{{" ws {pairs} ws "}}"'

    def after_marker(self, *, several: bool) -> str:
        """Return the grammar of what follows the opening marker, up to the end of the marked region.

        With `several`, the region may contain several calls if the format allows that.
        """
        match self._format:
            case ToolFormat.HERMES:
                # Line breaks after the marker may be in one token with the marker's end.
                return f"break call break {self.marker(HERMES_CLOSE)} break"
            case ToolFormat.LLAMA:
                return 'break call (ws ";" break call)*' if several else "break call"
            case ToolFormat.MISTRAL:
                several_calls = 'break "[" ws call (ws "," ws call)* ws "]" break'
                return several_calls if several else 'break "[" ws call ws "]" break'
            case ToolFormat.MISTRAL_ARGS:
                return "call"

    def whole(self, *, several: bool) -> str:
        """Return the grammar of an answer that is one call; with `several`, of one or more calls."""
        body = self.after_marker(several=several)
        match self._format:
            case ToolFormat.HERMES:
                one = f"{self.marker(HERMES_OPEN)} {body}"
                return f"({one})+" if several else one
            case ToolFormat.LLAMA:
                return f"{self.marker(LLAMA_OPEN)}? {body}" if self._has_token(LLAMA_OPEN) else body
            case ToolFormat.MISTRAL:
                return f"{self.marker(MISTRAL_OPEN)} {body}"
            case ToolFormat.MISTRAL_ARGS:
                one = f"{self.marker(MISTRAL_OPEN)} {body}"
                return f"({one})+" if several else one

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The texts that begin a call in an answer of free text."""
        triggers = (Trigger(call_opener(self._format).encode()),)
        return (*triggers, Trigger(b"{", is_start=True)) if self._format is ToolFormat.LLAMA else triggers

    def go_on(self, *, several: bool) -> bool:
        """Whether further calls may follow a call without an opening marker of their own."""
        return self._format is ToolFormat.LLAMA and several

    def marker(self, text: str) -> str:
        """Return the grammar's terminal for a marker: its control token if it has one, else its text."""
        assert text in markers(self._format)
        match tuple(control_tokens(self._vocabulary, [text])):
            case (token,):
                return f"<[{token}]>"
            case _:
                return _quoted(text)

    def _has_token(self, text: str) -> bool:
        return bool(control_tokens(self._vocabulary, [text]))


def _quoted(text: str) -> str:
    return json.dumps(text)
