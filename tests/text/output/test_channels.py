import json
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgeagent.text.output.channels import ChannelParser, Content, Part, new_call_id
from edgeagent.text.tool_format import REASONING, THINK, ReasoningMarkers, ToolFormat
from edgeagent.types import ReasoningDelta, ToolCallDelta, ToolCallStarted
from tests.examples import examples

HERMES, LLAMA, MISTRAL = ToolFormat.HERMES, ToolFormat.LLAMA, ToolFormat.MISTRAL


@dataclass
class Answer:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def parser(tool_format: ToolFormat | None = HERMES, open_reasoning: ReasoningMarkers | None = None) -> ChannelParser:
    numbers = count()
    return ChannelParser(
        tool_format=tool_format,
        tool_names={"get", "set"},
        reasoning=REASONING,
        open_reasoning=open_reasoning,
        new_call_id=lambda: f"call_{next(numbers)}",
    )


def gathered(parts: list[Part], text: str) -> Answer:
    answer = Answer()
    for part in parts:
        match part:
            case Content():
                assert text[part.start :].startswith(part.text)
                answer.content += part.text
            case ReasoningDelta():
                answer.reasoning += part.text
            case ToolCallStarted():
                assert part.index == len(answer.calls)
                assert part.id == f"call_{part.index}"
                answer.calls.append((part.name, ""))
            case ToolCallDelta():
                assert part.index == len(answer.calls) - 1
                name, arguments = answer.calls[-1]
                answer.calls[-1] = name, arguments + part.arguments
    return answer


def run(parser: ChannelParser, pieces: list[str]) -> Answer:
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.feed(piece)
    parts += parser.finish()
    return gathered(parts, "".join(pieces))


CASES: list[tuple[ToolFormat | None, str, Answer]] = [
    (HERMES, "Hello", Answer("Hello")),
    (HERMES, "\n\n Hello \n", Answer("Hello \n")),
    (HERMES, "\n ", Answer()),
    (
        HERMES,
        '<tool_call>\n{"name": "get", "arguments": {"city": "Paris", "n": [1, -2.5e3, null, true]}}\n</tool_call>',
        Answer(calls=[("get", '{"city": "Paris", "n": [1, -2.5e3, null, true]}')]),
    ),
    (
        HERMES,
        'Sure.\n<tool_call>{"name":"get","arguments":{}}</tool_call>\n'
        '<tool_call> {"name":"set","arguments":{"a":"}<"}} </tool_call>\n',
        Answer("Sure.", calls=[("get", "{}"), ("set", '{"a":"}<"}')]),
    ),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "get"}</tool_call>', Answer(calls=[("get", '{"a": 1}')])),
    (HERMES, '<tool_call>{"name": "get"}</tool_call>', Answer(calls=[("get", "{}")])),
    (HERMES, '<tool_call>{"name": "get", "arguments": null}</tool_call>', Answer(calls=[("get", "{}")])),
    (
        HERMES,
        '<tool_call>{"name": "get", "arguments": "{\\"a\\": \\"\\u00e9\\\\n\\"}"}</tool_call>',
        Answer(calls=[("get", '{"a": "é\\n"}')]),
    ),
    (HERMES, '<tool_call>{"id": 7, "name": "get", "type": "x"}</tool_call>ok', Answer("ok", "", [("get", "{}")])),
    # A call counts without its closing marker too.
    (
        HERMES,
        '<tool_call>{"name": "get"}<tool_call>{"name": "set"} done',
        Answer("done", calls=[("get", "{}"), ("set", "{}")]),
    ),
    # Cut off by the token limit.
    (HERMES, 'Hi <tool_call>{"name": "get", "arguments": {"a": [1, ', Answer("Hi", calls=[("get", '{"a": [1, ')])),
    (HERMES, '<tool_call>{"name": "get", "arguments": {}}</tool', Answer(calls=[("get", "{}")])),
    (HERMES, 'Hi <tool_call>{"name": "ge', Answer('Hi <tool_call>{"name": "ge')),
    (HERMES, "Hi <tool_ca", Answer("Hi <tool_ca")),
    # Text that is not a call stays content.
    (
        HERMES,
        'a <tool_call>{"name": "other", "arguments": {}}</tool_call> b',
        Answer('a <tool_call>{"name": "other", "arguments": {}}</tool_call> b'),
    ),
    (HERMES, "see <tool_call>get()</tool_call>.", Answer("see <tool_call>get()</tool_call>.")),
    (HERMES, '<tool_call>{"name": "get", "arguments": 3}', Answer(', "arguments": 3}', "", [("get", "")])),
    (HERMES, '<tool_call><tool_call>{"name": "get"}</tool_call>', Answer("<tool_call>", calls=[("get", "{}")])),
    (HERMES, '<tool_call>{"city": "Paris"}</tool_call>', Answer('<tool_call>{"city": "Paris"}</tool_call>')),
    (HERMES, '<tool_call>{"name": ["get"]}</tool_call>', Answer('<tool_call>{"name": ["get"]}</tool_call>')),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>', Answer('<tool_call>{"arguments": {}}</tool_call>')),
    (HERMES, '{"name": "get", "arguments": {}}', Answer('{"name": "get", "arguments": {}}')),
    # Reasoning.
    (HERMES, "<think>\nwhy <tool_call> not\n</think>\n\nYes", Answer("Yes", "why <tool_call> not")),
    (HERMES, " <think></think>Yes", Answer("Yes")),
    (HERMES, "<think>a</think><think>b</think>Yes", Answer("Yes", "ab")),
    (HERMES, "Yes <think>no</think>", Answer("Yes <think>no</think>")),
    (HERMES, "<think>so </thi", Answer("", "so </thi")),
    (HERMES, "<thin", Answer("<thin")),
    (
        HERMES,
        '<think>x</think>\n<tool_call>{"name": "get"}</tool_call>',
        Answer("", "x", [("get", "{}")]),
    ),
    (None, '[THINK]x[/THINK]<tool_call>{"name": "get"}', Answer('<tool_call>{"name": "get"}', "x")),
    # Llama 3.x.
    (LLAMA, '{"name": "get", "parameters": {"a": "{"}}', Answer(calls=[("get", '{"a": "{"}')])),
    (
        LLAMA,
        '<|python_tag|>{"type": "function", "name": "get", "parameters": {}}; {"name": "set", "parameters": {"a": 1}}',
        Answer(calls=[("get", "{}"), ("set", '{"a": 1}')]),
    ),
    (LLAMA, '{"name": "get", "parameters": {}}\n{"name": "set"}', Answer(calls=[("get", "{}"), ("set", "{}")])),
    (LLAMA, '{"name": "get"}; {"name": "no"} x', Answer('; {"name": "no"} x', calls=[("get", "{}")])),
    (LLAMA, '{"name": "get"}; {"na', Answer('; {"na', calls=[("get", "{}")])),
    (LLAMA, '{"city": "Paris"}', Answer('{"city": "Paris"}')),
    (LLAMA, '{"name": "Ada"} is 36', Answer('{"name": "Ada"} is 36')),
    (LLAMA, 'It is {"name": "get"}', Answer('It is {"name": "get"}')),
    (LLAMA, "{{{", Answer("{{{")),
    # Mistral.
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "get", "arguments": {"a": "]"}}, {"name": "set", "arguments": {}, "id": "x"}]',
        Answer(calls=[("get", '{"a": "]"}'), ("set", "{}")]),
    ),
    (
        MISTRAL,
        'ok[TOOL_CALLS]get[ARGS]{"a": 1}[TOOL_CALLS]set[ARGS]{}',
        Answer("ok", "", [("get", '{"a": 1}'), ("set", "{}")]),
    ),
    (MISTRAL, '[TOOL_CALLS]get[CALL_ID]abc123XYZ[ARGS] {"a": 1}', Answer(calls=[("get", '{"a": 1}')])),
    (MISTRAL, '[TOOL_CALLS]get{"a": 1}', Answer(calls=[("get", '{"a": 1}')])),
    (MISTRAL, '[TOOL_CALLS]{"name": "get"}', Answer(calls=[("get", "{}")])),
    (MISTRAL, "[TOOL_CALLS]other[ARGS]{}", Answer("[TOOL_CALLS]other[ARGS]{}")),
    (MISTRAL, "[TOOL_CALLS]get[WHAT]{}", Answer("[TOOL_CALLS]get[WHAT]{}")),
    (MISTRAL, '[TOOL_CALLS][{"name": "get"}; x', Answer("; x", calls=[("get", "{}")])),
    (MISTRAL, "[TOOL_CALLS]" + "x" * 300, Answer("[TOOL_CALLS]" + "x" * 300)),
    (MISTRAL, "[THINK]a[/THINK]b", Answer("b", "a")),
]  # fmt: skip


@pytest.mark.parametrize(("tool_format", "text", "expected"), CASES)
def test_each_channel_gets_its_text(tool_format: ToolFormat | None, text: str, expected: Answer) -> None:
    assert run(parser(tool_format), [text]) == expected
    assert run(parser(tool_format), list(text)) == expected


@given(st.sampled_from(CASES), st.lists(st.integers(0, 12), max_size=30))
def test_no_cut_changes_the_channels(case: tuple[ToolFormat | None, str, Answer], cuts: list[int]) -> None:
    tool_format, text, expected = case
    pieces, rest = [], text
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    assert run(parser(tool_format), [*pieces, rest]) == expected


_FRAGMENTS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            '{"name": "get"',
            '"arguments": ',
            '{"a": 1}',
            "}",
            "{",
            ",",
            "null",
            ";",
            "x",
        ),
        *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[", "]", "get", "<|python_tag|>", "<think>", "</think>", " ", "\n"),
        *('"', "\\"),
    ]
)


@settings(max_examples=examples(300))
@given(st.sampled_from([None, *ToolFormat]), st.lists(_FRAGMENTS, max_size=14), st.booleans())
@example(LLAMA, ["{", "{"], False)
def test_nothing_raises_and_no_cut_matters(tool_format: ToolFormat | None, pieces: list[str], is_open: bool) -> None:
    pair = THINK if is_open else None
    text = "".join(pieces)
    whole = run(parser(tool_format, pair), [text])
    assert run(parser(tool_format, pair), pieces) == whole
    assert run(parser(tool_format, pair), list(text)) == whole


@given(st.lists(_FRAGMENTS, max_size=14), st.sampled_from([None, *ToolFormat]))
def test_text_without_a_known_tool_is_never_lost(pieces: list[str], tool_format: ToolFormat | None) -> None:
    text = "".join(pieces)
    answer = run(ChannelParser(tool_format=tool_format, tool_names={"unknown"}), [text])
    assert "".join(answer.content.split()) == "".join(text.split())
    assert answer.calls == []


def test_without_markers_to_look_for_text_passes_as_it_is() -> None:
    text = ' \n<think>a</think><tool_call>{"name": "get"}'
    assert run(ChannelParser(tool_format=HERMES, tool_names=()), [text]) == Answer(text)
    assert ChannelParser().feed(text) == (Content(text, 0),)


def test_reasoning_that_the_prompt_opened_needs_no_marker() -> None:
    channels = parser(open_reasoning=THINK)
    assert channels.in_reasoning
    assert channels.feed("\nso be ") == (ReasoningDelta("so be"),)
    assert channels.feed("it\n</think>\n\nYes") == (ReasoningDelta(" it"), Content("Yes", 20))
    assert not channels.in_reasoning


def test_arguments_stream_as_they_arrive() -> None:
    channels = parser()
    assert channels.feed('<tool_call>{"name": "ge') == ()
    assert channels.feed('t", "argu') == (ToolCallStarted(0, "call_0", "get"),)
    assert channels.feed('ments": {"city": "Pa') == (ToolCallDelta(0, '{"city": "Pa'),)
    assert channels.feed('ris"') == (ToolCallDelta(0, 'ris"'),)
    assert channels.feed("}}\n</tool_call>") == (ToolCallDelta(0, "}"),)
    assert channels.num_calls == 1


def test_content_is_not_held_longer_than_a_marker_could_begin() -> None:
    channels = parser()
    assert channels.feed("1 < 2 <to") == (Content("1 < 2", 0),)
    assert channels.feed("y>") == (Content(" <toy>", 5),)


def test_line_breaks_in_arguments_come_out_as_valid_json() -> None:
    answer = run(parser(), ['<tool_call>{"name": "get", "arguments": {"a": "x\ny"}}</tool_call>'])
    assert json.loads(answer.calls[0][1]) == {"a": "x\ny"}


def test_call_ids_are_random() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(call_id.startswith("call_") and len(call_id) == 29 and call_id[5:].isalnum() for call_id in ids)
