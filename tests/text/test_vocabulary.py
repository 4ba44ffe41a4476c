from edgeagent.text.vocabulary import Vocabulary, control_tokens, special_texts
from tests.text.fake_vocabulary import FakeVocabulary


def test_control_texts_are_those_of_all_control_tokens() -> None:
    vocabulary: Vocabulary = FakeVocabulary(("<|im_start|>", "<|im_end|>"))
    assert special_texts(vocabulary).control == {"<|im_start|>", "<|im_end|>", "<|end|>"}


def test_marker_texts_are_user_defined_markup_that_means_something() -> None:
    vocabulary = FakeVocabulary(("<|im_start|>",), user_defined=("<tool_call>", "<table>", "    ", "[ARGS]", "tool"))
    known = "{{ '<|im_start|>' }}    <tool_call> [ARGS] tool"
    assert special_texts(vocabulary).markers(known) == {"<tool_call>", "[ARGS]"}


def test_control_tokens_leaves_out_text_that_is_no_single_control_token() -> None:
    vocabulary = FakeVocabulary(("<think>",))
    assert control_tokens(vocabulary, ["<think>", "</think>", "Hello", ""]) == {vocabulary.token("<think>")}
