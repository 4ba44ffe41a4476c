"""The positions, in tokens, at which conversations may differ."""

from __future__ import annotations

import pytest

from edgeagent.text.template.chat_template import ChatTemplate
from edgeagent.types import ChatPrompt, Message
from edgeagent.worker.child.prompt import find_next_turn, find_open_end, find_system_end

PLAIN = """\
{%- for m in messages %}{{ '<' + m.role + '>' + m.content + '\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
THINKING = PLAIN.replace("'<assistant>'", "'<assistant>(thinks)'")
CONVERSATION = (
    Message("system", "be kind"),
    Message("user", "hello"),
    Message("assistant", "hi"),
    Message("user", "?"),
)


def boundaries(source: str, messages: tuple[Message, ...]) -> list[str]:
    """Return the texts up to each boundary, with one token per character."""
    template = ChatTemplate(source, bos_text="", eos_text="", architecture="", control_texts=(), marker_texts=())
    prompt = ChatPrompt(messages)
    text = template.render(prompt).text
    place = (template, prompt, text, [ord(char) for char in text], lambda token: chr(token).encode())
    return [text[:position] for position in (find_system_end(*place), find_next_turn(*place)) if position is not None]


def test_instructions_end_before_the_first_question_and_the_next_turn_goes_on_behind_the_prompt() -> None:
    system, end = boundaries(PLAIN, CONVERSATION)
    assert system == "<system>be kind\n<user>"
    # One token must be left to compute.
    assert end == "<system>be kind\n<user>hello\n<assistant>hi\n<user>?\n<assistant"


def test_what_the_next_turn_will_not_show_is_behind_the_boundary() -> None:
    assert boundaries(THINKING, CONVERSATION)[-1].endswith("<user>?\n<assistant>")


@pytest.mark.parametrize("messages", [(Message("user", "é?"),), (Message("user", ""),)])
def test_without_instructions_there_is_what_the_template_writes(messages: tuple[Message, ...]) -> None:
    assert boundaries(PLAIN, messages)[0] == "<user>"


def test_a_template_that_refuses_what_nobody_asked_for_tells_nothing() -> None:
    picky = "{% if messages[-1].content == '\u2042' %}{{ raise_exception('what?') }}{% endif %}" + PLAIN
    assert "<system>" not in "".join(boundaries(picky, CONVERSATION))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("turn on the lights", "turn on the"),
        ("turn on the ", "turn on"),
        ("turn\non", "turn"),
        ("turn", ""),
        ("", ""),
        ("turnonthelightinthekitchen", "turnonthel"),
        ("turn onthelightinthekitchen", "turn onthel"),
    ],
)
def test_a_growing_message_is_kept_up_to_its_last_word(text: str, kept: str) -> None:
    template = ChatTemplate(PLAIN, bos_text="", eos_text="", architecture="", control_texts=(), marker_texts=())
    prompt = ChatPrompt((*CONVERSATION[:3], Message("user", text)))
    rendered = template.render(prompt).text
    place = (rendered, [ord(char) for char in rendered], lambda token: chr(token).encode())
    end = find_open_end(template, prompt, *place)
    assert end is not None
    assert rendered[:end].rpartition("<user>")[2] == kept
    assert find_open_end(template, ChatPrompt(CONVERSATION[:3]), *place) is None
