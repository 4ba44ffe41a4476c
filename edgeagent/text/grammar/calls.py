"""Tool calls in grammars: the grammar of calls in each format, and the ban of calls if none are allowed.

Grammars are in llguidance's variant of Lark. Nothing is compiled here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
from edgeagent.types import MAX_TOOLS, Tool, ToolChoice

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> tuple[Tool, ...]:
    """Return the tools that the model may call.

    Raise InvalidRequest if the choice names an unknown tool, or if it requires a call and there are no tools. Raise
    InvalidToolSchema (a subclass) if there are too many tools, or if a tool's name is invalid or used twice.
    """
    names = [tool.name for tool in tools]
    if len(tools) > MAX_TOOLS:
        raise InvalidToolSchema(f"{len(tools)} tools; at most {MAX_TOOLS}", param="tools")
    known = set[str]()
    for name in names:
        if not _NAME.fullmatch(name):
            raise InvalidToolSchema(
                f"tool name {name[:130]!r} is invalid: use 1 to 128 letters, digits and _ . : / -", param="tools"
            )
        if name in known:
            raise InvalidToolSchema(f"two tools are called {name!r}", param="tools")
        known.add(name)
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


_LLAMA_START = b'{"name":'


class BannedText:
    """A text that an answer must not contain, and the tokens that would complete it.

    The caller keeps a state and passes it to the methods. The state is the beginning of the banned text that is at the
    end of the answer so far: empty at first, and None once the banned text is no longer possible. With `is_start` of
    the constructor, the text is banned only at the beginning of the answer, and white space is ignored.
    """

    def __init__(self, text: bytes, vocabulary: Vocabulary, *, is_start: bool = False) -> None:
        self._text = text
        self._is_start = is_start
        pieces = ((token, vocabulary.piece(token)) for token in range(vocabulary.num_tokens))
        self._completing = [(token, piece) for token, piece in pieces if text[-1] in piece]
        self._tokens: dict[bytes, NDArray[np.int64]] = {}

    def after(self, state: bytes | None, piece: bytes) -> bytes | None:
        """Return the state after this piece. `state` is the previous result of this method, empty at first.

        The piece must not complete the banned text.
        """
        joined = self._joined(state, piece)
        if joined is None or self._is_start:
            return joined if joined is not None and self._text.startswith(joined) else None
        starts = range(max(0, len(joined) - len(self._text) + 1), len(joined) + 1)
        return next(joined[start:] for start in starts if self._text.startswith(joined[start:]))

    def completes(self, state: bytes | None, piece: bytes) -> bool:
        """Whether the banned text would be complete after this piece."""
        joined = self._joined(state, piece)
        if joined is None:
            return False
        return joined.startswith(self._text) if self._is_start else self._text in joined

    def tokens(self, state: bytes | None) -> NDArray[np.int64]:
        """Return the tokens that would complete the banned text in this state."""
        if state is None:
            return np.zeros(0, dtype=np.int64)
        if state not in self._tokens:
            found = [token for token, piece in self._completing if self.completes(state, piece)]
            self._tokens[state] = np.array(found, dtype=np.int64)
        return self._tokens[state]

    def _joined(self, state: bytes | None, piece: bytes) -> bytes | None:
        return None if state is None else state + (b"".join(piece.split()) if self._is_start else piece)


def banned_texts(tool_format: ToolFormat, vocabulary: Vocabulary) -> tuple[BannedText, ...]:
    """Return the texts that would begin a call in this format. Call it once, because it reads the whole vocabulary."""
    # Ban the marker's part up to the underscore, because a partial marker would be shown to the client. Answers hardly
    # ever contain this part otherwise.
    marker = call_opener(tool_format).partition("_")[0] + "_"
    banned = [BannedText(marker.encode(), vocabulary)]
    if tool_format is ToolFormat.LLAMA:
        banned.append(BannedText(_LLAMA_START, vocabulary, is_start=True))
    return tuple(banned)


class CallBan:
    """Allows free text but not the opening of a call. It is an `engine.sampling.sampler.TokenConstraint`."""

    def __init__(self, vocabulary: Vocabulary, banned: Sequence[BannedText]) -> None:
        self._vocabulary = vocabulary
        self._banned = banned
        self._states: list[bytes | None] = [b""] * len(banned)

    def copy(self) -> CallBan:
        twin = CallBan(self._vocabulary, self._banned)
        twin._states = list(self._states)
        return twin

    def allows(self, token: int) -> bool:
        piece = self._vocabulary.piece(token)
        return not any(text.completes(state, piece) for text, state in zip(self._banned, self._states, strict=True))

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:  # noqa: ARG002
        refused = [text.tokens(state) for text, state in zip(self._banned, self._states, strict=True)]
        if not any(map(len, refused)):
            return None
        mask = np.ones(self._vocabulary.num_tokens, dtype=np.bool_)
        for tokens in refused:
            mask[tokens] = False
        return mask

    def instead_of(self, token: int) -> int | None:  # noqa: ARG002
        return None

    def accept(self, token: int) -> None:
        if not self._vocabulary.is_end(token):
            piece = self._vocabulary.piece(token)
            pairs = zip(self._banned, self._states, strict=True)
            self._states = [text.after(state, piece) for text, state in pairs]

    def forced(self) -> Sequence[int]:
        return ()
