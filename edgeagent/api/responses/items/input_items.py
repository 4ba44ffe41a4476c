"""The items of a request's `input`, read from JSON as clients and the store write them."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from edgeagent.api.wire.fields import ROLES
from edgeagent.conversation.items import (
    COMPACTION_PREFIX,
    CallItem,
    CallOutputItem,
    CompactionItem,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
)
from edgeagent.errors import InvalidRequest, NotSupported

# The result of a call is an item of its own.
_ROLES = {name: role for name, role in ROLES.items() if role != "tool"}
_TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
_MEDIA = ("input_image", "input_file", "input_audio", "input_video", "computer_screenshot")


def read_items(value: object, path: str = "input") -> tuple[Item, ...]:
    """Return the items of a request's `input` (absent, a string or a list); raise InvalidRequest or NotSupported."""
    match value:
        case None:
            return ()
        case str():
            return (MessageItem("", "user", value),)
        case list():
            items = (_read_item(item, f"{path}[{index}]") for index, item in enumerate(value))
            return tuple(item for item in items if item is not None)
    raise InvalidRequest(f"{path} must be a string or a list of items; got {_name_type(value)}", param=path)


def _read_item(value: object, path: str) -> Item | None:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} must be an object; got {_name_type(value)}", param=path)
    raw_id = value.get("id")
    item_id = raw_id if isinstance(raw_id, str) else ""
    match value.get("type", "message"):
        case "message":
            return _read_message(value, item_id, path)
        case "function_call":
            call_id, name = _text(value, "call_id", path), _text(value, "name", path)
            return CallItem(item_id, call_id, name, _text(value, "arguments", path))
        case "function_call_output":
            output = _read_content(value.get("output"), f"{path}.output")
            return CallOutputItem(item_id, _text(value, "call_id", path), output)
        case "reasoning":
            return ReasoningItem(item_id, _read_reasoning(value, path))
        case "item_reference":
            return ReferenceItem(_text(value, "id", path))
        case "compaction" | "context_compaction":
            return _read_compaction(value.get("encrypted_content"), item_id)
        case str() as unknown:
            raise NotSupported(
                f"{path}: items of type '{unknown[:64]}' are not supported; send message, function_call, "
                "function_call_output, reasoning or item_reference",
                param=path,
            )
        case other:
            raise InvalidRequest(f"{path}.type must be a string; got {_name_type(other)}", param=f"{path}.type")


def _read_message(value: Mapping[str, object], item_id: str, path: str) -> MessageItem:
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRequest(
            f"{path}.role must be user, assistant, system or developer; got {_show(role)}", param=f"{path}.role"
        )
    phase = value.get("phase")
    text = _read_content(value.get("content"), f"{path}.content")
    return MessageItem(item_id, _ROLES[role], text, phase if isinstance(phase, str) else None)


def _read_content(value: object, path: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} must be a string or a list of parts; got {_name_type(value)}", param=path)
    return "".join(_read_part(part, f"{path}[{index}]") for index, part in enumerate(value))


def _read_part(part: object, path: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{path} must be an object; got {_name_type(part)}", param=path)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT_PARTS:
        return _text(part, _TEXT_PARTS[kind], path)
    if isinstance(kind, str) and kind in _MEDIA:
        raise NotSupported(f"{path}: {kind} parts are not supported; this daemon's models read text only", param=path)
    raise InvalidRequest(f"{path}.type must be a text part's (input_text, output_text); got {_show(kind)}", param=path)


def _read_reasoning(value: Mapping[str, object], path: str) -> str:
    for key, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = value.get(key)
        if isinstance(parts, list) and parts:
            texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == kind]
            if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
                raise InvalidRequest(f"{path}.{key} must be a list of {kind} parts", param=f"{path}.{key}")
            return "".join(str(text) for text in texts)
    return ""


def _read_compaction(content: object, item_id: str) -> CompactionItem | None:
    if not isinstance(content, str) or not content.startswith(COMPACTION_PREFIX):
        # Encrypted by the service that made it. It is accepted, but this model cannot read it.
        return None
    try:
        packed = content.removeprefix(COMPACTION_PREFIX)
        summary = base64.b64decode(packed, altchars=b"-_", validate=True).decode()
    except ValueError as error:
        raise InvalidRequest(
            f"a compaction item's encrypted_content is not what this daemon made ({error}); send it unchanged",
            param="input",
        ) from None
    return CompactionItem(item_id, content, summary)


def _text(value: Mapping[str, object], key: str, path: str) -> str:
    text = value.get(key)
    if not isinstance(text, str):
        raise InvalidRequest(f"{path}.{key} must be a string; got {_name_type(text)}", param=f"{path}.{key}")
    return text


def _name_type(value: object) -> str:
    names = {type(None): "nothing", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")


def _show(value: object) -> str:
    return f"'{value[:64]}'" if isinstance(value, str) else _name_type(value)
