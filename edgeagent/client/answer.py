"""The state of a response, collected from its wire events. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeagent.errors import EdgeAgentError, InvalidRequest, Overloaded, from_code
from edgeagent.types import ToolCall

Event = Mapping[str, Any]
"""One event as it came over the wire."""
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})
"""The types of the events that end a response."""


@dataclass(slots=True)
class Answer:
    """The text, reasoning and tool calls of one response so far, and its usage and timings once it has finished.

    `status` is as on the wire: in_progress, completed, incomplete, cancelled or failed. The terminal event gives
    `usage`, `timings` and `edgeagent`. The names in `timings` are llama-server's. `edgeagent` has the route, the reason
    for the route, and the milliseconds of each stage.
    """

    response_id: str | None = None
    model: str = ""
    status: str = "in_progress"
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    edgeagent: dict[str, Any] = field(default_factory=dict)
    error: EdgeAgentError | None = None

    @property
    def is_finished(self) -> bool:
        return self.status != "in_progress"

    def add(self, event: Event) -> None:
        """Add one event. Ignore events of unknown types."""
        match event.get("type"):
            case "response.created":
                self.response_id = event["response"]["id"]
                self.model = event["response"].get("model", "")
            case "response.output_text.delta":
                self.text += event["delta"]
            case "response.reasoning_text.delta":
                self.reasoning += event["delta"]
            case "response.output_item.done" if event["item"]["type"] == "function_call":
                item = event["item"]
                self.tool_calls.append(ToolCall(id=item["call_id"], name=item["name"], arguments=item["arguments"]))
            case "response.completed" | "response.incomplete" | "response.failed":
                self._finish(event["response"])
            case "error":
                self.status = "failed"
                self.error = wire_error(event.get("error") or {})

    def _finish(self, response: Mapping[str, Any]) -> None:
        self.status = response["status"]
        self.usage = response.get("usage") or {}
        self.timings = response.get("timings") or {}
        self.edgeagent = response.get("edgeagent") or {}
        if self.status == "failed":
            error = response.get("error") or {}
            self.error = wire_error({**error, "code": self.edgeagent.get("reason") or error.get("code")})


# The `error` of a failed response may have no other codes than these and server_error, since strict clients accept no
# others. The code itself is in `edgeagent.reason`.
_FAILURE_CODES = {"rate_limit_exceeded": Overloaded.code, "invalid_prompt": InvalidRequest.code}


def wire_error(error: Mapping[str, Any]) -> EdgeAgentError:
    """Return the error that an error object on the wire describes. The object has code, message and param."""
    code = str(error.get("code") or "internal_error")
    return from_code(_FAILURE_CODES.get(code, code), str(error.get("message") or code), param=error.get("param"))


FunctionOutput = str | list[dict[str, Any]]
"""What a function gives to the model: a text, or content parts."""


def function_output(call_id: str, output: FunctionOutput) -> dict[str, Any]:
    """Return the input item that answers a tool call: a text, or parts with images and sounds."""
    return {"type": "function_call_output", "call_id": call_id, "output": output}
