"""Images and sounds on every wire: they become parts of the prompt, out of band, within bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgeagent.api.anthropic.body import read_message
from edgeagent.api.ollama import body as ollama
from edgeagent.api.openai.chat_body import read_chat
from edgeagent.api.responses.body import read_create
from edgeagent.api.responses.items import decode_items, encode_items, item_body, read_items
from edgeagent.conversation.history import ConnectionHistory, StoreResult
from edgeagent.errors import EdgeAgentError, InvalidRequest, NotSupported, PayloadTooLarge
from edgeagent.types import MAX_MEDIA, ChatPrompt, MediaPlace, Message
from tests.media import BLUE, RED, SILENCE, b64, data_url, media, png

Json = dict[str, Any]
Read = Callable[[list[Any]], ChatPrompt]


def of_chat(content: list[Any]) -> ChatPrompt:
    fields = {"messages": [{"role": "user", "content": content}]}
    prompt = read_chat(fields, completion_id="c", default_model="m").requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def of_responses(content: list[Any]) -> ChatPrompt:
    create = read_create({"input": [{"role": "user", "content": content}]})
    conversation = ConnectionHistory().continue_from(None, create.items, StoreResult())
    prompt = create.request("r", "m", conversation).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def of_anthropic(content: list[Any]) -> ChatPrompt:
    fields = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
    prompt = read_message(fields, request_id="r").request.prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def chat_image(data: bytes) -> Json:
    return {"type": "image_url", "image_url": {"url": data_url(data), "detail": "low"}}


def input_image(data: bytes) -> Json:
    return {"type": "input_image", "image_url": data_url(data), "detail": "auto", "file_id": None}


def input_file(data: bytes) -> Json:
    return {"type": "input_file", "filename": "a.png", "file_data": data_url(data)}


def block(data: bytes) -> Json:
    source = {"type": "base64", "media_type": "image/jpeg", "data": b64(data)}
    return {"type": "image", "source": source, "cache_control": {"type": "ephemeral"}}


SOUND = {"type": "input_audio", "input_audio": {"data": b64(SILENCE), "format": "wav"}}
WIRES = [(of_chat, chat_image), (of_responses, input_image), (of_responses, input_file)]


@pytest.mark.parametrize(("read", "image"), WIRES)
def test_media_stand_between_the_characters_of_a_text(read: Read, image: Callable[[bytes], Json]) -> None:
    prompt = read([image(RED), text("What is "), image(BLUE), text("this?"), SOUND])
    places = (MediaPlace(0, 0), MediaPlace(8, 1), MediaPlace(13, 2))
    assert prompt.messages == (Message("user", "What is this?", media=places),)
    assert prompt.media == (media(RED), media(BLUE), media(SILENCE, "audio"))
    assert "bytes, " in repr(prompt.media[0]), "no log holds an image"


def test_blocks_are_paragraphs() -> None:
    prompt = of_anthropic([block(RED), text("What"), block(BLUE), text("is this?")])
    assert prompt.messages == (Message("user", "What\n\nis this?", media=(MediaPlace(0, 0), MediaPlace(4, 1))),)
    assert prompt.media == (media(RED), media(BLUE))


def test_joined_turns_keep_their_images() -> None:
    turns = [[text("One"), block(RED)], [block(BLUE), text("two")]]
    messages = [{"role": "user", "content": turn} for turn in turns]
    prompt = read_message({"model": "m", "max_tokens": 1, "messages": messages}, request_id="r").request.prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == (Message("user", "One\n\ntwo", media=(MediaPlace(3, 0), MediaPlace(5, 1))),)


def test_ollamas_images_come_before_the_text() -> None:
    messages = [{"role": "user", "content": "What is this?", "images": [b64(RED), data_url(BLUE)]}]
    chat = ollama.read_chat({"model": "m", "messages": messages}, request_id="r", served=str).request
    asked = {"model": "m", "prompt": "What is this?", "images": [b64(RED), b64(BLUE)]}
    generate = ollama.read_generate(asked, request_id="r", served=str).request
    for request in (chat, generate):
        assert request is not None and isinstance(request.prompt, ChatPrompt)
        places = (MediaPlace(0, 0), MediaPlace(0, 1))
        assert request.prompt.messages == (Message("user", "What is this?", media=places),)
        assert request.prompt.media == (media(RED), media(BLUE))


def test_an_item_is_given_back_as_it_was_sent() -> None:
    content = [input_image(RED), text("What is "), SOUND, text("this?")]
    (item,) = read_items([{"role": "user", "content": content}])
    (again,) = read_items([item_body(item)])
    assert again == item
    assert [part["type"] for part in item_body(item)["content"]] == [
        *("input_image", "input_text", "input_audio", "input_text")
    ]


@pytest.mark.parametrize(
    ("part", "error", "message"),
    [
        ({"type": "image_url"}, NotSupported, "has no image_url"),
        ({"type": "image_url", "image_url": {"url": "http://10.0.0.1/x.png"}}, NotSupported, "is an address"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, NotSupported, "is no data URL"),
        ({"type": "image_url", "image_url": {"url": "data:image/png,AAAA"}}, InvalidRequest, "is no data URL"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAA"}}, InvalidRequest, "is not base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,A A="}}, InvalidRequest, "is not base64"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,xf3I="}}, InvalidRequest, "is not base64"),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==AAAA"}},
            InvalidRequest,
            "is not base64",
        ),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,é"}}, InvalidRequest, "is not base64"),
        ({"type": "image_url", "image_url": {"url": data_url(b"<svg/>")}}, InvalidRequest, "is no PNG"),
        ({"type": "image_url", "image_url": {"url": data_url(SILENCE)}}, InvalidRequest, "is no PNG"),
        ({"type": "input_audio", "input_audio": {"data": b64(RED)}}, InvalidRequest, "is no WAV"),
        ({"type": "input_file", "file_data": "data:application/pdf;base64,AAAA"}, NotSupported, "neither an image"),
        ({"type": "input_file", "file_id": "file-1"}, NotSupported, "has no file_data"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(part: Json, error: type[EdgeAgentError], message: str) -> None:
    with pytest.raises(error, match=rf"^messages\[0\].content\[1\]:? .*{message}") as refused:
        of_chat([text("What is this?"), part])
    assert refused.value.param == "messages[0].content[1]"


def test_base64_is_decoded_in_pieces_and_strictly() -> None:
    large = png(600, 600, seed=b"x")
    assert of_chat([chat_image(large)]).media == (media(large),)
    encoded = b64(large)
    for wrong in (encoded[:-1], encoded + "=", encoded[: 1 << 18] + "\n" + encoded[1 << 18 :], encoded[:99] + "==" * 2):
        with pytest.raises(InvalidRequest, match="is not base64"):
            of_chat([{"type": "image_url", "image_url": f"data:image/png;base64,{wrong}"}])


def test_their_number_and_their_bytes_are_bounded() -> None:
    assert len(of_chat([chat_image(RED)] * MAX_MEDIA).media) == MAX_MEDIA
    with pytest.raises(InvalidRequest, match=f"messages holds {MAX_MEDIA + 1} images"):
        of_chat([chat_image(RED)] * (MAX_MEDIA + 1))
    nearly = b"\x89PNG\r\n\x1a\n" + bytes(11 << 20)
    with pytest.raises(PayloadTooLarge, match="at most 20971520 are possible"):
        of_chat([chat_image(nearly)] * 2)


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_the_user_shows_something(role: str) -> None:
    with pytest.raises(NotSupported):
        read_items([{"role": role, "content": [input_image(RED)]}])
    with pytest.raises(NotSupported):
        read_chat({"messages": [{"role": role, "content": [chat_image(RED)]}]}, completion_id="c", default_model="m")


def result_of_chat(parts: list[Any]) -> ChatPrompt:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": parts},
    ]
    prompt = read_chat({"messages": messages}, completion_id="c", default_model="m").requests[0].prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def result_of_responses(parts: list[Any]) -> ChatPrompt:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": parts}
    create = read_create({"input": [{"role": "user", "content": "Look."}, call, output]})
    conversation = ConnectionHistory().continue_from(None, create.items, StoreResult())
    prompt = create.request("r", "m", conversation).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def result_of_anthropic(parts: list[Any]) -> ChatPrompt:
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": parts}]},
    ]
    prompt = read_message({"model": "m", "max_tokens": 1, "messages": messages}, request_id="r").request.prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt


def of_mcp(data: bytes) -> Json:
    return {"type": "image", "data": b64(data), "mimeType": "image/png"}


@pytest.mark.parametrize(
    ("read", "image"),
    [
        (result_of_chat, chat_image),
        (result_of_chat, of_mcp),
        (result_of_responses, input_image),
        (result_of_responses, input_file),
        (result_of_anthropic, block),
    ],
)
def test_what_a_tool_shows_is_seen(read: Read, image: Callable[[bytes], Json]) -> None:
    prompt = read([text("A photo: "), image(RED), text("of a door")])
    result = prompt.messages[-1]
    assert (result.role, result.content) == ("tool", "A photo: of a door")
    assert (result.media, prompt.media) == ((MediaPlace(9, 0),), (media(RED),))


@pytest.mark.parametrize("read", [result_of_chat, result_of_responses, result_of_anthropic])
def test_what_cannot_be_read_of_a_tools_result_is_a_note(read: Read) -> None:
    note = "[image left out: only text can be read here]"
    unreadable = {"type": "image", "source": {"type": "base64", "media_type": "image/svg+xml", "data": b64(b"<svg/>")}}
    address = {"type": "image_url", "image_url": {"url": "https://images.example/x.png"}}
    document = {"type": "document", "source": {}}
    prompt = read([text("Seen: "), unreadable, address, document])
    assert prompt.messages[-1].content == f"Seen: {note}{note}{note.replace('image', 'document')}"
    assert prompt.media == ()


def test_ollamas_tools_show_images_too() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
        {"role": "tool", "tool_name": "look", "content": "Seen", "images": [b64(RED)]},
    ]
    request = ollama.read_chat({"model": "m", "messages": messages}, request_id="r", served=str).request
    assert request is not None and isinstance(request.prompt, ChatPrompt)
    assert request.prompt.messages[-1].media == (MediaPlace(0, 0),) and request.prompt.media == (media(RED),)


def test_a_result_is_given_back_as_it_was_sent() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    parts = [{"type": "input_text", "text": "Seen: "}, input_image(RED)]
    items = read_items([call, {"type": "function_call_output", "call_id": "c", "output": parts}])
    assert read_items([item_body(each) for each in items]) == items
    assert [part["type"] for part in item_body(items[1])["output"]] == ["input_text", "input_image"]
    stored = encode_items(items)
    assert RED not in stored and b64(RED).encode() not in stored
    assert decode_items(stored, lambda kind, digest: media(RED)) == items
