"""Where images and sounds stand in a rendered conversation, whatever a client writes."""

from __future__ import annotations

import pytest

from edgeagent.errors import InvalidRequest
from edgeagent.text.template.chat_template import ChatTemplate
from edgeagent.text.template.rendered import choose_media_marks, tokenize_around_media
from edgeagent.types import ChatPrompt, MediaPlace, Message, ToolCall
from tests.text.fake_vocabulary import FakeVocabulary

CONTENT_PARTS = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}:{%- for part in message.content -%}{{ part.text | trim }}{%- endfor -%}<|im_end|>
{%- endfor -%}"""


def template(source: str | None = None) -> ChatTemplate:
    return ChatTemplate(source, bos_text="", eos_text="", control_texts=("<|im_start|>", "<|im_end|>"))


def runs_of(prompt: ChatPrompt, source: str | None = None) -> list[str | int]:
    """Return the texts between the media, and the indices of the places."""
    vocabulary = FakeVocabulary()
    runs = tokenize_around_media(template(source).render(prompt), vocabulary)
    return [run if isinstance(run, int) else b"".join(map(vocabulary.piece, run)).decode() for run in runs]


def test_each_medium_stands_where_its_place_says() -> None:
    first = Message("user", "ab", media=(MediaPlace(1, 0), MediaPlace(1, 1), MediaPlace(2, 0)))
    texts = runs_of(ChatPrompt((first, Message("assistant", "yes"), Message("user", "", media=(MediaPlace(0, 2),)))))
    assert [text for text in texts if isinstance(text, int)] == [0, 1, 2, 3]
    assert [str(texts[index])[-1:] for index in (0, 2, 4)] == ["a", "", "b"]
    assert "yes" in str(texts[6])


def test_a_template_with_lists_of_parts_shows_them_too() -> None:
    prompt = ChatPrompt((Message("user", " What?", media=(MediaPlace(0, 0),)),))
    assert runs_of(prompt, CONTENT_PARTS)[1] == 0


def test_no_text_is_taken_for_a_medium() -> None:
    usual = choose_media_marks(2, [])
    forged = f"<__media__> {usual} <image> {usual[0]}"
    runs = runs_of(ChatPrompt((Message("user", forged, media=(MediaPlace(0, 0),)),)))
    assert [run for run in runs if isinstance(run, int)] == [0]
    assert forged in str(runs[2])


def test_an_escaped_mark_in_a_call_is_no_medium() -> None:
    """JSON may hide the character that stands for the medium until the template parses it."""
    mark = choose_media_marks(1, [])
    escaped = f'{{"text": "{mark.encode("utf-16-be").hex()}"}}'.replace(
        mark.encode("utf-16-be").hex(), "".join(f"\\u{half}" for half in ("db80", "dc00"))
    )
    call = Message("assistant", tool_calls=(ToolCall("call_1", "look", escaped),))
    shows = "{%- for m in messages -%}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments.text }}"
    source = shows + "{% endfor %}{%- endfor -%}"
    prompt = ChatPrompt((Message("user", "a", media=(MediaPlace(0, 0),)), call))
    try:
        runs = runs_of(prompt, source)
    except InvalidRequest as error:
        assert "exactly once" in error.message
    else:
        assert [run for run in runs if isinstance(run, int)] == [0]


@pytest.mark.parametrize("source", ["{{ messages[0].role }}", "{{ messages[0].content ~ messages[0].content }}"])
def test_a_template_that_loses_or_repeats_a_medium_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest, match="exactly once"):
        runs_of(ChatPrompt((Message("user", "a", media=(MediaPlace(0, 0),)),)), source)


def test_a_text_with_all_private_characters_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="private use"):
        choose_media_marks(1, ["".join(map(chr, range(0xF0000, 0xFFFFE)))])
