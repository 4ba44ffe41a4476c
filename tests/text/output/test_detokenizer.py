from hypothesis import given
from hypothesis import strategies as st

from edgeagent.text.output.stream import Detokenizer
from tests.text.fake_vocabulary import FakeVocabulary


def test_a_character_comes_whole_when_its_last_byte_does() -> None:
    detokenizer = Detokenizer(FakeVocabulary())
    assert [detokenizer.feed([byte]) for byte in "😀é".encode()] == ["", "", "", "😀", "", "é"]
    assert detokenizer.flush() == ""


def test_a_character_that_never_ends_becomes_a_replacement_character() -> None:
    detokenizer = Detokenizer(FakeVocabulary())
    assert detokenizer.feed("é".encode()[:1]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.feed(b"ok") == "ok"


def test_bytes_that_are_no_utf8_do_not_raise() -> None:
    detokenizer = Detokenizer(FakeVocabulary())
    assert detokenizer.feed([0xFF, 0xC3, 0x28]) == "\ufffd\ufffd("


def test_control_tokens_are_hidden_unless_visible() -> None:
    vocabulary = FakeVocabulary(("<think>", "<|im_end|>"))
    tokens = vocabulary.tokenize("a<think>b<|im_end|>", parse_special=True)
    assert Detokenizer(vocabulary).feed(tokens) == "ab"
    assert Detokenizer(vocabulary, frozenset({vocabulary.token("<think>")})).feed(tokens) == "a<think>b"


def test_tokens_that_end_generation_are_hidden_though_they_are_no_control_tokens() -> None:
    vocabulary = FakeVocabulary()
    vocabulary.end_tokens = (*vocabulary.end_tokens, ord("!"))
    assert Detokenizer(vocabulary).feed(b"a!b") == "ab"


def test_a_hidden_control_token_does_not_break_a_character() -> None:
    vocabulary = FakeVocabulary(("<x>",))
    first, second = "é".encode()
    assert Detokenizer(vocabulary).feed([first, vocabulary.token("<x>"), second]) == "é"


@given(st.text(), st.lists(st.integers(0, 40)))
def test_any_cut_gives_the_same_text(text: str, cuts: list[int]) -> None:
    tokens = list(text.encode("utf-8", "replace"))
    text = bytes(tokens).decode()
    detokenizer = Detokenizer(FakeVocabulary())
    shown = ""
    for cut in cuts:
        shown += detokenizer.feed(tokens[:cut])
        tokens = tokens[cut:]
        assert text.startswith(shown)
    assert shown + detokenizer.feed(tokens) + detokenizer.flush() == text
