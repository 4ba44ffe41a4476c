"""Puts a conversation into the form that a chat template accepts, and finds where one that is too long can be cut.

For a template without tools, the tools are written as text. The prefix cache reuses a prompt only up to the first token
that differs. So messages are dropped from the front in steps whose size does not depend on the conversation's end, and
the cut stays at the same place for many turns. This module neither renders messages nor counts tokens.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeagent.errors import InvalidToolSchema
from edgeagent.strict_json import kind_of, load_generated
from edgeagent.text.template.rendered import Mark
from edgeagent.types import Message, Tool, ToolCall, replace

Turn = dict[str, Any]

_TOOLS_INTRODUCTION = """\
# Tools

You may call functions to help with the request. They are described here as JSON, one on each line:
<tools>
{tools}
</tools>

To call a function, answer with its name and arguments as a JSON object between <tool_call> and </tool_call>, one pair \
for each call:
<tool_call>
{{"name": "<name of the function>", "arguments": {{<its arguments>}}}}
</tool_call>"""


class RawJson(dict[str, Any]):
    """A JSON object with its original text, so that `tojson` returns exactly what the model wrote."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text


@dataclass(frozen=True, slots=True)
class Style:
    """The form of messages that a template accepts.

    - takes_system: it shows system messages.
    - takes_tools: it shows tools, calls and results in a format known here. Otherwise they are written into the
      messages.
    - text_arguments: a call's arguments are JSON text, not an object.
    - content_parts: content is a list of parts.
    - short_ids: call ids have exactly nine letters and digits.
    - null_content: empty content beside tool calls is None, not "".
    """

    takes_system: bool = True
    takes_tools: bool = True
    text_arguments: bool = False
    content_parts: bool = False
    short_ids: bool = False
    null_content: bool = False


def parse_object(text: str, what: str) -> dict[str, Any]:
    """Return the JSON object in a text; raise InvalidToolSchema, which names `what`, if the text is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidToolSchema(f"{what} is not valid JSON: {error}", param="tools") from error
    if not isinstance(value, dict):
        raise InvalidToolSchema(f"{what} must be a JSON object, not {kind_of(value)}", param="tools")
    return value


def tool_definitions(tools: Sequence[Tool], mark: Mark) -> list[Turn]:
    """Return the tools in the form that templates accept, with their texts marked by `mark`.

    Raise InvalidToolSchema if the parameters of a tool are not a JSON object.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": mark(tool.name),
                "description": mark(tool.description),
                "parameters": _marked(parse_object(tool.parameters, f"parameters of tool {tool.name!r}"), mark),
            },
        }
        for tool in tools
    ]


def join_systems(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with all system messages joined into one at the beginning."""
    systems = [message.content for message in messages if message.role == "system"]
    others = [message for message in messages if message.role != "system"]
    return (*([Message("system", "\n\n".join(systems))] if systems else []), *others)


def join_same_roles(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with neighbouring user messages joined, and neighbouring assistant messages too.

    A message with calls is not joined with the next one. A joined message keeps its name only if both
    messages have that name.
    """
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        if last and message.role == last.role and message.role in ("user", "assistant") and not last.tool_calls:
            joined[-1] = replace(
                last,
                content="\n\n".join(filter(None, (last.content, message.content))),
                reasoning="\n\n".join(filter(None, (last.reasoning, message.reasoning))),
                tool_calls=message.tool_calls,
                name=last.name if last.name == message.name else None,
            )
        else:
            joined.append(message)
    return tuple(joined)


def fold_system(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with the system's text moved to the beginning of the first user message.

    If there is no user message, the text becomes one.
    """
    messages = join_systems(messages)
    if not messages or messages[0].role != "system":
        return tuple(messages)
    system, *others = messages
    for index, message in enumerate(others):
        if message.role == "user":
            others[index] = replace(message, content=f"{system.content}\n\n{message.content}")
            return tuple(others)
    return (Message("user", system.content), *others)


def separate_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with parallel calls split into messages of one call, each followed by its result.

    A message with a call that has no result is not split. Results are looked for up to the next message that reuses one
    of the call ids.
    """
    separated: list[Message] = []
    moved: set[int] = set()
    for index, message in enumerate(messages):
        results = _results_of(messages, index) if len(message.tool_calls) > 1 else None
        if results is not None:
            for number, (call, result) in enumerate(zip(message.tool_calls, results, strict=True)):
                text = message.content if number == 0 else ""
                separated += [replace(message, content=text, tool_calls=(call,)), messages[result]]
            moved.update(results)
        elif index not in moved:
            separated.append(message)
    return tuple(separated)


def _results_of(messages: Sequence[Message], index: int) -> list[int] | None:
    """Return the indices of the results of the calls of `messages[index]`, in order; None if one has no result."""
    call_ids = [call.id for call in messages[index].tool_calls]
    found: dict[str | None, int] = {}
    for later in range(index + 1, len(messages)):
        message = messages[later]
        if any(call.id in call_ids for call in message.tool_calls):
            break
        if message.role == "tool" and message.tool_call_id in call_ids:
            found.setdefault(message.tool_call_id, later)
    return [found[call_id] for call_id in call_ids] if len(found) == len(call_ids) else None


def write_tools(messages: Sequence[Message], definitions: Sequence[Turn]) -> tuple[Message, ...]:
    """Return the messages with tools, calls and results written as text, in the Hermes format."""
    written: list[Message] = []
    for message in messages:
        if message.role == "tool":
            text = f"<tool_response>\n{message.content}\n</tool_response>"
            last = written[-1] if written else None
            if last and last.role == "user" and last.content.endswith("</tool_response>"):
                written[-1] = replace(last, content=f"{last.content}\n{text}")
            else:
                written.append(Message("user", text))
        elif message.tool_calls:
            calls = "\n".join(map(_write_call, message.tool_calls))
            content = "\n".join(filter(None, (message.content, calls)))
            written.append(Message(message.role, content, message.reasoning))
        else:
            written.append(message)
    if definitions:
        lines = "\n".join(json.dumps(definition, ensure_ascii=False) for definition in definitions)
        introduction = _TOOLS_INTRODUCTION.format(tools=lines)
        systems = [message.content for message in written[:1] if message.role == "system" and message.content]
        text = "\n\n".join([*systems, introduction])
        written[:1] = [Message("system", text), *(message for message in written[:1] if message.role != "system")]
    return tuple(written)


def turns(messages: Sequence[Message], style: Style, mark: Mark) -> list[Turn]:
    """Return messages in the form that a template of this style accepts. Their texts must be marked before."""
    return [_turn(message, style, mark) for message in messages]


def show_media(messages: Sequence[Message], marks: str) -> tuple[Message, ...]:
    """Return the messages with a mark in `content` for each medium. `marks` has one character for each place."""
    shown, left = [], iter(marks)
    for message in messages:
        parts, start = [], 0
        for place in message.media:
            parts += [message.content[start : place.offset], next(left)]
            start = max(start, place.offset)
        shown.append(replace(message, content="".join((*parts, message.content[start:])), media=()))
    return tuple(shown)


def mark_messages(messages: Sequence[Message], mark: Mark, mark_foreign: Mark) -> tuple[Message, ...]:
    """Return the messages with the content of users and tools marked by `mark_foreign`, all other text by `mark`."""
    return tuple(
        Message(
            message.role,
            (mark_foreign if message.role in ("user", "tool") else mark)(message.content),
            mark(message.reasoning),
            tuple(ToolCall(mark(call.id), mark(call.name), mark(call.arguments)) for call in message.tool_calls),
            None if message.tool_call_id is None else mark(message.tool_call_id),
            None if message.name is None else mark(message.name),
        )
        for message in messages
    )


def _turn(message: Message, style: Style, mark: Mark) -> Turn:
    parts = [{"type": "text", "text": message.content}]
    turn: Turn = {"role": message.role, "content": parts if style.content_parts else message.content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.tool_calls:
        if style.null_content and not message.content:
            turn["content"] = None
        turn["tool_calls"] = [_call(call, style, mark) for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = _call_id(message.tool_call_id, style)
    if message.name is not None:
        turn["name"] = message.name
    return turn


def _call(call: ToolCall, style: Style, mark: Mark) -> Turn:
    arguments = call.arguments if style.text_arguments else _arguments(call.arguments, mark)
    return {
        "id": _call_id(call.id, style),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _arguments(text: str, mark: Mark) -> object:
    """Return a call's arguments as an object; as text if they are incomplete or not a JSON object.

    The text was already marked. But text that JSON escapes (\\u003c) had hidden is marked now, in the parsed values.
    """
    text = text or "{}"
    try:
        value = load_generated(text)
    except (ValueError, RecursionError):
        return text
    return RawJson(_marked(value, mark), text) if isinstance(value, dict) else text


def _call_id(call_id: str, style: Style) -> str:
    if style.short_ids and not (len(call_id) == 9 and call_id.isascii() and call_id.isalnum()):
        return hashlib.sha256(call_id.encode()).hexdigest()[:9]
    return call_id


def _write_call(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'


def _marked(value: Any, mark: Mark) -> Any:
    """Return a JSON value with every string in it marked."""
    match value:
        case str():
            return mark(value)
        case list():
            return [_marked(item, mark) for item in value]
        case dict():
            return {mark(key): _marked(item, mark) for key, item in value.items()}
        case _:
            return value


def text_of(message: Message) -> str:
    """Return all text of a message, to measure its length."""
    parts = [message.content, message.reasoning]
    parts += [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return "\n".join(filter(None, parts))


def num_items(messages: Sequence[Message]) -> int:
    """Return how many items of a client's input these messages stand for.

    Reasoning, text and each call of a message are items of their own. An empty message is one item.
    """
    parts = (bool(each.reasoning) + bool(each.content) + len(each.tool_calls) for each in messages)
    return sum(max(1, num) for num in parts)


def cut_before(messages: Sequence[Message], place: int) -> tuple[Message, ...]:
    """Return the conversation without the messages before `place`. System messages and the last user message stay."""
    last = _last_of_user(messages)
    kept = (index for index, message in enumerate(messages) if index >= place or index == last or _is_system(message))
    return tuple(messages[index] for index in kept)


def cut_places(messages: Sequence[Message], step: int, size: Callable[[Message], int]) -> list[int]:
    """Return the indices where the conversation can be cut, in order: one after each step, and the last possible one.

    Each step drops messages with a total size of about `step`. `size` returns a message's size, which must be the same
    at each call. A cut is before a user's message, because templates require a conversation to begin with one. The last
    user message is never dropped; after it, a cut is before a message of the assistant. A call and its result are
    dropped together. The last message is never dropped.
    """
    places: list[int] = []
    due, num_dropped, previous = step, 0, 0
    for place in _possible_places(messages):
        dropped = (message for message in messages[previous:place] if not _is_system(message))
        num_dropped += sum(map(size, dropped))
        previous = place
        if num_dropped >= due:
            places.append(place)
            due = (num_dropped // step + 1) * step
    if previous and previous not in places:
        places.append(previous)
    return places


def _possible_places(messages: Sequence[Message]) -> Iterator[int]:
    last = _last_of_user(messages)
    open_calls: set[str | None] = set()
    results = {message.tool_call_id for message in messages if message.role == "tool"}
    for place, message in enumerate(messages):
        is_begin = message.role == "user" if place <= last else message.role == "assistant" and place > last + 1
        is_first = all(map(_is_system, messages[:place])) if place <= last else False
        if is_begin and not open_calls and not is_first:
            yield place
        open_calls.update(call.id for call in message.tool_calls if call.id in results)
        open_calls.discard(message.tool_call_id)


def _last_of_user(messages: Sequence[Message]) -> int:
    return max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)


def _is_system(message: Message) -> bool:
    return message.role == "system"
