import pytest

from edgeagent.text.grammar.calls import CallBan
from edgeagent.text.grammar.compiler import GrammarCompiler
from edgeagent.text.tool_format import ToolFormat, call_opener
from edgeagent.types import JsonObjectFormat, TextFormat, Tool, ToolChoice
from tests.text.fake_vocabulary import FakeVocabulary
from tests.text.grammar.test_compiler import MARKED, PLAIN, TOOLS, accepts

# Its words split markers into pieces that also hold other text.
PIECES = FakeVocabulary(
    user_defined=("<tool_call>", "use <", "tool_", "<tool", "_call>\n", "x<tool_y", "[TOOL_", "|python")
)
COMPILERS = {id(vocabulary): GrammarCompiler(vocabulary) for vocabulary in (PLAIN, MARKED, PIECES)}


def ban(tool_format: ToolFormat, vocabulary: FakeVocabulary) -> CallBan:
    made = COMPILERS[id(vocabulary)].compile(TextFormat(), TOOLS, ToolChoice("none"), True, tool_format, partition="")
    assert isinstance(made, CallBan)
    return made


def is_free(text: str, tool_format: ToolFormat = ToolFormat.HERMES, vocabulary: FakeVocabulary = MARKED) -> bool:
    return accepts(ban(tool_format, vocabulary), text, vocabulary)


@pytest.mark.parametrize("vocabulary", [PLAIN, MARKED, PIECES])
@pytest.mark.parametrize("tool_format", ToolFormat)
def test_no_call_can_be_opened(tool_format: ToolFormat, vocabulary: FakeVocabulary) -> None:
    opener = call_opener(tool_format)
    for before in ("", "x", "Let me see.\n", "use ", opener[:3], opener[:2] + opener[0], "<think>so</think>"):
        assert not is_free(before + opener, tool_format, vocabulary)
        assert not is_free(before + opener[:-1], tool_format, vocabulary)
    for text in ("", "Hello world", "a <tool> or a <toolbar>, a [TOOL] and <|pyth", '{"a": 1}', "<think>so</think>x"):
        assert is_free(text, tool_format, vocabulary)


@pytest.mark.parametrize("vocabulary", [PLAIN, MARKED, PIECES])
@pytest.mark.parametrize("call", ['{"name": "get"', '\n{ "name" : "get"', '{"name":'])
def test_a_call_without_a_marker_cannot_begin_the_answer(call: str, vocabulary: FakeVocabulary) -> None:
    assert not is_free(call, ToolFormat.LLAMA, vocabulary)
    assert is_free(f"Hello {call}", ToolFormat.LLAMA, vocabulary)
    assert is_free(call, ToolFormat.HERMES, vocabulary)
    assert is_free(call.replace("name", "names"), ToolFormat.LLAMA, vocabulary)


def test_a_token_of_its_own_is_refused_at_once() -> None:
    (marker,) = MARKED.tokenize("<tool_call>", parse_special=True)
    state = ban(ToolFormat.HERMES, MARKED)
    mask = state.mask()
    assert mask is not None
    assert mask.sum() == MARKED.num_tokens - 1
    assert not mask[marker]
    assert state.forced() == ()
    assert state.instead_of(marker) is None


def test_text_costs_no_mask_where_nothing_would_open_a_call() -> None:
    state = ban(ToolFormat.HERMES, PLAIN)
    for token in PLAIN.tokenize("Hello world <too", parse_special=True):
        assert state.mask() is None
        state.accept(token)


def test_a_copy_goes_its_own_way() -> None:
    state = ban(ToolFormat.HERMES, PLAIN)
    for token in PLAIN.tokenize("<tool", parse_special=True):
        state.accept(token)
    twin = state.copy()
    twin.accept(ord("s"))
    assert twin.allows(ord("_"))
    assert not state.allows(ord("_"))


def test_a_conversation_that_holds_calls_opens_no_more_of_them_without_tools() -> None:
    compiler = COMPILERS[id(MARKED)]
    assert compiler.compile(TextFormat(), (), ToolChoice(), True, ToolFormat.HERMES, partition="") is None
    made = compiler.compile(TextFormat(), (), ToolChoice(), True, ToolFormat.HERMES, partition="", has_called=True)
    assert isinstance(made, CallBan)


def test_a_format_needs_no_ban() -> None:
    made = COMPILERS[id(MARKED)].compile(
        JsonObjectFormat(), (Tool("get"),), ToolChoice("none"), True, ToolFormat.LLAMA, partition=""
    )
    assert made is not None
    assert accepts(made, '{"name": "x"}')
