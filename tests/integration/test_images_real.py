"""The clients of all APIs show an image to a real model, over a real daemon, and continue after a kill."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from openai import BadRequestError, OpenAI
from websockets.sync.client import connect

from edgeagent import cache_folder
from edgeagent.types import MemoryKind
from tests.integration.conftest import Daemon, serving
from tests.media import b64, data_url
from tests.media_corpus import bmp, exif
from tests.models import make_tiny_model
from tests.patience import patient
from tests.projectors import NEEDS_LIBMTMD, make_projector, png, wav

pytestmark = NEEDS_LIBMTMD

MODEL, HEARING = "seeing-F32", "hearing-F32"
QUESTION = "What is on this picture, and what is beside it?"
PHOTO = png()
NUM_TEXT_TOKENS = 64  # the question has fewer, and the image has more


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_tiny_model(folder / f"{MODEL}.gguf", MemoryKind.FULL_ATTENTION)
    make_projector(folder / "mmproj-seeing-F16.gguf", "gemma3")
    make_tiny_model(folder / f"{HEARING}.gguf", MemoryKind.FULL_ATTENTION)
    make_projector(folder / "mmproj-hearing-F16.gguf", "ultravox")
    return folder


@pytest.fixture(scope="module")
def daemon(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = (str(models / f"{MODEL}.gguf"), "--ctx", "1024", "--models-dir", str(models))
    with serving(tmp_path_factory.mktemp("state") / "s", *flags) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def openai(daemon: Daemon) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def shown(text: str = QUESTION, photo: bytes = PHOTO) -> Any:
    image = {"type": "input_image", "image_url": data_url(photo), "detail": "auto"}
    return [{"role": "user", "content": [image, {"type": "input_text", "text": text}]}]


def chat(photo: bytes | None = PHOTO) -> list[Any]:
    image = [{"type": "image_url", "image_url": {"url": data_url(photo)}}] if photo else []
    return [{"role": "user", "content": [*image, {"type": "text", "text": QUESTION}]}]


def test_all_wires_show_the_same_image(daemon: Daemon, openai: OpenAI) -> None:
    """The answer is the same on all, and another one without the image."""
    from anthropic import Anthropic

    greedy: Any = {"model": MODEL, "temperature": 0}
    said = openai.chat.completions.create(**greedy, max_tokens=16, messages=chat())
    expected = said.choices[0].message.content
    assert said.usage is not None and said.usage.prompt_tokens > NUM_TEXT_TOKENS
    response = openai.responses.create(**greedy, max_output_tokens=16, input=shown())
    assert response.output_text == expected
    assert response.usage is not None and response.usage.input_tokens == said.usage.prompt_tokens
    assert response.usage.input_tokens_details.cached_tokens > NUM_TEXT_TOKENS, "it is encoded once"
    source: Any = {"type": "base64", "media_type": "image/png", "data": b64(PHOTO)}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    with Anthropic(base_url=daemon.url, api_key="unused", max_retries=0) as anthropic:
        asked: Any = {"model": MODEL, "max_tokens": 16, "extra_body": {"temperature": 0}}
        message: Any = anthropic.messages.create(**asked, messages=[{"role": "user", "content": content}])
    assert message.content[0].text == expected
    options = {"temperature": 0, "num_predict": 16}
    with ollama.Client(daemon.url) as client:
        messages = [{"role": "user", "content": QUESTION, "images": [PHOTO]}]
        assert client.chat(MODEL, messages, options=options).message.content == expected
        assert client.generate(MODEL, QUESTION, images=[PHOTO], options=options).response == expected
    assert shown_on_a_socket(openai, greedy) == shown_in_realtime(openai) == expected
    for other in (None, png(1)):
        different = openai.chat.completions.create(**greedy, max_tokens=16, messages=chat(other))
        assert different.choices[0].message.content != expected


def shown_on_a_socket(openai: OpenAI, greedy: dict[str, Any]) -> str:
    with openai.responses.connect() as connection:
        connection.response.create(**greedy, max_output_tokens=16, input=shown())
        return str(next(event.text for event in connection if event.type == "response.output_text.done"))


def shown_in_realtime(openai: OpenAI) -> str:
    # The client has no parameter for a temperature.
    session: Any = {"type": "realtime", "output_modalities": ["text"], "instructions": "", "temperature": 0}
    image: Any = {"type": "input_image", "image_url": data_url(PHOTO)}
    content: Any = [image, {"type": "input_text", "text": QUESTION}]
    with openai.realtime.connect(model=MODEL) as connection:
        connection.session.update(session=session)
        damaged: Any = {"type": "input_image", "image_url": data_url(PHOTO[:60])}
        connection.conversation.item.create(item={"type": "message", "role": "user", "content": [damaged]})
        error: Any = next(event for event in connection if event.type not in ("session.created", "session.updated"))
        assert error.type == "error" and "damaged" in error.error.message
        connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        connection.response.create(response={"max_output_tokens": 16})
        for event in connection:
            assert event.type != "error", event
            if event.type == "response.output_text.done":
                return str(event.text)
    raise AssertionError("the socket was closed before the answer")


def test_pillow_decodes_in_the_sandbox(openai: OpenAI) -> None:
    image = pytest.importorskip("PIL.Image")
    webp, lying = io.BytesIO(), io.BytesIO()
    shown = image.open(io.BytesIO(PHOTO))
    shown.save(webp, "WEBP", lossless=True)
    # Turned by a quarter, with an Exif that turns it back.
    shown.transpose(image.Transpose.ROTATE_90).save(lying, "WEBP", lossless=True, exif=exif(6))
    greedy: Any = {"model": MODEL, "temperature": 0, "max_tokens": 16}
    answers = [
        openai.chat.completions.create(**greedy, messages=chat(photo)).choices[0].message.content
        for photo in (PHOTO, webp.getvalue(), lying.getvalue(), bmp(80, 60))
    ]
    assert answers[0] == answers[1] == answers[2] != answers[3]


def look(photo: bytes | None) -> list[Any]:
    """Return a conversation of Anthropic's API in which a tool shows a photo."""
    source = {"type": "base64", "media_type": "image/png", "data": b64(photo)} if photo else None
    shown = [{"type": "text", "text": "Seen."}, *([{"type": "image", "source": source}] if source else [])]
    return [
        {"role": "user", "content": "Look at the door."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": shown}],
        },
    ]


def test_what_a_tool_shows_is_seen_and_counted(daemon: Daemon, openai: OpenAI) -> None:
    from anthropic import Anthropic

    tools: Any = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
    answers, counts = list[Any](), list[int]()
    with Anthropic(base_url=daemon.url, api_key="unused", max_retries=0) as anthropic:
        for photo in (None, PHOTO, png(1)):
            messages: Any = look(photo)
            counts.append(anthropic.messages.count_tokens(model=MODEL, messages=messages, tools=tools).input_tokens)
            asked: Any = {"model": MODEL, "max_tokens": 8, "extra_body": {"temperature": 0}, "tools": tools}
            message = anthropic.messages.create(**asked, messages=messages)
            usage = message.usage
            assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counts[-1]
            answers.append(message.content)
    assert counts[1] == counts[2] >= counts[0] + 64
    assert len({str(each) for each in answers}) == 3
    counted = openai.responses.input_tokens.count(model=MODEL, input=shown())
    said = openai.responses.create(model=MODEL, input=shown(), max_output_tokens=16)
    assert said.usage is not None and said.usage.input_tokens == counted.input_tokens > NUM_TEXT_TOKENS


def test_what_the_model_reads_is_told(daemon: Daemon, openai: OpenAI) -> None:
    with ollama.Client(daemon.url) as client:
        assert "vision" in (client.show(MODEL).capabilities or ())
    listed = httpx.get(f"{daemon.url}/v1/models/{MODEL}").json()
    assert listed["edgeagent"]["media"] == ["image"]


@pytest.mark.parametrize(
    ("photo", "message"),
    [(PHOTO[:60], "png|PNG|image"), (b"RIFF\x10\0\0\0WEBPJUNK" + bytes(64), "WebP"), (wav(), "is no PNG")],
)
def test_what_is_no_image_is_refused(openai: OpenAI, photo: bytes, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        openai.chat.completions.create(model=MODEL, messages=chat(photo), max_tokens=4)


def heard(sound: bytes) -> list[Any]:
    part = {"type": "input_audio", "input_audio": {"data": b64(sound), "format": "wav"}}
    return [{"role": "user", "content": [part, {"type": "text", "text": "What is said?"}]}]


def heard_by_responses(name: str) -> list[Any]:
    """`name`: of the sound, or its bytes in base64."""
    part = {"type": "input_audio", "input_audio": {"data": name, "format": "wav"}}
    return [{"role": "user", "content": [part, {"type": "input_text", "text": "What is said?"}]}]


def test_a_sound_is_heard_on_all_wires(daemon: Daemon, openai: OpenAI) -> None:
    answers = list[Any]()
    for sound in (wav(), wav(1)):
        chat = openai.chat.completions.create(model=HEARING, messages=heard(sound), temperature=0, max_tokens=16)
        assert chat.usage is not None and chat.usage.prompt_tokens > NUM_TEXT_TOKENS
        answers.append(chat.choices[0].message.content)
        create: Any = {"model": HEARING, "temperature": 0, "max_output_tokens": 16}
        response = openai.responses.create(**create, input=heard_by_responses(b64(sound)))
        assert response.usage is not None and response.usage.input_tokens == chat.usage.prompt_tokens
        assert response.usage.input_tokens_details.cached_tokens > NUM_TEXT_TOKENS, "it is encoded once"
        assert response.output_text == answers[-1]
        with openai.responses.connect() as connection:
            connection.response.create(**create, input=heard_by_responses(b64(sound)))
            said = next(event.text for event in connection if event.type == "response.output_text.done")
        assert said == answers[-1]
        assert heard_in_a_frame(daemon.url, create, sound) == answers[-1]
    assert answers[0] != answers[1]


def heard_in_a_frame(url: str, create: dict[str, Any], sound: bytes) -> str:
    """Send a sound in a binary frame, which no SDK does, and return the answer about it."""
    name = f"sha256:{hashlib.sha256(sound).hexdigest()}"
    with connect(f"{url.replace('http', 'ws', 1)}/v1/responses") as socket:
        socket.send(sound)
        socket.send(json.dumps({"type": "response.create", **create, "input": heard_by_responses(name)}))
        for event in map(json.loads, socket):
            assert event["type"] not in ("response.failed", "error"), event
            if event["type"] == "response.output_text.done":
                return str(event["text"])
    raise AssertionError("the socket was closed before the answer")


def test_a_sound_for_a_model_that_reads_images(openai: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="reads text and images, and the last message has sounds"):
        openai.chat.completions.create(model=MODEL, messages=heard(wav()))


def test_a_conversation_goes_on_with_its_image_after_a_kill_and_a_restart(models: Path, tmp_path: Path) -> None:
    state, flags = tmp_path / "state", (str(models / f"{MODEL}.gguf"), "--ctx", "1024")
    create: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 8}
    answers: list[str] = []
    with serving(state, *flags) as daemon, OpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0) as client:
        first = client.responses.create(**create, input=shown(QUESTION * 13))  # it fills two blocks, but for a token
        answers.append(client.responses.create(**create, input="And now?", previous_response_id=first.id).output_text)
        assert first.usage is not None and 500 < first.usage.input_tokens <= 512
        wait_for_disk(state, 512)
        daemon.kill()
    with serving(state, *flags) as daemon, OpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0) as client:
        again = client.responses.create(**create, input="And now?", previous_response_id=first.id)
        answers.append(again.output_text)
        assert again.usage is not None
        assert again.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    assert answers[0] == answers[1]


def wait_for_disk(state: Path, num_tokens: int) -> None:
    """Wait until blocks with this many tokens are on disk."""
    deadline = time.monotonic() + patient(20)
    while sum(part.num_tokens for part in cache_folder.list_parts(state / "cache")) < num_tokens:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_projector_that_is_none_is_refused_at_the_start(models: Path, tmp_path: Path) -> None:
    model = str(models / f"{MODEL}.gguf")
    for mmproj, why in ((str(tmp_path / "gone.gguf"), "gone.gguf"), (model, "is no projector")):
        command = (sys.executable, "-m", "edgeagent", "serve", model, "--port", "0", "--mmproj", mmproj)
        state = ("--state-dir", str(tmp_path / "state"))
        done = subprocess.run([*command, *state], capture_output=True, text=True, timeout=patient(60), check=False)
        said = " ".join((done.stdout + done.stderr).split())
        assert done.returncode and why in said and "name another one with --mmproj, or none" in said


@pytest.mark.daily(1, seconds=2.5)
@pytest.mark.parametrize("is_named", [True, False])
def test_a_projector_is_named_or_switched_off(models: Path, tmp_path: Path, is_named: bool) -> None:
    """It need not be beside the model."""
    model, mmproj = models / f"{MODEL}.gguf", "none"
    if is_named:
        (tmp_path / "alone").mkdir()
        model, mmproj = tmp_path / "alone" / model.name, str(models / "mmproj-seeing-F16.gguf")
        model.symlink_to(models / model.name)
    with serving(tmp_path / "state", str(model), "--ctx", "512", "--mmproj", mmproj) as daemon:
        listed = httpx.get(f"{daemon.url}/v1/models/{MODEL}").json()
        assert listed["edgeagent"]["media"] == ["image"] * is_named
        with OpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0) as client:
            if is_named:
                assert client.chat.completions.create(model=MODEL, messages=chat(), max_tokens=2).usage
            else:
                with pytest.raises(BadRequestError, match=r"reads only text \(Its projector is switched off"):
                    client.chat.completions.create(model=MODEL, messages=chat(), max_tokens=2)
