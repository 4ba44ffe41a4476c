"""When an answer is generated again, only the part that the client does not have yet is left."""

from __future__ import annotations

import pytest

from edgeagent.text.output.stream import DeliveredPrefix
from edgeagent.types import Delta, ReasoningDelta, TextDelta, ToolCallStarted

CALL = ToolCallStarted(0, "call_1", "now")


@pytest.mark.parametrize(
    ("text", "reasoning", "deltas", "left"),
    [
        ("ab", "", [TextDelta("a"), TextDelta("bc"), TextDelta("d")], [TextDelta("c"), TextDelta("d")]),
        ("\n a", "", [TextDelta("a"), TextDelta("b")], [TextDelta("b")]),
        (" a", "", [TextDelta(" ab")], [TextDelta("b")]),
        ("a ", "", [TextDelta("a"), TextDelta(" b")], [TextDelta("b")]),
        ("a ", "", [TextDelta("a"), CALL, TextDelta(" b")], [CALL, TextDelta(" b")]),
        ("a  ", "", [TextDelta("a"), TextDelta(" b"), TextDelta(" c")], [TextDelta("b"), TextDelta(" c")]),
        ("", "\nr s\n", [ReasoningDelta("r"), ReasoningDelta(" s t")], [ReasoningDelta(" t")]),
        (
            "a",
            "r\n",
            [ReasoningDelta("r"), TextDelta("ab"), ReasoningDelta("r")],
            [TextDelta("b"), ReasoningDelta("r")],
        ),
    ],
)
def test_what_is_left(text: str, reasoning: str, deltas: list[Delta], left: list[Delta]) -> None:
    prefix = DeliveredPrefix(text, reasoning)
    assert [rest for delta in deltas if (rest := prefix.rest(delta)) is not None] == left
