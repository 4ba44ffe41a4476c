"""Images and sounds on the page, in a headless Chromium: chosen, dropped, pasted, and taken with a camera."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from edgeagent.types import ChatPrompt, Media, Started, TextDelta
from tests.backends.fake import FakeBackend, Gate, finished
from tests.media import BLUE, RED, SILENCE, b64, media, png
from tests.media_corpus import exif, with_exif
from tests.page.conftest import Visit
from tests.page.test_page import faults_of_access
from tests.projectors import jpeg

pytestmark = pytest.mark.slow(seconds=30)

FILE_OF = """async ([data, name, type]) => {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type }));
  return transfer;
}"""


def file(name: str, mime: str, data: bytes) -> Any:
    return {"name": name, "mimeType": mime, "buffer": data}


async def attach(visit: Visit, *files: Any) -> None:
    """Choose files, and wait until they are shown."""
    before = len(await visit.tab.query_selector_all("#attached li"))
    await visit.tab.set_input_files("#attach-file", list(files))
    await visit.tab.wait_for_function(
        "num => document.querySelectorAll('#attached li').length === num", arg=before + len(files)
    )


def seen(backend: FakeBackend) -> tuple[Media, ...]:
    """Return what the latest question shows."""
    (*_, last) = (request for request in backend.requests if not request.prefill_only)
    assert isinstance(last.prompt, ChatPrompt)
    return last.prompt.media


async def test_files_are_chosen_removed_and_sent(visit: Visit, backend: FakeBackend) -> None:
    await visit.enter()
    await attach(visit, file("red.png", "image/png", RED), file("hush.wav", "audio/wav", SILENCE))
    await attach(visit, file("blue.png", "image/png", BLUE))
    assert await faults_of_access(visit) == []
    await visit.shot("attached")
    await visit.tab.click("[aria-label='Remove red.png']")
    assert await visit.tab.evaluate("document.activeElement.id") == "message"
    # The prompt is computed when one is attached, before the question is written.
    await backend.until(lambda backend: any(request.prefill_only for request in backend.requests))
    await visit.say("What is this?")
    await visit.ended(1)
    assert seen(backend) == (media(SILENCE, "audio"), media(BLUE))
    assert await visit.tab.is_hidden("#attached")
    assert await visit.tab.inner_text(".user") == "sound (wav)\nWhat is this?"
    assert await visit.tab.get_attribute(".user img", "alt") == "Attached image"
    assert await visit.tab.evaluate("document.querySelector('.user img').naturalWidth") == 1
    await visit.say("And now?")
    await visit.ended(2)
    assert seen(backend) == (media(SILENCE, "audio"), media(BLUE)), "the conversation has them"
    # An edited question keeps them, and so does the conversation when the daemon gives it back.
    await visit.tab.click("text=Edit")
    await visit.tab.fill(".edit textarea", "What is that?")
    await visit.tab.click(".edit button[type=submit]")
    await visit.ended(1)
    assert seen(backend) == (media(SILENCE, "audio"), media(BLUE))
    await visit.tab.reload()
    await visit.tab.click("#list .entry")
    await visit.tab.wait_for_selector(".user img")


async def test_an_image_alone_is_a_question(visit: Visit, backend: FakeBackend) -> None:
    await visit.enter()
    await attach(visit, file("red.png", "image/png", RED))
    await visit.tab.click("#send")
    await visit.ended(1)
    assert seen(backend) == (media(RED),)


async def test_files_are_dropped_and_pasted(visit: Visit, backend: FakeBackend) -> None:
    await visit.enter()
    dropped = await visit.tab.evaluate_handle(FILE_OF, [b64(RED), "red.png", "image/png"])
    await visit.tab.dispatch_event("#transcript", "drop", {"dataTransfer": dropped})
    await visit.tab.wait_for_selector("#attached li")
    await visit.tab.evaluate(
        f"""async (file) => {{
          const transfer = await ({FILE_OF})(file);
          const field = document.querySelector("#message");
          const options = {{ clipboardData: transfer, bubbles: true, cancelable: true }};
          field.dispatchEvent(new ClipboardEvent("paste", options));
        }}""",
        [b64(BLUE), "", "image/png"],
    )
    await visit.tab.wait_for_function("() => document.querySelectorAll('#attached li').length === 2")
    await visit.say("Which one?")
    await visit.ended(1)
    assert seen(backend) == (media(RED), media(BLUE))


async def test_other_images_become_jpegs(visit: Visit, backend: FakeBackend) -> None:
    """So a model sees what the browser can read, also without Pillow, and no more than it can use."""
    await visit.enter()
    webp = await visit.tab.evaluate(
        """() => {
          const canvas = document.createElement("canvas");
          canvas.width = 30;
          canvas.height = 20;
          return canvas.toDataURL("image/webp").split(",")[1];
        }"""
    )
    await attach(visit, file("small.webp", "image/webp", base64.b64decode(webp)))
    await attach(visit, file("large.png", "image/png", png(3000, 400, seed=b"photo")))
    await visit.say("What is this?")
    await visit.ended(1)
    small, large = seen(backend)
    assert small.data[:3] == large.data[:3] == b"\xff\xd8\xff"
    sizes = await visit.tab.evaluate("[...document.querySelectorAll('.user img')].map(each => each.naturalWidth)")
    assert sizes == [30, 2048]


async def test_a_message_waits_for_a_file_that_is_still_being_read(visit: Visit, backend: FakeBackend) -> None:
    await visit.enter()
    await visit.tab.evaluate(
        """() => {
          const read = createImageBitmap;
          window.createImageBitmap = (blob) => new Promise((done) => (window.goOn = () => done(read(blob))));
        }"""
    )
    await visit.tab.set_input_files("#attach-file", file("large.png", "image/png", png(3000, 400, seed=b"photo")))
    await visit.tab.wait_for_function("() => window.goOn")
    await visit.say("What is this?")
    assert "still being read" in await visit.tab.inner_text("#said")
    assert await visit.tab.input_value("#message") == "What is this?"
    await visit.tab.evaluate("goOn()")
    await visit.tab.wait_for_selector("#attached li")
    await visit.tab.press("#message", "Enter")
    await visit.ended(1)
    assert len(seen(backend)) == 1


async def test_what_cannot_be_attached_is_told(visit: Visit) -> None:
    await visit.enter()
    for name, mime, data, why in (
        ("notes.txt", "text/plain", b"hi", "is neither an image nor"),
        ("broken.webp", "image/webp", b"RIFF", "is no image that this browser can read"),
    ):
        await visit.tab.set_input_files("#attach-file", file(name, mime, data))
        await visit.tab.wait_for_function("why => document.querySelector('#said').textContent.includes(why)", arg=why)
        assert await visit.tab.is_visible("#said")
    assert await visit.tab.is_hidden("#attached")


async def test_the_camera_takes_a_photo(visit: Visit, backend: FakeBackend) -> None:
    await visit.tab.context.grant_permissions(["camera"])
    await visit.enter()
    await visit.tab.click("#camera")
    await visit.tab.click("text=Cancel")
    await visit.tab.wait_for_selector("dialog", state="detached")  # its close event comes later
    await visit.tab.click("#camera")
    await visit.tab.wait_for_selector("dialog button:not([disabled]) >> text=Take photo")
    assert await faults_of_access(visit) == []
    await visit.shot("camera")
    await visit.tab.click("text=Take photo")
    await visit.tab.wait_for_selector("#attached img")
    await visit.tab.wait_for_selector("dialog", state="detached")  # its close event comes later
    await visit.say("What do you see?")
    await visit.ended(1)
    (photo,) = seen(backend)
    assert photo.kind == "image" and photo.data[:3] == b"\xff\xd8\xff" and len(photo.data) > 1000


async def test_escape_closes_the_camera_and_stops_no_answer(visit: Visit, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda request: (Started(3, 0), TextDelta("begun"), gate, TextDelta(" and ended"), finished())
    await visit.tab.context.grant_permissions(["camera"])
    await visit.enter()
    await visit.say("question")
    await gate.reached.wait()
    await visit.tab.dblclick("#camera", force=True)
    await visit.tab.wait_for_selector("dialog[open]")
    assert len(await visit.tab.query_selector_all("dialog[open]")) == 1
    await visit.tab.keyboard.press("Escape")
    await visit.tab.wait_for_selector("dialog", state="detached")
    gate.opened.set()
    await visit.ended(1)
    assert await visit.tab.inner_text(".markdown") == "begun and ended"


async def test_a_conversation_is_exported_and_imported_with_its_images(visit: Visit, backend: FakeBackend) -> None:
    await visit.enter()
    turned = with_exif(jpeg(), exif(6))
    await attach(visit, file("door.jpg", "image/jpeg", turned))
    await visit.say("What is this?")
    await visit.ended(1)
    async with visit.tab.expect_download() as saving:
        await visit.tab.click("#export")
    exported = await asyncio.to_thread(Path(await (await saving.value).path()).read_bytes)
    assert json.loads(exported)["turns"][0]["input"][0]["content"][0]["type"] == "input_image"
    await visit.tab.set_input_files("#file", file("c.json", "application/json", exported))
    await visit.say("And now?")
    await visit.ended(2)
    assert seen(backend) == (media(turned),), "a small one is sent as it is"
