"""The form of calls in chat completions before there were tools: `functions`, `function_call`, one call a message.

They are read as tools. A call of that form has no id, so it gets one of ours. Its result is matched by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgeagent.api.wire.fields import read_function, read_tools
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest
from edgeagent.types import Tool, ToolChoice


def read_functions(raw: Sequence[Json]) -> tuple[Tool, ...]:
    """Return `functions` as tools; raise InvalidToolSchema if one is malformed or two have one name."""
    return read_tools(raw, read_function, "functions")


def read_function_choice(raw: str | Json | None, tools: Sequence[Tool]) -> ToolChoice:
    """Return the request's `function_call` as a tool choice; raise InvalidRequest if it names no known function."""
    match raw:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case {"name": str(name)} if name in {tool.name for tool in tools}:
            return ToolChoice("required", (name,))
    raise InvalidRequest(
        f"function_call must be auto, none, or name one of the functions, not {raw!r:.80}", param="function_call"
    )


def with_ids(messages: Sequence[Json]) -> list[Json]:
    """Return the messages with calls of this form, and their results, in the form of tools."""
    open_ids: dict[str, str] = {}
    changed: list[Json] = []
    for index, message in enumerate(messages):
        match message:
            case {"role": "assistant", "function_call": {"name": str(name), "arguments": str()} as function}:
                open_ids[name] = f"call_{index}"
                call = {"id": open_ids[name], "type": "function", "function": function}
                changed.append(message if message.get("tool_calls") else {**message, "tool_calls": [call]})
            case {"role": "assistant", "function_call": call} if call is not None:
                path = f"messages[{index}].function_call"
                raise InvalidRequest(f"{path} must have a name and arguments (a string)", param=path)
            case {"role": "function"}:
                changed.append({**message, "role": "tool", "tool_call_id": _answered(message, open_ids, index)})
            case _:
                changed.append(message)
    return changed


def _answered(message: Json, open_ids: dict[str, str], index: int) -> str:
    name = message.get("name")
    if not isinstance(name, str) or name not in open_ids:
        path = f"messages[{index}].name"
        raise InvalidRequest(f"{path} {name!r:.80} is no function that an earlier message calls", param=path)
    return open_ids[name]
