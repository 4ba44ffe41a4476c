"""What a chat in the terminal sends with each question, and the file in which it is saved."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeagent.client import Answer
from edgeagent.client.connection import Input
from edgeagent.errors import ConfigError, InvalidRequest
from edgeagent.runtime_file import write_private
from edgeagent.strict_json import parse_json

# The names of settings, as the options of `run` have them: the field of the Responses API, the least and the most.
_SETTINGS: dict[str, tuple[str, float, float | None]] = {
    "temperature": ("temperature", 0.0, 2.0),
    "top_p": ("top_p", 0.0, 1.0),
    "max_tokens": ("max_output_tokens", 1, None),
}
_SAVED_FIELDS = ("model", "instructions", *(field for field, _, _ in _SETTINGS.values()))
# As the daemon takes them: TOOL_NAME in api/wire/fields.py.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_KIND = "edgeagent chat"
MAX_FILE_BYTES = 64 << 20


class ChatState:
    """A conversation so far, and the fields that are sent with each question: model, instructions, temperature, tools.

    `items` has the whole conversation, as input items of the Responses API. `last_id` is the response that the next
    question follows. If it is None, the items are sent with the question.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.items: list[dict[str, Any]] = []
        self.last_id: str | None = None

    def forget(self) -> None:
        """Forget the conversation, and keep the fields."""
        self.items, self.last_id = [], None

    def input_of(self, new: Sequence[dict[str, Any]]) -> Input:
        """Return the input of a request that adds the items `new` to the conversation."""
        items = [*new] if self.last_id is not None else [*self.items, *new]
        is_text = len(items) == 1 and items[0].get("role") == "user" and isinstance(items[0]["content"], str)
        return str(items[0]["content"]) if is_text else items

    def record(self, new: Sequence[dict[str, Any]], answer: Answer) -> None:
        """Add items and the answer to them to the conversation."""
        calls = [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in answer.tool_calls
        ]
        self.items += [*new, *([message("assistant", answer.text)] if answer.text else []), *calls]
        self.last_id = answer.response_id

    def set_value(self, words: Sequence[str]) -> str:
        """Change a setting, or return them all if there are no words. Raise InvalidRequest if it cannot be set so."""
        if not words:
            return "\n".join(
                f"{name:12} {self.fields.get(field, 'default')}" for name, (field, *_) in _SETTINGS.items()
            )
        name, *values = words
        if name not in _SETTINGS:
            raise InvalidRequest(f"there is no setting {name!r:.80}; there are {', '.join(_SETTINGS)}")
        field, least, most = _SETTINGS[name]
        limits = f"a number of at least {least}" if most is None else f"a number from {least} to {most}"
        if len(values) != 1:
            raise InvalidRequest(f"/set {name} takes {limits}, or `default`")
        if values[0] == "default":
            self.fields.pop(field, None)
            return f"{name} is the model's default."
        try:
            value = type(least)(values[0])
        except ValueError:
            value = least - 1
        if not least <= value or (most is not None and value > most):
            raise InvalidRequest(f"{name} is {limits}, or `default`, but not {values[0]!r:.80}")
        self.fields[field] = value
        return f"{name} is {value}."

    def set_instructions(self, text: str) -> str:
        """Change the instructions, or return them if the text is empty. `default` removes them."""
        if text == "default":
            self.fields.pop("instructions", None)
        elif text:
            self.fields["instructions"] = text
        now = self.fields.get("instructions")
        return "There are no instructions." if now is None else f"Instructions: {now}"

    def set_tools(self, path: str) -> str:
        """Read the tools that are offered to the model from a file, or remove them if the path is empty.

        The file has a JSON list of function tools. Raise InvalidRequest if it has not; then nothing changes.
        """
        if not path:
            self.fields.pop("tools", None)
            return "No tools are offered."
        tools = _read_json(path)
        tools = tools if isinstance(tools, list) else []
        names = [tool["name"] for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
        if not names or len(names) != len(tools):
            raise InvalidRequest(
                f'{path} has no list of tools such as [{{"type": "function", "name": ..., "parameters": ...}}]'
            )
        if wrong := [name for name in names if not _TOOL_NAME.fullmatch(name)]:
            raise InvalidRequest(
                f"{path}: no tool can be named {wrong[0]!r:.140}; a name has 1 to 128 letters, digits and _ . : / -"
            )
        self.fields["tools"] = tools
        return f"Offered: {', '.join(names)}. You type the result of each call."

    def save(self, path: str) -> str:
        """Write the conversation to a file that only its owner can read. Raise InvalidRequest if that fails.

        A file that is not a saved chat is not overwritten.
        """
        if not path:
            raise InvalidRequest("/save needs a file name")
        file = _file(path)
        try:
            if file.exists():
                _read_chat(path)
            kept = {name: self.fields[name] for name in _SAVED_FIELDS if name in self.fields}
            text = json.dumps({"kind": _KIND, "fields": kept, "items": self.items}, ensure_ascii=False, indent=1)
            write_private(file, text.encode())
        except ConfigError as error:
            raise InvalidRequest(error.message) from None
        except OSError as error:  # of `exists`
            raise InvalidRequest(f"cannot write {path}: {error.strerror}") from None
        return f"Saved {_counted(self.items)} to {path}. /load {path} goes on from here."

    def load(self, path: str) -> str:
        """Replace the conversation by a saved one. Raise InvalidRequest if the file is not a saved chat."""
        if not path:
            raise InvalidRequest("/load needs a file name")
        fields, items = _read_chat(path)
        for name in _SAVED_FIELDS:
            self.fields.pop(name, None)
        self.fields |= fields
        self.items, self.last_id = items, None
        return f"Loaded {_counted(items)} from {path}."


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def _counted(items: Sequence[Mapping[str, Any]]) -> str:
    number = sum(item.get("role") == "user" for item in items)
    return f"{number} question{'' if number == 1 else 's'}"


def _read_chat(path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    saved = _read_json(path)
    if not isinstance(saved, dict) or saved.get("kind") != _KIND:
        raise InvalidRequest(f"{path} is not a saved chat")
    fields, items = saved.get("fields"), saved.get("items")
    if not isinstance(fields, dict) or not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidRequest(f"{path} is a saved chat whose fields or items are missing")
    fields = {name: fields[name] for name in _SAVED_FIELDS if name in fields}
    if wrong := next((name for name, value in fields.items() if not _may_be(name, value)), None):
        raise InvalidRequest(f"{path} is a saved chat whose {wrong} cannot be used")
    return fields, items


def _may_be(name: str, value: object) -> bool:
    """Whether a field that is saved with a chat may have this value."""
    for field, least, most in _SETTINGS.values():
        if field == name:
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            return isinstance(value, int | type(least)) and least <= value and (most is None or value <= most)
    return isinstance(value, str)


def _file(path: str) -> Path:
    """Return a path that a user has typed; ~ is the user's home. Raise InvalidRequest if no file can have it."""
    if "\0" in path:
        raise InvalidRequest("a file name cannot hold a NUL character")
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no such user
        return Path(path)


def _read_json(path: str) -> Any:
    try:
        with _file(path).open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return parse_json(content)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path} is not JSON that can be sent: {error.message}") from None
