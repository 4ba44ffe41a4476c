"""What a backend does with images and sounds that its model does not read."""

from __future__ import annotations

import pytest

from edgeagent.backends.media import SMALL_MODELS, kinds, missing_at_remote, new_kinds, not_read, readable
from edgeagent.store.names.catalog import load_catalog
from edgeagent.types import ChatPrompt, GenerateRequest, MediaPlace, Message, TextPrompt
from tests.media import BLUE, RED, SILENCE, media

IMAGE, NEW_IMAGE, SOUND = MediaPlace(5, 0), MediaPlace(0, 1), MediaPlace(3, 2)
MEDIA = (media(RED), media(BLUE), media(SILENCE, "audio"))
EARLIER = (Message("user", "What is this?", media=(IMAGE,)), Message("assistant", "Red."))


def asked(*messages: Message) -> GenerateRequest:
    return GenerateRequest("r", "m", ChatPrompt(messages, media=MEDIA))


def prompt_of(request: GenerateRequest) -> ChatPrompt:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


def test_what_is_in_the_last_message_is_new() -> None:
    assert new_kinds(asked(*EARLIER, Message("user", "And now?"))) == frozenset()
    assert new_kinds(asked(*EARLIER, Message("user", "And this?", media=(NEW_IMAGE, SOUND)))) == {"image"}
    assert new_kinds(asked(Message("user", "And", media=(SOUND,)))) == {"audio"}
    assert kinds(asked(*EARLIER, Message("user", "And now?"))) == {"image"}
    assert kinds(GenerateRequest("r", "m", TextPrompt("x"))) == frozenset()


def test_a_client_may_join_what_was_refused_and_what_comes_next() -> None:
    assert new_kinds(asked(Message("user", "What is this? Never mind.", media=(MediaPlace(13, 0),)))) == frozenset()
    assert new_kinds(asked(Message("user", " What is this?", media=(MediaPlace(1, 0),)))) == {"image"}


def test_notes_stand_for_what_is_not_read() -> None:
    request = asked(*EARLIER, Message("user", "And this?", media=(NEW_IMAGE, SOUND)))
    shown, warning = readable(request, frozenset({"audio"}))
    note = "[image left out: the model reads only text]"
    assert [message.content for message in prompt_of(shown).messages] == [
        *(f"What {note}is this?", "Red.", f"{note}And this?")
    ]
    assert prompt_of(shown).messages[-1].media == (MediaPlace(3 + len(note), 2),)
    assert prompt_of(shown).media == MEDIA
    assert warning == "images of earlier messages are left out, because the model does not read them"
    shown, warning = readable(request, frozenset())
    assert prompt_of(shown).media == (), "no bytes of an image go to a worker that reads none"
    assert warning.startswith("images and sounds of earlier messages")


RESULT = Message("tool", "Seen", tool_call_id="c", media=(NEW_IMAGE,))


def test_what_a_tool_shows_is_no_reason_to_refuse() -> None:
    """An agent that takes a screenshot goes on with a model that reads only text."""
    request = asked(Message("user", "Look."), RESULT)
    assert new_kinds(request) == frozenset() and kinds(request) == {"image"}
    assert kinds(request, of_tools=False) == frozenset()
    shown, warning = readable(request, ())
    assert prompt_of(shown).messages[-1].content == "[image left out: the model reads only text]Seen"
    assert warning == "images of tools' results are left out, because the model does not read them"
    assert missing_at_remote(request, images=False, audio=False) == ""


def test_a_request_without_media_stays_as_it_is() -> None:
    request = GenerateRequest("r", "m", ChatPrompt((Message("user", "Hi"),)))
    assert readable(request, frozenset()) == (request, "")
    seen = asked(*EARLIER)
    assert readable(seen, {"image", "audio"}) == (seen, "")


@pytest.mark.parametrize(
    ("missing", "takes", "message"),
    [
        ({"image"}, (), "m reads only text (no mmproj-*.gguf lies beside it), and the last message has images: name"),
        ({"audio"}, ("image",), "m reads text and images, and the last message has sounds: name a model"),
    ],
)
def test_the_error_says_what_to_do(missing: set[str], takes: tuple[str, ...], message: str) -> None:
    error = not_read("m", missing, takes)  # type: ignore[arg-type]
    assert error.message.startswith(message) and "edgeagent remote add ... --" in error.message


def test_the_error_says_why_a_projector_is_left_out() -> None:
    error = not_read("m", {"image"}, (), "Its projector is switched off (mmproj = none).")
    assert error.message.startswith("m reads only text (Its projector is switched off (mmproj = none)), and the last")


def test_a_remote_takes_what_its_owner_says() -> None:
    request = asked(*EARLIER, Message("user", "And", media=(SOUND,)))
    assert missing_at_remote(request, images=False, audio=True) == "images"
    assert missing_at_remote(request, images=True, audio=False) == "audio"
    assert missing_at_remote(request, images=True, audio=True) == ""


def test_the_models_that_errors_name_are_in_the_catalog() -> None:
    for kind, name in SMALL_MODELS.items():
        assert kind in load_catalog()[name].media
