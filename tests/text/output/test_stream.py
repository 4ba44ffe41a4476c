from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from edgeagent.text.output.stream import OutputStream
from edgeagent.text.tool_format import REASONING, THINK, ToolFormat
from edgeagent.types import Delta, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta, ToolCallStarted
from tests.text.fake_vocabulary import FakeVocabulary

VOCABULARY = FakeVocabulary(("<think>", "</think>", "<|im_end|>"))


def stream(*stops: str) -> OutputStream:
    numbers = count()
    return OutputStream(
        VOCABULARY,
        stops=stops,
        tool_format=ToolFormat.HERMES,
        tool_names={"get"},
        reasoning=REASONING,
        new_call_id=lambda: f"call_{next(numbers)}",
    )


def tokens_of(text: str) -> list[int]:
    return VOCABULARY.tokenize(text, parse_special=True)


def logprobs_of(tokens: Sequence[int]) -> list[TokenLogprob]:
    return [TokenLogprob(token, VOCABULARY.piece(token), -float(index)) for index, token in enumerate(tokens)]


def placed(tokens: Sequence[int]) -> tuple[TokenLogprob, ...]:
    """Return log probabilities with the positions that plain text gives them."""
    starts = [len(VOCABULARY.text(list(tokens[:index])).rstrip("\ufffd")) for index in range(len(tokens))]
    return tuple(replace(logprob, start=start) for logprob, start in zip(logprobs_of(tokens), starts, strict=True))


def joined(deltas: Sequence[Delta]) -> list[Delta]:
    """Return the deltas with adjacent ones of a kind joined, log probabilities too."""
    result: list[Delta] = []
    for delta in deltas:
        match result[-1:], delta:
            case [TextDelta() as last], TextDelta():
                result[-1] = TextDelta(last.text + delta.text, last.logprobs + delta.logprobs)
            case [ReasoningDelta() as last], ReasoningDelta():
                result[-1] = ReasoningDelta(last.text + delta.text)
            case [ToolCallDelta() as last], ToolCallDelta():
                result[-1] = ToolCallDelta(last.index, last.arguments + delta.arguments)
            case _:
                result.append(delta)
    return result


def run(output: OutputStream, tokens: Sequence[int], cuts: Sequence[int] = (), *, logprobs: bool = True) -> list[Delta]:
    """Feed the tokens in parts until a stop string ends them."""
    given_logprobs = logprobs_of(tokens) if logprobs else []
    deltas: list[Delta] = []
    start = 0
    for end in [*cuts, len(tokens)]:
        if output.stopped is None:
            deltas += output.feed(tokens[start:end], given_logprobs[start:end])
        start = max(start, end)
    return joined([*deltas, *output.finish()])


def test_tokens_become_deltas_of_each_channel() -> None:
    call = '<tool_call>\n{"name": "get", "arguments": {"city": "Paris"}}\n</tool_call>'
    text = f"<think>\nHm\n</think>\n\nHello world\n{call}<|im_end|>"
    output = stream()
    assert run(output, tokens_of(text), logprobs=False) == [
        ReasoningDelta("Hm"),
        TextDelta("Hello world"),
        ToolCallStarted(0, "call_0", "get"),
        ToolCallDelta(0, '{"city": "Paris"}'),
    ]
    assert output.has_tool_calls
    assert output.stopped is None
    assert output.num_tokens == len(tokens_of(text))


def test_reasoning_tokens_are_counted_markers_included() -> None:
    output = stream()
    output.feed(tokens_of("<think>Hello world</think>Hello"))
    assert output.num_reasoning_tokens == 4
    opened = OutputStream(VOCABULARY, open_reasoning=THINK)
    assert opened.feed(tokens_of("Hello</think>Paris")) == (ReasoningDelta("Hello"), TextDelta("Paris"))
    assert opened.num_reasoning_tokens == 2


def test_one_step_brings_one_delta_of_a_kind() -> None:
    assert stream().feed(tokens_of("Hello world, Paris")) == (TextDelta("Hello world, Paris"),)


def test_a_stop_string_ends_the_text_before_it_and_everything_after() -> None:
    output = stream("\nUser:")
    tokens = tokens_of("Hello world\nUser: more")
    assert output.feed(tokens[:2]) == (TextDelta("Hello world"),)
    assert output.feed(tokens[2:]) == ()
    assert output.stopped == "\nUser:"
    assert output.num_tokens == 2 + len("\nUser:")
    assert output.feed(tokens_of("x")) == ()
    assert output.finish() == ()


def test_held_back_text_comes_at_the_end() -> None:
    output = stream("\n\n")
    assert run(output, tokens_of("Hello\n")) == [TextDelta("Hello\n", placed(tokens_of("Hello\n")))]


def test_stop_strings_leave_reasoning_and_calls_alone() -> None:
    output = stream("Paris")
    text = '<think>Paris</think>Hello<tool_call>{"name": "get", "arguments": {"city": "Paris"}}</tool_call>'
    assert run(output, tokens_of(text), logprobs=False) == [
        ReasoningDelta("Paris"),
        TextDelta("Hello"),
        ToolCallStarted(0, "call_0", "get"),
        ToolCallDelta(0, '{"city": "Paris"}'),
    ]
    assert output.stopped is None


def test_a_stop_string_does_not_reach_across_a_call() -> None:
    output = stream("ab")
    deltas = run(output, tokens_of('a<tool_call>{"name": "get"}</tool_call>b'), logprobs=False)
    assert [delta for delta in deltas if isinstance(delta, TextDelta)] == [TextDelta("a"), TextDelta("b")]


def test_a_rejected_call_is_content_in_which_stop_strings_count() -> None:
    output = stream('"other"')
    assert run(output, tokens_of('<tool_call>{"name": "other"}</tool_call>'), logprobs=False) == [
        TextDelta('<tool_call>{"name": ')
    ]
    assert output.stopped == '"other"'


def test_logprobs_come_with_the_text_of_their_tokens() -> None:
    output = stream("\n\n")
    tokens = tokens_of("Hello\n world")
    hello, line, world = placed(tokens)
    assert [hello.start, line.start, world.start] == [0, 5, 6]
    assert output.feed(tokens[:1], logprobs_of(tokens)[:1]) == (TextDelta("Hello", (hello,)),)
    assert output.feed(tokens[1:2], logprobs_of(tokens)[1:2]) == ()
    assert output.feed(tokens[2:], logprobs_of(tokens)[2:]) == (TextDelta("\n world", (line, world)),)


def test_logprobs_of_a_split_character_come_together() -> None:
    output = stream()
    tokens = tokens_of("é!")
    assert output.feed(tokens[:1], logprobs_of(tokens)[:1]) == ()
    assert output.feed(tokens[1:], logprobs_of(tokens)[1:]) == (TextDelta("é!", placed(tokens)),)


def test_logprobs_of_reasoning_calls_and_stops_are_left_out() -> None:
    output = stream("!")
    tokens = tokens_of('<think>x</think>Hello<tool_call>{"name": "get"}</tool_call>Paris!')
    deltas = run(output, tokens)
    shown = [part for delta in deltas if isinstance(delta, TextDelta) for part in delta.logprobs]
    assert [(part.piece, part.start) for part in shown] == [(b"Hello", 0), (b"Paris", 5)]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('Look.<tool_call>\n{"name": "ge', "Look."),
        ("<tool_call>", ""),
        ('{"name": "ge', '{"name": "ge'),
        ('<tool_call>{"name": "other"', '<tool_call>{"name": "other"'),
        ("Look", "Look"),
    ],
)
def test_a_call_that_is_cut_off_before_its_name_is_no_content(text: str, content: str) -> None:
    output = stream()
    deltas = [*output.feed(tokens_of(text)), *output.cut()]
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == content
    assert not output.has_tool_calls


def test_a_call_that_is_cut_off_behind_its_name_stays_one() -> None:
    output = stream()
    deltas = [*output.feed(tokens_of('<tool_call>{"name": "get", "arguments": {"a')), *output.cut()]
    assert joined(deltas) == [ToolCallStarted(0, "call_0", "get"), ToolCallDelta(0, '{"a')]
    output = stream()
    deltas = [*output.feed(tokens_of('<tool_call>{"name": "get", "arguments": {}}</tool')), *output.cut()]
    assert joined(deltas) == [ToolCallStarted(0, "call_0", "get"), ToolCallDelta(0, "{}")]


def test_without_channels_text_is_what_it_is() -> None:
    output = OutputStream(VOCABULARY)
    assert output.feed(tokens_of("\n<tool_call><think>Hello")) == (TextDelta("\n<tool_call>Hello"),)


_TEXTS = st.lists(
    st.sampled_from(
        [
            *("Hello", " world", "é", "😀", "\n", "<think>", "</think>", "STOP", "ST", "<|im_end|>", " "),
            *("</tool_call>", "<tool_call>", '<tool_call>{"name": "get", "arguments": {"a": "é"}}'),
        ]
    ),
    max_size=10,
).map("".join)


@given(_TEXTS, st.lists(st.integers(0, 60), max_size=10).map(sorted))
def test_no_cut_changes_the_deltas(text: str, cuts: list[int]) -> None:
    tokens = tokens_of(text)
    whole, one_by_one, cut = stream("STOP", "\n\n"), stream("STOP", "\n\n"), stream("STOP", "\n\n")
    expected = run(whole, tokens)
    assert run(one_by_one, tokens, range(len(tokens))) == expected
    assert run(cut, tokens, cuts) == expected
    assert whole.stopped == one_by_one.stopped == cut.stopped
    assert whole.num_tokens == one_by_one.num_tokens == cut.num_tokens
    assert whole.num_reasoning_tokens == one_by_one.num_reasoning_tokens == cut.num_reasoning_tokens
    for delta in expected:
        if isinstance(delta, TextDelta):
            assert "STOP" not in delta.text
            assert "\n\n" not in delta.text


@pytest.mark.parametrize("stops", [(), ("zz",)])
@given(text=st.text(st.characters(exclude_characters="<"), max_size=30))
def test_every_token_of_plain_text_has_its_logprob_once(stops: tuple[str, ...], text: str) -> None:
    output = OutputStream(VOCABULARY, stops=stops)
    tokens = tokens_of(text)
    deltas = run(output, tokens, range(len(tokens)))
    if output.stopped is None:
        shown = [part for delta in deltas if isinstance(delta, TextDelta) for part in delta.logprobs]
        assert [replace(part, start=0) for part in shown] == logprobs_of(tokens)
        assert [part.start for part in shown] == sorted(part.start for part in shown)


TEXT = '<think>Let me see…</think>Héllo <tool_call>{"name": "get", "arguments": {"x": [1, "é"]}}</tool_call> done'


@pytest.mark.parametrize("cut", range(len(tokens_of(TEXT))))
def test_a_stream_goes_on_from_any_token_that_another_was_fed(cut: int) -> None:
    tokens = tokens_of(TEXT)
    whole, before, after = stream(), stream(), stream()
    expected = [*whole.feed(tokens), *whole.finish()]
    said = before.feed(tokens[:cut])
    after.feed(tokens[:cut])
    assert joined([*said, *after.feed(tokens[cut:]), *after.finish()]) == joined(expected)
    assert (after.num_tokens, after.num_reasoning_tokens) == (whole.num_tokens, whole.num_reasoning_tokens)


@given(_TEXTS, st.integers(0, 60))
def test_a_stream_goes_on_with_the_log_probabilities_of_what_was_held_back(text: str, cut: int) -> None:
    tokens = tokens_of(text)
    scores, cut = logprobs_of(tokens), min(cut, len(tokens))
    whole, before, after = stream("STOP", "\n\n"), stream("STOP", "\n\n"), stream("STOP", "\n\n")
    expected = [*whole.feed(tokens, scores), *whole.finish()]
    said = before.feed(tokens[:cut], scores[:cut])
    held_logprobs = before.held_logprobs
    after.feed(tokens[:cut], [None] * (cut - len(held_logprobs)) + list(held_logprobs))
    rest = [*after.feed(tokens[cut:], scores[cut:]), *after.finish()]
    assert joined([*said, *rest]) == joined(expected)
