"""The output items of a response, a class for each kind: their JSON, and their events from `added` to `done`."""

from __future__ import annotations

import copy
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from edgeagent.api.responses.items import (
    CUSTOM_INPUT,
    ItemStatus,
    OutputCompaction,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    ReasoningText,
    call_body,
    call_of,
    custom_arguments,
)
from edgeagent.api.wire.generation import Scored, token_logprobs
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.items import CallItem
from edgeagent.types import TokenLogprob

# A whole escape, or characters that need none. After an escaped high surrogate, the next escape is needed too.
_HEX4 = "[0-9a-fA-F]{4}"
_WHOLE = re.compile(
    rf'\\u[dD][89abAB][0-9a-fA-F]{{2}}(?:\\u{_HEX4}|(?=[^\\]|\\[^u]))|\\u(?![dD][89abAB]){_HEX4}|\\[^u]|[^"\\]+'
)


class StringReader:
    """The string of one field of a JSON object, whose text comes in pieces. The field must be the object's first."""

    def __init__(self, field: str) -> None:
        self._opening = re.compile(rf'\s*\{{\s*"{re.escape(field)}"\s*:\s*"')
        self._unread = ""
        self._is_open = False

    def read(self, piece: str) -> str:
        """Return the characters of the string that a further piece of the object's text completes."""
        self._unread += piece
        if not self._is_open:
            opening = self._opening.match(self._unread)
            if opening is None:
                return ""
            self._is_open, self._unread = True, self._unread[opening.end() :]
        end = 0
        while whole := _WHOLE.match(self._unread, end):
            end = whole.end()
        text, self._unread = self._unread[:end], self._unread[end:]
        # A surrogate without its other half cannot be sent.
        return str(json.loads(f'"{text}"', strict=False)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Clients limit a frame to 1 MiB, and a token with twenty alternatives takes 2 KiB. If an item has more log
# probabilities than this, only its deltas have them.
MAX_LOGPROBS = 4096


Emit = Callable[[Json], None]
"""A function that adds one event to a response, and sets the event's number."""


class OpenItem(ABC):
    """An output item between its `added` and its `done` event.

    `prefix`: how its id begins. `num_opening`: how many events open it. `num_closing`: how many close it.
    """

    prefix = ""
    num_opening = 2
    num_closing = 3

    def __init__(self, emit: Emit, item_id: str, index: int) -> None:
        self._emit = emit
        self._id = item_id
        self._index = index
        self._parts: list[str] = []
        self.num_chars = 0

    def copy_for(self, emit: Emit) -> Self:
        """Return a copy that emits to `emit`. It shares its content with the original.

        To repeat the item's events so far, call `open` and `emit_tail` of the copy.
        """
        twin = copy.copy(self)
        twin._emit = emit
        return twin

    def add_silently(self, text: str) -> None:
        """Add content without emitting it."""
        self._parts.append(text)
        self.num_chars += len(text)

    def tail(self, num_chars: int) -> str:
        """Return the last `num_chars` characters of the item's content."""
        found: list[str] = []
        for part in reversed(self._parts):
            if num_chars <= 0:
                break
            found.append(part[-num_chars:])
            num_chars -= len(part)
        return "".join(reversed(found))

    def emit_tail(self, num_chars: int) -> None:
        """Emit the last `num_chars` characters of the item's content as one delta."""
        self._emit_delta(self.tail(num_chars))

    def open(self) -> None:
        """Emit the events that open the item."""
        self._emit_item("response.output_item.added", self._item("in_progress", ""))

    def close(self, status: ItemStatus) -> OutputItem:
        """Emit the events that close the item, and return the final item."""
        text = "".join(self._parts)
        self._close_content(text)
        item = self._item(status, text)
        self._emit_item("response.output_item.done", item)
        return item

    @abstractmethod
    def _item(self, status: ItemStatus, text: str) -> OutputItem:
        """Return the JSON of the item with this status and content."""

    @abstractmethod
    def _close_content(self, text: str) -> None:
        """Emit the events that end the item's content, which is `text`."""

    @abstractmethod
    def _emit_delta(self, text: str) -> None:
        """Emit this part of the item's content as a delta."""

    def _emit_item(self, kind: str, item: OutputItem) -> None:
        self._emit({"type": kind, "sequence_number": 0, "output_index": self._index, "item": item})

    def _emit_at(self, kind: str, **fields: object) -> None:
        """Emit an event within the item. `_emit` sets its `sequence_number`."""
        at = {"sequence_number": 0, "item_id": self._id, "output_index": self._index}
        self._emit({"type": kind, **at, **fields})


class OpenPart(OpenItem):
    """An item with one part of text as its content."""

    def open(self) -> None:
        super().open()
        self._emit_at("response.content_part.added", content_index=0, part=self._part("", is_whole=False))

    def _close_content(self, text: str) -> None:
        """Emit the event that ends the part. A subclass first emits the event that has the whole text."""
        self._emit_at("response.content_part.done", content_index=0, part=self._part(text, is_whole=True))

    @abstractmethod
    def _part(self, text: str, *, is_whole: bool) -> OutputText | ReasoningText:
        """Return the part with this text. `is_whole`: the text is complete, so its log probabilities are added too."""


class OpenMessage(OpenPart):
    """A message of the model: text, in one part."""

    prefix = "msg"

    def __init__(self, emit: Emit, item_id: str, index: int) -> None:
        super().__init__(emit, item_id, index)
        self._logprobs: list[Scored] = []
        self._num_logprobs = 0

    def add(self, text: str, tokens: tuple[TokenLogprob, ...]) -> None:
        """Add text, and emit it. `tokens`: the text's tokens with log probabilities; empty if none were requested."""
        logprobs = token_logprobs(tokens)
        self.add_silently(text)
        self._num_logprobs += sum(1 + len(token.top) for token in tokens)
        if self._num_logprobs <= MAX_LOGPROBS:
            self._logprobs += logprobs
        else:
            self._logprobs = []
        self._emit_text(text, logprobs)

    def set_logprobs(self, logprobs: list[Scored]) -> None:
        """Set the log probabilities of the content without emitting them."""
        self._logprobs = logprobs

    def _emit_delta(self, text: str) -> None:
        num_bytes, first = len(text.encode()), len(self._logprobs)
        while first > 0 and num_bytes > 0:
            first -= 1
            num_bytes -= len(self._logprobs[first]["bytes"])
        self._emit_text(text, self._logprobs[first:])

    def _emit_text(self, text: str, logprobs: list[Scored]) -> None:
        self._emit_at("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _close_content(self, text: str) -> None:
        self._emit_at("response.output_text.done", content_index=0, text=text, logprobs=self._logprobs)
        super()._close_content(text)

    def _part(self, text: str, *, is_whole: bool) -> OutputText:
        logprobs = list(self._logprobs) if is_whole else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _item(self, status: ItemStatus, text: str) -> OutputMessage:
        content = [] if status == "in_progress" else [self._part(text, is_whole=True)]
        return {"id": self._id, "type": "message", "role": "assistant", "status": status, "content": content}


class OpenReasoning(OpenPart):
    """Reasoning, in one part."""

    prefix = "rs"

    def add(self, text: str) -> None:
        self.add_silently(text)
        self._emit_delta(text)

    def _emit_delta(self, text: str) -> None:
        self._emit_at("response.reasoning_text.delta", content_index=0, delta=text)

    def _close_content(self, text: str) -> None:
        self._emit_at("response.reasoning_text.done", content_index=0, text=text)
        super()._close_content(text)

    def _part(self, text: str, *, is_whole: bool) -> ReasoningText:
        del is_whole
        return {"type": "reasoning_text", "text": text}

    def _item(self, status: ItemStatus, text: str) -> OutputReasoning:
        content = [] if status == "in_progress" else [self._part(text, is_whole=True)]
        return {"id": self._id, "type": "reasoning", "summary": [], "content": content, "status": status}


class OpenCall(OpenItem):
    """A call of a function."""

    prefix = "fc"
    num_opening = 1
    num_closing = 2

    def __init__(self, emit: Emit, item_id: str, index: int, call: CallItem, call_index: int = 0) -> None:
        super().__init__(emit, item_id, index)
        self.call = replace(call, id=item_id)
        self.call_index = call_index

    def add(self, arguments: str) -> None:
        self.add_silently(arguments)
        self._emit_delta(arguments)

    def _emit_delta(self, text: str) -> None:
        self._emit_at("response.function_call_arguments.delta", delta=text)

    def close(self, status: ItemStatus) -> OutputItem:
        """Emit the events that close the call, and return the final item.

        A completed call without arguments gets the arguments `{}`.
        """
        # Clients parse the arguments of a finished call as JSON, but a call without parameters may have no arguments.
        if status == "completed" and not "".join(self._parts).strip():
            self.add("{}")
        return super().close(status)

    def _close_content(self, text: str) -> None:
        self._emit_at("response.function_call_arguments.done", arguments=text, name=self.call.name)

    def _item(self, status: ItemStatus, text: str) -> OutputItem:
        return call_body(replace(self.call, arguments=text), status)


class OpenCustomCall(OpenCall):
    """A call of a custom tool. The model writes its input as a JSON object, the client gets the text in it."""

    prefix = "ctc"

    def __init__(self, emit: Emit, item_id: str, index: int, call: CallItem, call_index: int = 0) -> None:
        super().__init__(emit, item_id, index, call, call_index)
        self._reader = StringReader(CUSTOM_INPUT)

    def add(self, arguments: str) -> None:
        """Add a piece of the JSON object, and emit the text that it adds to the input."""
        text = self._reader.read(arguments)
        if text:
            super().add(text)

    def close(self, status: ItemStatus) -> OutputItem:
        return OpenItem.close(self, status)

    def _emit_delta(self, text: str) -> None:
        self._emit_at("response.custom_tool_call_input.delta", delta=text)

    def _close_content(self, text: str) -> None:
        self._emit_at("response.custom_tool_call_input.done", input=text)

    def _item(self, status: ItemStatus, text: str) -> OutputItem:
        return call_body(replace(self.call, arguments=custom_arguments(text)), status)


class OpenCompaction(OpenItem):
    """A summary of the earlier conversation. Its id is the constructor's `own_id`, or `item_id` if that is empty."""

    num_closing = 1

    def __init__(self, emit: Emit, item_id: str, index: int, own_id: str) -> None:
        super().__init__(emit, own_id or item_id, index)
        self.content = ""

    def open(self) -> None:
        """Emit the event that adds the item, and the event which says that its summary is being written."""
        super().open()
        self._emit_at("response.compaction.compacting")

    def _close_content(self, text: str) -> None:
        """Emit nothing: the content of a compaction is opaque."""

    def _emit_delta(self, text: str) -> None:
        """Emit nothing: the content of a compaction comes as a whole."""

    def _item(self, status: ItemStatus, text: str) -> OutputCompaction:
        del text
        content = "" if status == "in_progress" else self.content
        return {"id": self._id, "type": "compaction", "encrypted_content": content}


def closed_item(body: OutputItem, index: int, emit: Emit) -> OpenItem:
    """Return a finished item in its state just before `close`. Its events can then be emitted again."""
    if body["type"] == "message":
        [part] = body["content"]
        message = OpenMessage(emit, body["id"], index)
        message.add_silently(part["text"])
        message.set_logprobs(part["logprobs"])
        return message
    if body["type"] == "reasoning":
        [thought] = body["content"]
        reasoning = OpenReasoning(emit, body["id"], index)
        reasoning.add_silently(thought["text"])
        return reasoning
    if body["type"] == "compaction":
        compaction = OpenCompaction(emit, "", index, body["id"])
        compaction.content = body["encrypted_content"]
        return compaction
    if body["type"] == "custom_tool_call":
        custom = OpenCustomCall(emit, body["id"], index, call_of(body))
        custom.add_silently(body["input"])
        return custom
    call = OpenCall(emit, body["id"], index, call_of(body))
    call.add_silently(body["arguments"])
    return call
