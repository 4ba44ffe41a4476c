"""Types that the bodies of several protocols share: text in parts, JSON schemas, functions, and unions.

A field selects the member of a union, see `discriminated_by`. The OpenAPI and AsyncAPI documents use these types too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, final

from pydantic import Discriminator, Field, PlainValidator, Tag, TypeAdapter
from pydantic_core import PydanticCustomError

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

from edgeagent.api.wire.fields import (
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    NO_VARIANT_PREFIX,
    TOOL_NAME,
    Body,
    Name,
)
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest, InvalidToolSchema
from edgeagent.types import Tool


def discriminated_by(field: str, tags: Mapping[str, str], default: str = "", other: str | None = None) -> Discriminator:
    """Return the discriminator of a union: the value of `field` says which type of the union is meant.

    `tags` maps each value to the tag of its type. A tag begins with #. `default` is the value if the field is missing.
    `other`: the tag for any other string; None if there is no type for it.
    """

    def tag_of(value: Any) -> str | None:
        kind = value.get(field, default) if isinstance(value, dict) else None
        return tags.get(kind, other) if isinstance(kind, str) else None

    return Discriminator(tag_of, custom_error_type=f"{NO_VARIANT_PREFIX}{field}", custom_error_message=", ".join(tags))


# A conversation has many parts, and pydantic makes a dict in half the time of a model.
@final
class TextPart(TypedDict):
    """Text in a message or an item."""

    type: Literal["text", "input_text", "output_text", "summary_text"]
    text: str


@final
class RefusalPart(TypedDict):
    """A refusal, in an earlier message of the model."""

    type: Literal["refusal"]
    refusal: str


_PART_TAGS = {**dict.fromkeys(("text", "input_text", "output_text", "summary_text"), "#text"), "refusal": "#refusal"}
Part = Annotated[
    Annotated[TextPart, Tag("#text")] | Annotated[RefusalPart, Tag("#refusal")], discriminated_by("type", _PART_TAGS)
]
_PARTS: TypeAdapter[list[Part]] = TypeAdapter(Annotated[list[Part], Field(fail_fast=True)])


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PydanticCustomError("content", "must be a string or a list of parts")
    parts = _PARTS.validate_python(content)
    return "".join([part["text"] if "text" in part else part["refusal"] for part in parts])


def _output_text_of(content: object) -> str:
    if not isinstance(content, list):
        return _text_of(content or "")
    return "".join([_note(part) or _text_of([part]) for part in content])


def _note(part: object) -> str:
    """Return what stands for a part of a tool's result that is not text; "" for text."""
    match part:
        case {"type": str(kind)} if kind not in _PART_TAGS:
            return f"[{kind.removeprefix('input_').removesuffix('_url')[:64]} left out: only text can be read here]"
    return ""


OutputContent = Annotated[str, PlainValidator(_output_text_of, json_schema_input_type=str | list[Part | Json])]
"""The text of a tool's result. Other parts, such as images, are replaced by a note."""

Content = Annotated[str, PlainValidator(_text_of, json_schema_input_type=str | list[Part])]
"""A message's text. It is sent as a string, or as a list of texts and refusals, which are joined."""


def _schema_text(schema: object) -> str:
    if not isinstance(schema, dict):
        raise PydanticCustomError("schema", "must be a JSON schema, an object")
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        raise PydanticCustomError("schema", "is larger than {most} bytes", {"most": MAX_SCHEMA_BYTES})
    level: list[object] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return text
    raise PydanticCustomError("schema", "is nested deeper than {most} levels", {"most": MAX_SCHEMA_DEPTH})


def _children(node: object) -> Sequence[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else ()


Schema = Annotated[str, PlainValidator(_schema_text, json_schema_input_type=Json)]
"""A JSON schema as text, checked for size and depth. The worker checks later whether it can become a grammar."""


def _parameters_text(schema: object) -> str:
    kind = schema.get("type", "object") if isinstance(schema, dict) else "object"
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        message = "must describe an object: its type is {kind}, not 'object'"
        raise PydanticCustomError("schema", message, {"kind": "null" if kind is None else repr(kind)[:40]})
    return _schema_text(schema)


Parameters = Annotated[str, PlainValidator(_parameters_text, json_schema_input_type=Json)]
"""A JSON schema of a function's arguments, as text. It must describe an object."""


def _arguments_text(arguments: object) -> str:
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise PydanticCustomError("arguments", "must be a JSON object, or its text")
    return arguments


Arguments = Annotated[str, PlainValidator(_arguments_text, json_schema_input_type=str | Json)]
"""The arguments of an earlier call: a JSON object, or its text, as the clients of all APIs send one or the other."""


def read_schema(schema: object, path: str) -> str:
    """Return a JSON schema as text, for a field that no pydantic model reads; raise InvalidRequest, naming `path`."""
    try:
        return _schema_text(schema)
    except PydanticCustomError as error:
        raise InvalidRequest(f"{path} {error.message()}", param=path) from None


ToolName = Annotated[str, Field(pattern=f"^{TOOL_NAME}$")]


class PlainFunction(Body):
    """A function the model may call."""

    name: ToolName
    description: str | None = None
    parameters: Annotated[
        Parameters | None,
        Field(description="A JSON schema of the arguments, an object. At most 64 KiB and 32 levels deep."),
    ] = None


class Function(PlainFunction):
    """A function the model may call. With `strict`, a keyword that cannot be followed is refused, not ignored."""

    strict: bool | None = None


def tools_of(functions: Iterable[PlainFunction], field: str = "tools") -> tuple[Tool, ...]:
    """Return a field's functions as tools; raise InvalidToolSchema if two have the same name."""
    tools: dict[str, Tool] = {}
    for index, function in enumerate(functions):
        name, strict = function.name, isinstance(function, Function) and bool(function.strict)
        if name in tools:
            raise InvalidToolSchema(f"{field}[{index}]: a second tool named {name!r}", param=f"{field}[{index}]")
        schema = function.parameters
        if schema is None:
            schema = '{"type":"object","properties":{}}'
        tools[name] = Tool(name, function.description or "", schema, strict)
    return tuple(tools.values())


class HostedTool(Body):
    """A tool of a type that another server runs itself, such as web_search. It is left out, and a warning names it."""

    type: Name


def tools_by_type(*served: str) -> Discriminator:
    """Return the discriminator of tools: the tag of a served type is # and the type, that of any other #hosted."""
    return discriminated_by("type", {kind: f"#{kind}" for kind in served}, default="function", other="#hosted")


def left_out(tool: object, path: str) -> str:
    """Return what a warning says of a tool whose type is not served."""
    kind = tool.get("type") if isinstance(tool, dict) else ""
    return f"{path} is left out: tools of type {str(kind)[:64]} are not run here"


def hosted_tools(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield what a warning says of the tools of a request that offers functions only."""
    tools = fields.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type", "function") != "function":
            yield left_out(tool, f"tools[{index}]")
