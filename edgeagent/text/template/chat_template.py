"""Renders a conversation with a model's own chat template, and finds out what that template supports.

If the template refuses a conversation, the messages are rearranged into a form that the template accepts. No text is
lost. A template is part of a model file that anyone may have made. Jinja's sandbox restricts attributes, so that a
template has access to plain values only. Its work and its memory are limited by the renderer's process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import product
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from edgeagent.errors import InvalidRequest
from edgeagent.text.template.conversation import (
    RawJson,
    Style,
    Turn,
    fold_system,
    join_same_roles,
    join_systems,
    mark_messages,
    separate_calls,
    show_media,
    tool_definitions,
    turns,
    write_tools,
)
from edgeagent.text.template.rendered import Mark, Marker, Rendered, choose_media_marks, control_pattern
from edgeagent.text.tool_format import REASONING, ReasoningMarkers, ToolFormat
from edgeagent.types import ChatPrompt, Message, Tool, ToolCall

MAX_SOURCE_CHARS = 256 << 10

_FILTERS = re.findall(
    r"\w+",
    "abs capitalize count d default dictsort e escape first float format groupby indent int items join last length "
    "list lower map max min reject rejectattr replace reverse round safe select selectattr sort string sum title trim "
    "truncate unique upper wordcount",
)


class TemplateRaisedError(Exception):
    """The template called raise_exception, with this message."""


class _Generation(Extension):
    """Accepts the tags {% generation %} … {% endgeneration %} around text to train on, and renders the text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of one template. `now` returns the time for templates that show the date."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.globals = {
            "range": range,
            "namespace": Namespace,
            "dict": dict,
            "raise_exception": _raise_exception,
            "strftime_now": lambda pattern: now().strftime(str(pattern)),
        }
        self.filters = {name: FILTERS[name] for name in _FILTERS} | {"tojson": _tojson}


def _raise_exception(message: object) -> None:
    raise TemplateRaisedError(str(message)[:1000])


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if isinstance(value, RawJson) and not (ensure_ascii or indent or separators or sort_keys):
        return value.text
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


CHATML = """\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>\\n' ~ message.content ~ '\\n</tool_response>' }}
{%- else -%}
{{ '<|im_start|>' ~ message.role ~ '\\n' ~ message.content }}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
"""The template for models that come without one. Tools are written into the messages."""

_KWARGS: dict[str, type] = {
    "enable_thinking": bool,
    "thinking": bool,
    "preserve_thinking": bool,
    "clear_thinking": bool,
    "reasoning_effort": str,
}
_WORD = re.compile(r"[a-z_]{1,16}")

_PROBE_TOOL = Tool("probe_tool", "probe tool", '{"type":"object","properties":{"probe_key":{"type":"string"}}}')
_PROBE_ARGUMENTS = '{"probe_key": "probe value"}'
_PROBE_ARGUMENTS_SHOWN = re.compile(r'\{\s*"probe_key":\s*"probe value"\s*\}')
_USER, _SYSTEM = Message("user", "probe-user"), Message("system", "probe-system")
_CALLING = Message("assistant", tool_calls=(ToolCall("call_" + "a" * 24, "probe_tool", _PROBE_ARGUMENTS),))
_RESULT = Message("tool", "probe-result", tool_call_id="call_" + "a" * 24, name="probe_tool")


class ChatTemplate:
    """One model's chat template. A source that is missing or does not compile is replaced by ChatML.

    The parameters of the constructor: `control_texts` are the texts of the vocabulary's control tokens. In client
    text they become plain text tokens. If None, this happens to all client text that looks like a control token.
    `marker_texts` are further texts that are single tokens (see vocabulary.SpecialTexts). In messages of users and
    tools they become plain text tokens. `now` returns the time for templates that show the date.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_text: str,
        eos_text: str,
        architecture: str = "",
        control_texts: Collection[str] | None = None,
        marker_texts: Collection[str] = (),
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.architecture = architecture
        self._variables = {"bos_token": bos_text, "eos_token": eos_text}
        self._environment = Sandbox(now)
        self._control = control_pattern(control_texts)
        self._foreign = control_pattern(None if control_texts is None else {*control_texts, *marker_texts})
        self.fallback_reason: str | None = None
        # A template that exceeded the limits once is not probed any more. Requests still fail one by one.
        self._is_hostile = False
        self._template = self._compile(source)
        self._source = CHATML if self.is_fallback else source or ""

    @property
    def is_fallback(self) -> bool:
        """Whether ChatML replaces the model's own template; `fallback_reason` says why."""
        return self.fallback_reason is not None

    @property
    def supports_tools(self) -> bool:
        """Whether the template itself renders tools, calls and results, in a format that can be parsed here."""
        return self._style.takes_tools

    @cached_property
    def supports_reasoning(self) -> bool:
        """Whether the template has a place for reasoning."""
        on, off = (self._try([_USER], enable_thinking=value) for value in (True, False))
        if on != off or _open_reasoning(on or "") is not None:
            return True
        answered = [_USER, Message("assistant", "probe-answer", "probe-reasoning")]
        return "probe-reasoning" in (self._try(answered) or "") or any(pair.close in self._source for pair in REASONING)

    @cached_property
    def tool_format(self) -> ToolFormat:
        """The format in which the model writes calls; Hermes if the template itself does not render tools."""
        return self._native_tool_format or ToolFormat.HERMES

    def render(self, prompt: ChatPrompt) -> Rendered:
        """Render a conversation up to the beginning of the assistant's answer.

        The prompt shows the tools even if the tool choice forbids calls. Raise InvalidRequest if the template refuses
        the conversation or exceeds its limits, or for wrong `template_kwargs`. Raise InvalidToolSchema if the
        parameters of a tool are not a JSON object.
        """
        kwargs = _template_kwargs(prompt.template_kwargs)
        marker = Marker(self._control, _strings(prompt), foreign=self._foreign)
        marks = choose_media_marks(sum(len(message.media) for message in prompt.messages), _strings(prompt))
        try:
            definitions = tool_definitions(prompt.tools, marker.mark)
            messages = mark_messages(show_media(prompt.messages, marks), marker.mark, marker.mark_foreign)
            text = self._render_somehow(messages, definitions, kwargs, marker.mark)
        except RecursionError:
            raise InvalidRequest("the messages or tools are nested too deep", param="input") from None
        pieces = marker.split(text)
        return Rendered("".join(text for text, _ in pieces), pieces, _open_reasoning(text), marks)

    def _compile(self, source: str | None) -> jinja2.Template:
        if source is None or not source.strip():
            self.fallback_reason = "the model has no chat template"
        elif len(source) > MAX_SOURCE_CHARS:
            self.fallback_reason = f"the chat template has {len(source)} characters; at most {MAX_SOURCE_CHARS}"
        else:
            try:
                return self._environment.from_string(source)
            except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, ValueError, TypeError) as error:
                self.fallback_reason = f"the chat template does not compile: {error}"
        return self._environment.from_string(CHATML)

    def _render_somehow(
        self, messages: tuple[Message, ...], definitions: list[Turn], kwargs: dict[str, Any], mark: Mark
    ) -> str:
        """Render the messages unchanged or, if the template refuses, in the nearest form that it accepts."""
        refusal: _RefusedError | None = None
        tools = definitions if self._style.takes_tools else []
        if not self._style.takes_tools:
            messages = write_tools(messages, definitions)
        for attempt in _arrangements(messages, self._style.takes_system):
            try:
                return self._run(turns(attempt, self._style, mark), tools, kwargs)
            except _RefusedError as error:
                refusal = refusal or error
        assert refusal is not None
        raise InvalidRequest(f"the model's chat template refuses this conversation: {refusal}", param="input")

    def _run(self, messages: list[Turn], tools: list[Turn], kwargs: dict[str, Any]) -> str:
        try:
            return self._template.render(
                messages=messages, tools=tools or None, add_generation_prompt=True, **self._variables, **kwargs
            )
        except jinja2.exceptions.SecurityError as error:
            raise InvalidRequest(f"the model's chat template is not safe to run: {error}", param="input") from error
        except TemplateRaisedError as error:
            raise _RefusedError(str(error)) from error
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise _RefusedError(f"{type(error).__name__}: {error}") from error
        except (RecursionError, MemoryError) as error:
            raise InvalidRequest("the model's chat template takes too much memory", param="input") from error

    @cached_property
    def _style(self) -> Style:
        """The style that the template accepts. It is found by rendering small test conversations."""
        style = Style()
        if "probe-user" not in (self._try([_USER], style=style) or self._try([_SYSTEM, _USER], style=style) or ""):
            parts = Style(content_parts=True)
            style = parts if "probe-user" in (self._try([_USER], style=parts) or "") else style
        takes_system = "probe-system" in (self._try([_SYSTEM, _USER], style=style) or "")
        tools, calls = self._tool_style(style)
        return replace(calls or style, takes_system=takes_system, takes_tools=tools and calls is not None)

    def _tool_style(self, base: Style) -> tuple[bool, Style | None]:
        """Return whether the template shows tools, and the style in which it shows a call with its result.

        The style is None if the template shows call and result in no style, or the call in an unknown format.
        """
        shows_tools = "probe_tool" in (self._try([_USER], style=base, tools=(_PROBE_TOOL,)) or "")
        for short_ids, null_content, text_arguments in product((False, True), (False, True), (True, False)):
            style = replace(base, text_arguments=text_arguments, short_ids=short_ids, null_content=null_content)
            text = self._try_call(style)
            is_whole = _PROBE_ARGUMENTS_SHOWN.search(text) and "probe-result" in text
            if is_whole and _call_format(text) is not None:
                return shows_tools, style
        return shows_tools, None

    @cached_property
    def _native_tool_format(self) -> ToolFormat | None:
        return _call_format(self._try_call(self._style)) if self._style.takes_tools else None

    def _try_call(self, style: Style) -> str:
        # The conversation ends with the call's result: some templates show calls only in past turns, others only in an
        # open turn.
        return self._try([_USER, _CALLING, _RESULT], style=style, tools=(_PROBE_TOOL,)) or ""

    def _try(
        self, messages: Sequence[Message], *, style: Style | None = None, tools: Sequence[Tool] = (), **kwargs: object
    ) -> str | None:
        style = style or self._style
        if self._is_hostile:
            return None
        try:
            return self._run(turns(messages, style, str), tool_definitions(tools, str), kwargs)
        except _RefusedError:
            return None
        except InvalidRequest:
            self._is_hostile = True
            return None


class _RefusedError(Exception):
    """The template raised an error for these messages, but may accept another arrangement of them."""


def _arrangements(messages: tuple[Message, ...], takes_system: bool) -> Iterator[tuple[Message, ...]]:
    """Yield the messages in several arrangements, each changed more than the one before.

    First they are unchanged. Then system messages are joined, then neighbours of one role. Then each call gets a
    message of its own. Last, the system's text is moved into the first user message. Without `takes_system`, that text
    is moved in all arrangements.
    """
    if takes_system:
        joined = join_systems(messages)
        merged = join_same_roles(joined)
        candidates = [messages, joined, merged, separate_calls(merged), join_same_roles(fold_system(joined))]
    else:
        merged = join_same_roles(fold_system(messages))
        candidates = [fold_system(messages), merged, separate_calls(merged)]
    yield from (arranged for index, arranged in enumerate(candidates) if arranged not in candidates[:index])


def _strings(prompt: ChatPrompt) -> Iterator[str]:
    """Yield all texts of a prompt that clients choose freely: those of messages, calls and tools."""
    for message in prompt.messages:
        yield from (message.content, message.reasoning, message.name or "", message.tool_call_id or "")
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments)
    for tool in prompt.tools:
        yield from (tool.name, tool.description, tool.parameters)


def _template_kwargs(text: str) -> dict[str, Any]:
    """Return the template variables in a request's JSON object; raise InvalidRequest if one is not in _KWARGS.

    The error is also raised for a value of another type than _KWARGS says, and if the text is not a JSON object.
    """
    param = "chat_template_kwargs"
    try:
        kwargs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not valid JSON: {error}", param=param) from error
    if not isinstance(kwargs, dict):
        raise InvalidRequest(f"{param} must be an object", param=param)
    for key, value in kwargs.items():
        if key not in _KWARGS:
            raise InvalidRequest(f"{param} may set {', '.join(_KWARGS)}; not {key[:64]!r}", param=param)
        if not isinstance(value, _KWARGS[key]) or (isinstance(value, str) and not _WORD.fullmatch(value)):
            raise InvalidRequest(f"{param}.{key} must be a {_KWARGS[key].__name__}", param=param)
    return kwargs


def _call_format(text: str) -> ToolFormat | None:
    """Return the format in which a rendered probe call is written; None if it is unknown."""
    name = r'\{\s*"name":\s*"probe_tool",\s*'
    forms = (
        (r"\[TOOL_CALLS\]\s*probe_tool", ToolFormat.MISTRAL_ARGS),
        (r"\[TOOL_CALLS\]\s*\[?\s*\{", ToolFormat.MISTRAL),
        (r"<tool_call>\s*" + name + r'"arguments"', ToolFormat.HERMES),
        (name + r'"parameters"', ToolFormat.LLAMA),
    )
    return next((tool_format for pattern, tool_format in forms if re.search(pattern, text)), None)


def _open_reasoning(text: str) -> ReasoningMarkers | None:
    end = text[-64:].rstrip()
    return next((pair for pair in REASONING if end.endswith(pair.open)), None)
