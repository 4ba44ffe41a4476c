"""What cannot be read, on every wire: it is refused if it is new, and a note if it was said before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from edgeagent.api.anthropic.body import MessagesBody
from edgeagent.api.ollama.body import OllamaChatBody
from edgeagent.api.openai.chat_body import ChatBody
from edgeagent.api.responses.body import CreateResponseBody
from edgeagent.api.wire.body import Body, validate, warning_about
from edgeagent.errors import NotSupported

NOTE = "[document left out: only text can be read here]"


class Wire(NamedTuple):
    """A wire: its body, the field of the conversation, and its parts for a text and for a document."""

    body: type[Body]
    field: str
    text: Callable[[str], dict[str, Any]]
    document: dict[str, Any]

    def fields(self, *messages: dict[str, Any]) -> dict[str, Any]:
        return {"model": "m", "max_tokens": 9, "max_output_tokens": 16, self.field: list(messages)}


def _plain(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


WIRES = {
    "chat": Wire(ChatBody, "messages", _plain, {"type": "document"}),
    "responses": Wire(
        CreateResponseBody,
        "input",
        lambda text: {"type": "input_text", "text": text},
        {"type": "document"},
    ),
    "anthropic": Wire(
        MessagesBody,
        "messages",
        _plain,
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}},
    ),
}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [*parts]}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def said(wire: Wire, *messages: dict[str, Any]) -> list[str]:
    """Return the text of each message as the model gets it."""
    checked = getattr(validate(wire.body, wire.fields(*messages)), wire.field)
    texts = [getattr(message.content, "text", message.content) for message in checked]
    return [text if isinstance(text, str) else "".join(block["text"] for block in text) for text in texts]


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> Wire:
    return WIRES[request.param]


def test_a_new_document_is_refused_by_its_place(wire: Wire) -> None:
    before = (user(wire.text("Hello")), answer("Hello"))
    for parts, place in (
        ((wire.text("What is this?"), wire.document), 1),
        ((wire.document, wire.text("What is this?")), 0),
        ((wire.document,), 0),
        ((wire.text(" "), wire.document, wire.text("What is this?")), 1),
    ):
        for after in ((), (answer("It is"),)):  # also if the answer has begun
            with pytest.raises(NotSupported) as refused:
                said(wire, *before, user(*parts), *after)
            assert refused.value.param == f"{wire.field}[2].content[{place}]"
            assert "document' is not supported" in refused.value.message


def test_a_document_that_was_said_before_is_a_note(wire: Wire) -> None:
    document = (wire.text("What is this?"), wire.document)
    question = user(wire.text("And now?"))
    assert said(wire, user(*document), answer("A cat."), question) == [f"What is this?{NOTE}", "A cat.", "And now?"]
    assert said(wire, user(*document), question) == [f"What is this?{NOTE}", "And now?"], "the first was refused"


def test_a_client_may_join_what_was_refused_and_what_comes_next(wire: Wire) -> None:
    joined = user(wire.text("What is this?"), wire.document, wire.text("Never mind."))
    assert said(wire, joined) == [f"What is this?{NOTE}Never mind."]


def test_a_warning_names_the_first_place(wire: Wire) -> None:
    fields = wire.fields(user(wire.document, wire.document), answer("Two."), user(wire.text("Go on")))
    warning = warning_about(wire.body, fields)
    assert warning is not None and f"{wire.field}[0].content[0] and 1 more: left out" in warning.text
    fields = wire.fields(user(wire.text("a")), answer("b"), user(wire.text("c"), wire.document))
    assert "left out" not in str(warning_about(wire.body, fields))


def test_what_a_client_sent_is_not_changed(wire: Wire) -> None:
    fields = wire.fields(user(wire.document), answer("A cat."), user(wire.text("Go on")))
    validate(wire.body, fields)
    assert fields[wire.field][0]["content"] == [wire.document]


def test_any_part_that_is_no_text_is_a_note(wire: Wire) -> None:
    parts = [{"type": kind} for kind in ("document", "input_file", "input_audio", "video_url")]
    (first, *_) = said(wire, user(*parts), answer("Yes."), user(wire.text("Go on")))
    assert first == "".join(
        f"[{kind} left out: only text can be read here]" for kind in ("document", "file", "audio", "video")
    )


def test_an_image_that_is_only_an_address_is_a_note_too() -> None:
    wire, address = WIRES["chat"], {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
    image = "[image left out: only text can be read here]"
    assert said(wire, user(address), answer("A cat."), user(wire.text("And now?")))[0] == image
    with pytest.raises(NotSupported, match=r"content\[0\]: is an address, and the owner allows no host"):
        said(wire, user(address))


def test_ollamas_images_of_the_model() -> None:
    def read(*messages: dict[str, Any]) -> list[tuple[Any, Any]]:
        body = validate(OllamaChatBody, {"model": "m", "messages": list(messages)})
        return [(message.content, message.images) for message in body.messages or ()]

    image = {"role": "assistant", "content": "Seen:", "images": ["AA"]}
    after = {"role": "user", "content": "And now?"}
    expected = [("Seen:[image left out: only text can be read here]", None), ("And now?", None)]
    assert read(image, after) == expected
    warning = warning_about(OllamaChatBody, {"model": "m", "messages": [image, image, after]})
    assert warning is not None and "messages[0].images and 1 more: left out" in warning.text
