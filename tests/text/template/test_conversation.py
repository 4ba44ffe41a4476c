import json

from edgeagent.text.template.conversation import (
    Style,
    fold_system,
    join_same_roles,
    join_systems,
    mark_messages,
    separate_calls,
    tool_definitions,
    turns,
    write_tools,
)
from edgeagent.types import Message, Tool, ToolCall

SYSTEM, USER, ANSWER = Message("system", "s"), Message("user", "u"), Message("assistant", "a")
FIRST, SECOND = ToolCall("1", "get", '{"a": 1}'), ToolCall("2", "set", "{}")
BOTH = Message("assistant", "Two.", tool_calls=(FIRST, SECOND))
ONE, TWO = Message("tool", "one", tool_call_id="1"), Message("tool", "two", tool_call_id="2")


def test_systems_are_joined_at_the_head() -> None:
    assert join_systems((USER, SYSTEM, ANSWER, SYSTEM)) == (Message("system", "s\n\ns"), USER, ANSWER)
    assert join_systems((USER,)) == (USER,)


def test_neighbours_of_one_role_are_joined_and_nothing_else() -> None:
    assert join_same_roles((USER, USER, ANSWER, USER)) == (Message("user", "u\n\nu"), ANSWER, USER)
    assert join_same_roles((ONE, TWO)) == (ONE, TWO)
    assert join_same_roles((BOTH, ANSWER)) == (BOTH, ANSWER)
    first, second = Message("assistant", "a", "A.", name="x"), Message("assistant", "b", "B.", name="y")
    assert join_same_roles((first, second)) == (Message("assistant", "a\n\nb", "A.\n\nB."),)
    assert join_same_roles((first, first)) == (Message("assistant", "a\n\na", "A.\n\nA.", name="x"),)
    assert join_same_roles((ANSWER, BOTH)) == (Message("assistant", "a\n\nTwo.", tool_calls=(FIRST, SECOND)),)


def test_a_system_message_is_folded_into_the_first_user_message() -> None:
    assert fold_system((SYSTEM, ANSWER, USER, USER)) == (ANSWER, Message("user", "s\n\nu"), USER)
    assert fold_system((SYSTEM, ANSWER)) == (Message("user", "s"), ANSWER)
    assert fold_system((USER,)) == (USER,)


def test_parallel_calls_are_separated_each_with_its_result() -> None:
    assert separate_calls((USER, BOTH, ONE, TWO, ANSWER)) == (
        USER,
        Message("assistant", "Two.", tool_calls=(FIRST,)),
        ONE,
        Message("assistant", "", tool_calls=(SECOND,)),
        TWO,
        ANSWER,
    )
    assert separate_calls((BOTH, ONE)) == (BOTH, ONE)


def test_results_belong_to_the_calls_before_them_even_if_ids_repeat() -> None:
    again = Message("tool", "one again", tool_call_id="1"), Message("tool", "two again", tool_call_id="2")
    separated = separate_calls((BOTH, TWO, ONE, BOTH, *again))
    assert [message.content for message in separated if message.role == "tool"] == [
        "one",
        "two",
        *("one again", "two again"),
    ]
    assert separate_calls((BOTH, ONE, BOTH, *again))[:2] == (BOTH, ONE)
    twice = Message("assistant", "", tool_calls=(FIRST, FIRST))
    assert separate_calls((twice, ONE)) == (twice, ONE)


def test_tools_calls_and_results_are_written_as_text() -> None:
    definitions = tool_definitions((Tool("get", "Gets."),), str)
    system, user, calls, results = write_tools((SYSTEM, USER, BOTH, ONE, TWO), definitions)
    assert system.content.startswith("s\n\n# Tools")
    assert json.dumps(definitions[0]) in system.content
    assert user == USER
    assert calls == Message(
        "assistant",
        'Two.\n<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "set", "arguments": {}}\n</tool_call>',
    )
    assert results == Message("user", "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>")
    assert [message.role for message in write_tools((USER,), definitions)] == ["system", "user"]
    assert write_tools((), definitions)[0].role == "system"
    assert write_tools((SYSTEM, USER), ()) == (SYSTEM, USER)


def test_turns_follow_the_style() -> None:
    (turn,) = turns((BOTH,), Style(), str)
    assert turn["tool_calls"][0]["function"] == {"name": "get", "arguments": {"a": 1}}
    assert turn["content"] == "Two."
    (turn,) = turns((BOTH,), Style(text_arguments=True, content_parts=True), str)
    assert turn["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert turn["content"] == [{"type": "text", "text": "Two."}]
    silent = Message("assistant", tool_calls=(FIRST,))
    assert turns((silent,), Style(null_content=True), str)[0]["content"] is None
    assert turns((silent,), Style(), str)[0]["content"] == ""


def test_short_ids_match_between_call_and_result() -> None:
    call, result = turns((Message("assistant", tool_calls=(FIRST,)), ONE), Style(short_ids=True), str)
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert len(result["tool_call_id"]) == 9
    kept = Message("tool", "x", tool_call_id="abcDEF123")
    assert turns((kept,), Style(short_ids=True), str)[0]["tool_call_id"] == "abcDEF123"


def test_marking_reaches_every_text() -> None:
    message = Message("assistant", "a", "b", (ToolCall("c", "d", '{"e": ["f"]}'),), "g", "h")
    (marked,) = mark_messages((message,), str.upper, str.title)
    assert marked == Message("assistant", "A", "B", (ToolCall("C", "D", '{"E": ["F"]}'),), "G", "H")
    assert mark_messages((Message("tool", "ab"),), str.upper, str.title) == (Message("tool", "Ab"),)
    (turn,) = turns((message,), Style(), str.upper)
    assert turn["tool_calls"][0]["function"]["arguments"] == {"E": ["F"]}
    (definition,) = tool_definitions((Tool("a", "b", '{"c": ["d", 1]}'),), str.upper)
    assert definition["function"] == {"name": "A", "description": "B", "parameters": {"C": ["D", 1]}}


def test_half_of_an_emoji_in_an_earlier_call_is_replaced() -> None:
    """Otherwise no later turn of the conversation could be rendered."""
    call = ToolCall("call_1", "add", r'{"item": "\ud83d", "whole": "\ud83d\ude00"}')
    [turn] = turns((Message("assistant", tool_calls=(call,)),), Style(), str)
    assert turn["tool_calls"][0]["function"]["arguments"] == {"item": "\ufffd", "whole": "\N{GRINNING FACE}"}
