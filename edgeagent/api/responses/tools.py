"""The tools of a response: functions, functions in a namespace, and custom tools, whose input is free text.

The model is offered functions only. A function of a namespace gets the name NAMESPACE.NAME, and a custom tool becomes a
function with one parameter, `input`. A call goes back to the client in the form of the tool it offered. Tools that
another server runs itself, such as `web_search`, are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from edgeagent.api.responses.items import CUSTOM_INPUT
from edgeagent.api.wire.body import Settings, validate
from edgeagent.api.wire.fields import By, Function, HostedTool, ToolName, left_out, tools_of
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.items import CallItem
from edgeagent.errors import InvalidRequest
from edgeagent.types import MAX_TOOLS, Tool, ToolCallStarted


class ResponsesTool(Function):
    """A function the model may call."""

    type: Literal["function"] = "function"


class CustomFormat(Settings):
    """What a custom tool takes. A regular expression is followed; a Lark grammar is only shown to the model."""

    type: Literal["text", "grammar"] = "text"
    syntax: Literal["lark", "regex"] | None = None
    definition: str = ""


class CustomTool(Settings):
    """A tool whose input is text."""

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: CustomFormat | None = None


_PlainTool = Annotated[ResponsesTool | CustomTool | HostedTool, By("type", "function")]


class NamespaceTool(Settings):
    """Tools that share a namespace. A call of such a tool names its `namespace`."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Annotated[list[_PlainTool], Field(fail_fast=True, max_length=MAX_TOOLS)] = []


AnyTool = Annotated[ResponsesTool | CustomTool | NamespaceTool | HostedTool, By("type", "function")]
ResponsesTools = Annotated[list[AnyTool], Field(fail_fast=True, max_length=MAX_TOOLS)]


@dataclass(frozen=True, slots=True)
class Origin:
    """The tool that a client offered. `custom`: the tool as it was sent if it is a custom tool, otherwise None."""

    name: str
    namespace: str = ""
    custom: CustomTool | None = None


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that the model is offered, and where each comes from, in the same order."""

    tools: tuple[Tool, ...] = ()
    origins: tuple[Origin, ...] = ()

    def call(self, started: ToolCallStarted) -> CallItem:
        """Return the call that the model began, without id and arguments, as a call of the tool that was offered."""
        for tool, origin in zip(self.tools, self.origins, strict=True):
            if tool.name == started.name:
                return CallItem("", started.id, origin.name, "", origin.namespace, origin.custom is not None)
        return CallItem("", started.id, started.name, "")

    def echo(self) -> list[Json]:
        """Return the tools in the form of the response object, which is that of the request."""
        spaces: dict[str, list[Json]] = {}
        echoed: list[Json] = []
        for tool, origin in zip(self.tools, self.origins, strict=True):
            if not origin.namespace:
                echoed.append(_echo(tool, origin))
                continue
            if origin.namespace not in spaces:
                spaces[origin.namespace] = []
                space = {"type": "namespace", "name": origin.namespace, "description": ""}
                echoed.append({**space, "tools": spaces[origin.namespace]})
            spaces[origin.namespace].append(_echo(tool, origin))
        return echoed


NO_TOOLS = OfferedTools()


def offered_tools(sent: Sequence[AnyTool]) -> OfferedTools:
    """Return the tools that the model is offered; raise InvalidToolSchema or InvalidRequest."""
    functions: list[Function] = []
    origins: list[Origin] = []
    for tool in sent:
        namespace = tool.name if isinstance(tool, NamespaceTool) else ""
        for each in tool.tools if isinstance(tool, NamespaceTool) else (tool,):
            if isinstance(each, ResponsesTool | CustomTool):
                origin = Origin(each.name, namespace, each if isinstance(each, CustomTool) else None)
                origins.append(origin)
                functions.append(_function(each, f"{namespace}.{each.name}" if namespace else each.name))
    if len(functions) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools must hold at most {MAX_TOOLS} functions; there are {len(functions)}", param="tools"
        )
    return OfferedTools(tools_of(functions), tuple(origins))


def _function(tool: ResponsesTool | CustomTool, name: str) -> Function:
    if isinstance(tool, ResponsesTool):
        return tool.model_copy(update={"name": name})
    text: Json = {"type": "string"}
    description = tool.description or ""
    form = tool.format
    if form is not None and form.definition:
        if form.syntax == "regex":
            text["pattern"] = f"^(?:{form.definition})$"
        else:
            description += f"\n\nThe input must follow this Lark grammar:\n{form.definition}"
    schema = {
        "type": "object",
        "properties": {CUSTOM_INPUT: text},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    return validate(Function, {"name": name, "description": description, "parameters": schema}, f"tools.{name}")


def _echo(tool: Tool, origin: Origin) -> Json:
    if origin.custom is not None:
        return origin.custom.model_dump(exclude_none=True)
    return {
        "type": "function",
        "name": origin.name,
        "description": tool.description,
        "parameters": json.loads(tool.parameters),
        "strict": tool.strict,
    }


def tool_notices(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield what a warning says of a request's tools: which are left out, and which grammars are not followed."""
    tools = fields.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        match tool:
            case {"type": "custom", "format": {"syntax": "lark"}}:
                yield f"tools[{index}].format: a Lark grammar is shown to the model, and not enforced"
            case {"type": "namespace", "tools": inner}:
                yield from (f"tools[{index}].{text}" for text in tool_notices({"tools": inner}))
            case {"type": str(kind)} if kind not in ("function", "custom"):
                yield left_out(tool, f"tools[{index}]")
