"""The order of a response's events as the protocol defines it: a state machine written from its description.

It imports nothing from edgeagent, so it finds a wrong golden file and the code that wrote it. Feed one `EventGrammar`
all messages that a client receives over one connection (or one HTTP stream), then call `finish`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

BEGINNING = {"response.created", "response.queued", "response.in_progress"}
STATUSES = {
    "response.created": {"in_progress", "queued"},
    "response.queued": {"queued"},
    "response.in_progress": {"in_progress"},
    "response.completed": {"completed"},
    "response.failed": {"failed"},
    "response.incomplete": {"incomplete", "cancelled"},
}
TERMINAL = set(STATUSES) - BEGINNING
# For each item kind, its one part and the events that fill it: kind of part, prefix of the delta and done events, and
# the field with the whole text.
PARTS = {
    "message": ("output_text", "response.output_text", "text"),
    "reasoning": ("reasoning_text", "response.reasoning_text", "text"),
}
# For each kind of call, the prefix of the delta and done events, and the field with the whole text.
CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
NOTES = {"response.steer.accepted", "response.steer.pending"}


class GrammarError(AssertionError):
    """An event that is not allowed at this point."""


def demand(holds: bool, why: str, event: Event) -> None:
    """Raise GrammarError if a rule does not hold."""
    if not holds:
        raise GrammarError(f"{why}: {str(event)[:500]}")


@dataclass
class Item:
    """An output item that is open."""

    added: Event
    index: int
    deltas: list[str] = field(default_factory=list)
    is_part_open: bool = False
    num_parts: int = 0
    text: str | None = None
    is_told_to_compact: bool = False

    @property
    def kind(self) -> str:
        return str(self.added["type"])


@dataclass
class Response:
    """A response from its first event to its last, and the notes that follow."""

    id: str = ""
    seen: list[str] = field(default_factory=list)
    number: int = -1
    stream_id: object = None
    is_background: bool = False
    item: Item | None = None
    items: list[Event] = field(default_factory=list)
    is_over: bool = False

    def feed(self, event: Event) -> None:
        kind = event["type"]
        self._check_number(event)
        demand(not self.is_over or kind in NOTES, "an event after the end", event)
        demand(bool(self.seen) or kind == "response.created", "the first event must be response.created", event)
        if kind in STATUSES:
            self._feed_response(event, kind)
        elif kind == "response.output_item.added":
            self._add_item(event)
        elif kind not in NOTES:
            self._feed_item(event, kind)
        self.seen.append(kind)

    def _check_number(self, event: Event) -> None:
        number = event.get("sequence_number")
        demand(type(number) is int, "an event needs a sequence_number", event)
        assert number is not None
        if self.is_background:
            # A delta's number is the length of the text so far.
            demand(number > self.number, "numbers must grow", event)
        else:
            demand(number == self.number + 1, f"number {self.number + 1} is due", event)
        self.number = number

    def _feed_response(self, event: Event, kind: str) -> None:
        response = event["response"]
        demand(response["status"] in STATUSES[kind], f"{kind} with another status", event)
        if kind == "response.created":
            demand(not self.seen, "a second response.created", event)
            self.id = response["id"]
            self.stream_id = event.get("stream_id")
            self.is_background = response["background"]
        demand(response["id"] == self.id, "another response's id", event)
        demand(event.get("stream_id") == self.stream_id, "another lane's name", event)
        if kind in BEGINNING:
            demand(kind not in self.seen, "it may come once only", event)
            demand(not self.items and self.item is None, "it must come before the items", event)
            demand(response["output"] == [] and response["usage"] is None, "nothing came of it yet", event)
            if kind == "response.queued":
                demand(self.seen == ["response.created"], "queued comes right behind created", event)
        else:
            self._end(event, kind)

    def _end(self, event: Event, kind: str) -> None:
        response = event["response"]
        demand(self.item is None, "an item is still open", event)
        is_steered = response["incomplete_details"] == {"reason": "steered"}
        is_cut = is_steered or response["status"] in ("cancelled", "failed")
        demand("response.in_progress" in self.seen or is_cut, "it never was in progress", event)
        demand(response["output"] == self.items, "its output is not the items that were done", event)
        demand((response["error"] is not None) == (kind == "response.failed"), "error belongs to failed alone", event)
        has_details = response["incomplete_details"] is not None
        demand(has_details == (response["status"] == "incomplete"), "incomplete_details belong to incomplete", event)
        if kind != "response.failed":
            usage = response["usage"]
            demand(usage is not None, "usage is missing", event)
            demand(usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], "usage adds up", event)
        if kind == "response.completed":
            demand(response["completed_at"] is not None, "completed_at is missing", event)
        self.is_over = True

    def _add_item(self, event: Event) -> None:
        item = event["item"]
        demand("response.in_progress" in self.seen, "items come after in_progress", event)
        demand(self.item is None, "an item is still open", event)
        demand(event["output_index"] == len(self.items), f"output_index {len(self.items)} is due", event)
        demand(item["id"] not in [done["id"] for done in self.items], "an id that another item has", event)
        if item["type"] != "compaction":
            demand(item["status"] == "in_progress", "an item that is added is in progress", event)
        match item["type"]:
            case "message":
                demand((item["role"], item["content"]) == ("assistant", []), "a new message is empty", event)
            case "reasoning":
                demand(item["content"] == [] and item["summary"] == [], "new reasoning is empty", event)
            case "function_call" | "custom_tool_call" as kind:
                demand(item[CALLS[kind][1]] == "" and bool(item["call_id"]) and bool(item["name"]), "a new call", event)
            case "compaction":
                pass
            case _:
                demand(False, "an unknown item", event)
        self.item = Item(item, event["output_index"])

    def _feed_item(self, event: Event, kind: str) -> None:
        item = self.item
        if item is None:
            raise GrammarError(f"no item is open: {str(event)[:500]}")
        demand(event["output_index"] == item.index, "another item's output_index", event)
        if kind == "response.output_item.done":
            self._close_item(event, item)
            return
        demand(event["item_id"] == item.added["id"], "another item's id", event)
        match item.kind:
            case "message" | "reasoning":
                self._feed_part(event, kind, item)
            case "function_call" | "custom_tool_call":
                self._feed_call(event, kind, item)
            case _:
                demand(kind == "response.compaction.compacting", "not an event of a compaction", event)
                demand(not item.is_told_to_compact, "it is told once", event)
                item.is_told_to_compact = True

    def _feed_part(self, event: Event, kind: str, item: Item) -> None:
        part_kind, prefix, whole = PARTS[item.kind]
        demand(event["content_index"] == 0, "an item has one part", event)
        if prefix == "response.output_text" and kind.startswith(prefix):
            demand(isinstance(event.get("logprobs"), list), "logprobs are a list", event)
        if kind == "response.content_part.added":
            demand(item.num_parts == 0, "a second part", event)
            demand((event["part"]["type"], event["part"]["text"]) == (part_kind, ""), "a new part is empty", event)
            item.num_parts, item.is_part_open = 1, True
        elif kind == f"{prefix}.delta":
            demand(item.is_part_open and item.text is None, "a delta outside of its part", event)
            item.deltas.append(event["delta"])
        elif kind == f"{prefix}.done":
            demand(item.is_part_open and item.text is None, "text is done once, in its part", event)
            demand(event[whole] == "".join(item.deltas), "the text is not what the deltas add up to", event)
            item.text = event[whole]
        elif kind == "response.content_part.done":
            demand(item.is_part_open and item.text is not None, "its text is not done", event)
            demand((event["part"]["type"], event["part"]["text"]) == (part_kind, item.text), "another text", event)
            item.is_part_open = False
        else:
            demand(False, f"not an event of a {item.kind}", event)

    def _feed_call(self, event: Event, kind: str, item: Item) -> None:
        prefix, whole = CALLS[item.kind]
        demand(item.text is None, f"the {whole} is done", event)
        if kind == f"{prefix}.delta":
            item.deltas.append(event["delta"])
        elif kind == f"{prefix}.done":
            demand(event[whole] == "".join(item.deltas), f"the {whole} is not what the deltas add up to", event)
            demand(event.get("name", item.added["name"]) == item.added["name"], "another tool's name", event)
            item.text = event[whole]
        else:
            demand(False, f"not an event of a {item.kind}", event)

    def _close_item(self, event: Event, item: Item) -> None:
        done = event["item"]
        for name in ("id", "type", "call_id", "name", "namespace", "role"):
            demand(done.get(name) == item.added.get(name), f"its {name} has changed", event)
        match item.kind:
            case "compaction":
                demand(item.is_told_to_compact, "compacting is missing", event)
            case "function_call" | "custom_tool_call":
                demand(done[CALLS[item.kind][1]] == item.text, "other arguments, or none are done", event)
            case _:
                demand(item.num_parts == 1 and not item.is_part_open, "its part is not done", event)
                demand([part["text"] for part in done["content"]] == [item.text], "another text", event)
        if item.kind != "compaction":
            demand(done["status"] in ("completed", "incomplete"), "an item that is done is not in progress", event)
        self.items.append(done)
        self.item = None


class EventGrammar:
    """All messages of one connection: responses, one after another on each lane, and errors between them."""

    def __init__(self) -> None:
        self._lanes: dict[object, Response] = {}

    def feed(self, event: Event) -> None:
        """Take the next event; raise GrammarError if it is not allowed here."""
        lane, kind = event.get("stream_id"), event["type"]
        response = self._lanes.get(lane)
        if kind == "error":
            is_free = response is None or response.is_over
            demand(is_free, "an error while a response of its lane is under way", event)
            demand(event["status"] >= 400 and bool(event["error"]["code"]), "an error has a status and a code", event)
        elif kind == "response.steer.failed":
            demand(bool(event["error"]["code"]), "a refused steer has a code", event)
        elif response is None or (response.is_over and kind not in NOTES):
            response = Response()
            response.feed(event)
            self._lanes[lane] = response
        else:
            response.feed(event)

    def finish(self) -> None:
        """Raise GrammarError if a response has begun but not ended."""
        for response in self._lanes.values():
            if not response.is_over:
                raise GrammarError(f"{response.id} has no terminal event after {response.seen[-3:]}")


def check_stream(events: list[Event]) -> None:
    """Raise GrammarError if the events break the order, or a response does not end."""
    grammar = EventGrammar()
    for event in events:
        grammar.feed(event)
    grammar.finish()
