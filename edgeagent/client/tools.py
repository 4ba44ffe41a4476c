"""Python functions as tools: their schema from their type hints, and their calls."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from edgeagent.client.answer import FunctionOutput
from edgeagent.client.files import content_part, is_media

_log = logging.getLogger(__name__)


class Tool:
    """A function that the model may call.

    Each parameter needs a type hint: a type that JSON has, a Literal, an Enum, a dataclass, a TypedDict, or a list,
    dict or union of them. `Annotated[int, "How many minutes"]` describes one. The docstring is the tool's description.
    Raise TypeError if a schema cannot be made of the function.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self._function = function
        self._arguments = _arguments_of(function)
        (_,), schemas = msgspec.json.schema_components([self._arguments], ref_template="#/$defs/{name}")
        parameters = schemas.pop(self.name)
        self.definition: dict[str, Any] = {
            "type": "function",
            "name": self.name,
            "description": inspect.getdoc(function) or "",
            "parameters": {**parameters, "$defs": schemas} if schemas else parameters,
        }

    async def run(self, arguments: str) -> FunctionOutput:
        """Call the function with the arguments of a call, and return the output for the model.

        If the function returns the bytes of an image or a sound, the model sees it. A plain function runs in a thread.
        If the arguments are wrong or the function raises, the output says so.
        """
        try:
            given = msgspec.json.decode(arguments or "{}", type=self._arguments)
            values = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not UNSET}
            if inspect.iscoroutinefunction(self._function):
                result = await self._function(**values)
            else:
                result = await asyncio.to_thread(self._function, **values)
            if isinstance(result, bytes) and is_media(result):
                return [content_part(result)]
            output = result if isinstance(result, str) else msgspec.json.encode(result).decode()
        except Exception as error:
            _log.warning("the tool %s failed", self.name, exc_info=True)
            output = f"error: {type(error).__name__}: {error}"
        # Half of a surrogate pair, for example in the name of a file, could not be sent.
        return output.encode(errors="replace").decode()


def _arguments_of(function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Return a struct with a field for each parameter. A parameter with a default may be left out."""
    hints = get_type_hints(function, include_extras=True)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function.__name__}: a tool cannot have the parameter {parameter}")
        if name not in hints:
            raise TypeError(f"{function.__name__}: the parameter {name} needs a type hint")
        hint = _described(hints[name])
        fields.append((name, hint) if parameter.default is parameter.empty else (name, hint | UnsetType, UNSET))
    return msgspec.defstruct(function.__name__, fields, kw_only=True, forbid_unknown_fields=True)


def _described(hint: Any) -> Any:
    """Return a type hint whose texts in Annotated are descriptions in the schema."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    return Annotated[(kind, *(Meta(description=note) if isinstance(note, str) else note for note in notes))]


ToolLike = Mapping[str, Any] | Callable[..., Any] | Tool
"""A tool as it is on the wire, or a function."""


def made_tools(tools: Iterable[ToolLike]) -> list[Mapping[str, Any] | Tool]:
    """Return the tools, with a Tool for each function. Raise TypeError if a schema cannot be made of one."""
    return [tool if isinstance(tool, Mapping | Tool) else Tool(tool) for tool in tools]


def split_tools(tools: Iterable[ToolLike]) -> tuple[list[Mapping[str, Any]], dict[str, Tool]]:
    """Return the definitions of all tools, and by name the functions among them. Raise TypeError as `made_tools`."""
    made = made_tools(tools)
    functions = {tool.name: tool for tool in made if isinstance(tool, Tool)}
    return [tool.definition if isinstance(tool, Tool) else tool for tool in made], functions
