"""The formats in which models write tool calls and reasoning, and their markers. This module parses nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ToolFormat(StrEnum):
    """A format in which a model writes tool calls.

    hermes: <tool_call>{"name": …, "arguments": {…}}</tool_call>, with markers around each call (Hermes, Qwen)
    llama: {"name": …, "parameters": {…}}, several separated by ";", optionally after <|python_tag|> (Llama 3.x)
    mistral: [TOOL_CALLS][{"name": …, "arguments": {…}}, …]
    mistral_args: [TOOL_CALLS]name[ARGS]{…}, with the marker before each call (Mistral since the middle of 2025)
    """

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    MISTRAL_ARGS = "mistral_args"


HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
LLAMA_OPEN = "<|python_tag|>"
MISTRAL_OPEN, MISTRAL_ARGS, MISTRAL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """The texts that open and close reasoning."""

    open: str
    close: str


THINK = ReasoningMarkers("<think>", "</think>")
REASONING = (THINK, ReasoningMarkers("[THINK]", "[/THINK]"))


# All texts that stand for reasoning, a call or a result in the prompts of some model.
KNOWN_MARKERS = (
    *(HERMES_OPEN, HERMES_CLOSE, LLAMA_OPEN, MISTRAL_OPEN, MISTRAL_ARGS, MISTRAL_ID),
    *("<tools>", "</tools>", "<tool_response>", "</tool_response>", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    *(text for pair in REASONING for text in (pair.open, pair.close)),
)


def declares_tools(template: str) -> bool:
    """Whether a chat template's source speaks of tools and their calls, in a format that can be parsed here.

    A loaded model's template is rendered to find out; see ChatTemplate.supports_tools. This costs no rendering.
    """
    has_format = any(marker in template for marker in (HERMES_OPEN, LLAMA_OPEN, MISTRAL_OPEN, '"parameters":'))
    return "tools" in template and "tool_calls" in template and has_format


def declares_reasoning(template: str) -> bool:
    return "reasoning_content" in template or any(pair.close in template for pair in REASONING)


_MARKERS = {
    ToolFormat.HERMES: (HERMES_OPEN, HERMES_CLOSE),
    ToolFormat.LLAMA: (LLAMA_OPEN,),
    ToolFormat.MISTRAL: (MISTRAL_OPEN, MISTRAL_ARGS, MISTRAL_ID),
    ToolFormat.MISTRAL_ARGS: (MISTRAL_OPEN, MISTRAL_ARGS, MISTRAL_ID),
}


def markers(tool_format: ToolFormat) -> tuple[str, ...]:
    """Return all markers of calls in this format. A vocabulary may have control tokens for them."""
    return _MARKERS[tool_format]


def call_opener(tool_format: ToolFormat) -> str:
    return _MARKERS[tool_format][0]


def arguments_key(tool_format: ToolFormat) -> str:
    return "parameters" if tool_format is ToolFormat.LLAMA else "arguments"
