"""The page in a headless Chromium: the chat, its branches, a hostile model, a lost daemon, and the board."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from edgeagent import metrics
from edgeagent.config import Config, StoreConfig
from edgeagent.credentials.keys import KeyRing, ensure_token
from edgeagent.errors import ContextLengthExceeded
from edgeagent.store.hub import pull
from edgeagent.store.hub.pull import Puller
from edgeagent.types import GenerateRequest, ReasoningDelta, Started, TextDelta, ToolCallDelta, ToolCallStarted
from tests.backends.fake import Act, FakeBackend, Gate, finished
from tests.daemon.running import running
from tests.hub_server import hub_server
from tests.page.axe import axe_source
from tests.page.conftest import Visit, visiting
from tests.patience import patient
from tests.store.gguf_bytes import small_model

pytestmark = pytest.mark.slow(seconds=90)

RICH = """Water boils at **100 °C** at sea level. Higher up it boils *sooner*:

| height | boils at |
|-------:|---------:|
| 0 m | 100 °C |
| 3000 m | 90 °C |

1. The air is thinner.
2. So the vapour needs less pressure.

```python
def boils_at(height_m: float) -> float:
    return 100.0 - height_m / 300.0
```

See [the tables](https://example.org/water) for more."""


def words(text: str) -> list[TextDelta]:
    return [TextDelta(piece) for piece in text.splitlines(keepends=True)]


def rich(request: GenerateRequest) -> Iterable[Act]:
    yield Started(40, 32)
    if not request.prefill_only:
        yield ReasoningDelta("The user asks about water. The boiling point falls with the pressure.")
        yield from words(RICH)
        yield ToolCallStarted(0, "call_1", "look_up")
        yield ToolCallDelta(0, '{"height_m": 3000}')
    yield finished(prompt=40, cached=32, output=120)


async def test_a_link_opens_the_page_and_a_message_is_answered(visit: Visit) -> None:
    await visit.enter()
    assert "#link" not in visit.tab.url
    await visit.say("one two three")
    await visit.ended(1)
    assert await visit.tab.inner_text(".markdown") == "one two three"
    facts = await visit.tab.inner_text(".facts")
    assert "to the first token" in facts and "0 of 3 tokens cached" in facts and "fake" in facts
    await visit.say("and four")
    await visit.ended(2)
    # The same browser comes back without a link, and finds the conversation on the daemon.
    await visit.tab.reload()
    await visit.tab.click("#list .entry")
    await visit.ended(2)
    assert await visit.tab.inner_text(".turn:last-child .markdown") == "and four"
    # A link that was used already does not lock a browser that has a token.
    await visit.tab.evaluate(f"location.hash = '#link={'x' * 43}'")
    await visit.tab.wait_for_function("() => document.querySelector('#offline').textContent.includes('already let in')")
    assert await visit.tab.is_visible("#chat") and not await visit.tab.is_visible("#entry")
    await visit.tab.click("#to-board")
    await visit.tab.wait_for_selector("#board:not([hidden])")
    assert not await visit.tab.is_visible("#offline") and not await visit.tab.is_visible("#entry")
    visit.faults = [fault for fault in visit.faults if "401" not in fault]


async def test_without_a_link_the_page_says_how_to_get_one(visit: Visit) -> None:
    await visit.tab.goto(visit.daemon.url)
    await visit.tab.wait_for_selector("#entry:not([hidden])")
    assert "edgeagent open" in await visit.tab.inner_text("#entry")
    assert not await visit.tab.is_visible("#chat")
    await visit.shot("entry")
    await visit.tab.goto(f"{visit.daemon.url}/#link={'x' * 43}")
    await visit.tab.wait_for_function("() => document.querySelector('#entry-why').textContent.includes('used already')")
    visit.faults = [fault for fault in visit.faults if "401" not in fault]


@pytest.mark.parametrize("size", [(1280, 800), (320, 640)], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_how_an_answer_looks(visit: Visit, backend: FakeBackend, size: tuple[int, int], scheme: str) -> None:
    backend.script = rich
    await visit.tab.emulate_media(color_scheme=scheme)
    await visit.enter()
    await visit.say("At what temperature does water boil, and why does it boil sooner on a mountain?")
    await visit.ended(1)
    await visit.tab.wait_for_selector(".code pre code")
    assert await visit.tab.inner_text(".markdown strong") == "100 °C"
    assert [await each.inner_text() for each in await visit.tab.query_selector_all("summary")] == [
        *("Settings", "Reasoning"),
        "Tool call: look_up",
    ]
    link = await visit.tab.query_selector(".markdown a")
    assert (await link.get_attribute("rel"), await link.get_attribute("href")) == (
        "noopener noreferrer",
        "https://example.org/water",
    )
    assert await visit.tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    await visit.shot(f"answer-{size[0]}-{scheme}")
    await visit.tab.evaluate("document.querySelector('#transcript').scrollTop = 0")
    await visit.shot(f"answer-top-{size[0]}-{scheme}")
    if size[0] < 700:
        await visit.tab.click("#list-toggle")
        await visit.shot(f"list-{size[0]}-{scheme}")
        await visit.tab.click("#list-toggle")
    assert await faults_of_access(visit) == []
    for seconds in (0.01, 0.04, 0.05, 0.05, 0.3):
        metrics.first_token_seconds.labels("fake", "interactive", "local").observe(seconds)
    await visit.tab.click("#to-board")
    await visit.tab.wait_for_selector(".panel svg")
    assert await visit.tab.evaluate("document.documentElement.scrollWidth") <= size[0]
    await visit.shot(f"board-{size[0]}-{scheme}")
    assert await faults_of_access(visit) == []


async def faults_of_access(visit: Visit) -> list[str]:
    """Return what axe-core finds on the page, if it can be had."""
    source = axe_source()
    if source is None:
        return []
    await visit.tab.evaluate(source)
    found = await visit.tab.evaluate("axe.run().then(found => found.violations)")
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary']}" for each in found]


async def test_stop_regenerate_and_branches(visit: Visit, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda request: (Started(3, 0), TextDelta("begun"), gate, TextDelta(" and ended"), finished())
    await visit.enter()
    await visit.say("question")
    await gate.reached.wait()
    await visit.tab.wait_for_function("() => document.querySelector('.markdown')?.textContent === 'begun'")
    await visit.tab.click("#stop")
    await visit.ended(1)
    assert await visit.tab.inner_text(".notice") == "Stopped."
    backend.script = lambda request: (Started(3, 0), TextDelta("another answer"), finished())
    await visit.tab.click("text=Regenerate")
    await visit.tab.wait_for_function("() => document.querySelector('.count')?.textContent === '2 of 2'")
    await visit.ended(1)
    await visit.tab.click("text=Edit")
    await visit.tab.fill(".edit textarea", "another question")
    await visit.tab.click(".edit button[type=submit]")
    await visit.tab.wait_for_function("() => document.querySelector('.count')?.textContent === '3 of 3'")
    await visit.ended(1)
    assert await visit.tab.inner_text(".user") == "another question"
    await visit.tab.click("[aria-label='Earlier branch']")
    assert await visit.tab.inner_text(".user") == "question"
    assert await visit.tab.inner_text(".markdown") == "another answer"
    # With the keyboard alone: the button keeps the focus, and what replaces a button gets it.
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"
    assert await visit.tab.evaluate(focused) == "Earlier branch"
    await visit.tab.keyboard.press("Enter")
    await visit.tab.wait_for_function("() => document.querySelector('.count').textContent === '1 of 3'")
    assert await visit.tab.evaluate(focused) == "Conversation"
    await visit.tab.focus("text=Regenerate")
    await visit.tab.keyboard.press("Enter")
    await visit.tab.wait_for_function("() => document.querySelector('.count').textContent === '4 of 4'")
    assert await visit.tab.evaluate(focused) == "Conversation"
    await visit.ended(1)


async def test_the_prompt_is_computed_while_one_types(visit: Visit, backend: FakeBackend) -> None:
    await visit.enter()
    await visit.tab.click("text=Settings")
    await visit.tab.fill("#instructions", "Be brief.")
    await visit.tab.type("#message", "turn on the light")
    await backend.until(lambda backend: any(request.prefill_only for request in backend.requests))
    await visit.tab.press("#message", "Enter")
    await visit.ended(1)
    asked = backend.requests[-1]
    assert not asked.prefill_only
    assert [(message.role, message.content) for message in asked.prompt.messages] == [  # type: ignore[union-attr]
        ("system", "Be brief."),
        ("user", "turn on the light"),
    ]
    # What was computed while typing is no conversation. The list is asked for behind the answer.
    await visit.tab.wait_for_selector("#list .entry")
    assert len(await visit.tab.query_selector_all("#list .entry")) == 1


async def chosen_preset(tab: Any) -> str:
    name: str = await tab.evaluate("document.querySelector('#preset').value")
    return name


async def test_presets(visit: Visit, backend: FakeBackend, tmp_path: Path) -> None:
    tab = visit.tab
    await visit.enter()
    # By keyboard, as with a screen reader: every control has a name.
    await tab.get_by_text("Settings").focus()
    await tab.keyboard.press("Enter")
    await tab.get_by_label("System prompt").fill("Answer like a pirate.")
    await tab.get_by_label("Temperature").fill("0.25")
    await tab.get_by_label("Longest answer").fill("7")
    await tab.get_by_label("Name", exact=True).fill("Pirate")
    await tab.keyboard.press("Enter")
    await tab.wait_for_function("() => document.querySelector('#said').textContent.includes('Pirate is saved')")
    assert await tab.is_visible("#said") and await chosen_preset(tab) == "Pirate"
    assert await faults_of_access(visit) == []
    await visit.shot("presets")
    await visit.say("hello")
    await visit.ended(1)
    asked = backend.requests[-1]
    assert [(each.role, each.content) for each in asked.prompt.messages] == [  # type: ignore[union-attr]
        ("system", "Answer like a pirate."),
        ("user", "hello"),
    ]
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.max_tokens) == (0.25, None, 7)

    # Another window has the preset too, and the conversation the settings that it was made with.
    other = await tab.context.new_page()
    await other.goto(visit.daemon.url)
    await other.click("#list .entry")
    await other.wait_for_selector(".turn")
    assert await chosen_preset(other) == "Pirate"
    await other.click("text=Settings")
    await other.get_by_label("Top p").fill("0.5")
    await other.get_by_label("Top p").blur()
    assert await chosen_preset(other) == ""
    await other.get_by_label("Name", exact=True).fill("Calm")
    await other.click("text=Save preset")
    await tab.wait_for_function("() => document.querySelector('#preset').options.length === 3")
    await other.close()

    # A new conversation begins with the preset that was chosen last; one that is chosen replaces all settings.
    await tab.get_by_role("combobox", name="Preset", exact=True).select_option("None")
    assert await tab.input_value("#instructions") == "" and await tab.get_by_label("Temperature").input_value() == ""
    await tab.get_by_role("combobox", name="Preset", exact=True).select_option("Calm")
    await tab.click("#new")
    assert await tab.get_by_label("Top p").input_value() == "0.5"
    # What the daemon would refuse is not sent.
    await tab.get_by_label("Temperature").fill("3")
    await tab.fill("#message", "hi")
    await tab.press("#message", "Enter")
    assert await tab.input_value("#message") == "hi"
    assert await tab.evaluate("document.activeElement.name") == "temperature"

    async with tab.expect_download() as started:
        await tab.click("text=Export presets")
    path = tmp_path / "presets.json"
    await (await started.value).save_as(path)
    exported = json.loads(await asyncio.to_thread(path.read_text))
    pirate = {"instructions": "Answer like a pirate.", "temperature": 0.25, "max_output_tokens": 7}
    assert exported == {
        "format": "edgeagent-presets-1",
        "presets": [{"name": "Calm", **pirate, "top_p": 0.5}, {"name": "Pirate", **pirate}],
    }
    await tab.get_by_role("combobox", name="Preset", exact=True).select_option("Pirate")
    await tab.click("text=Delete preset")
    await tab.wait_for_function("() => document.querySelector('#preset').options.length === 2")
    assert await tab.evaluate("document.activeElement.id") == "preset"
    await tab.set_input_files("#presets-file", str(path))
    await tab.wait_for_function("() => document.querySelector('#said').textContent === '2 presets are imported.'")
    # Only what is a setting is taken from a file.
    hostile = [
        {"name": "<b>x", "temperature": 99, "top_p": "1", "tools": [], "max_output_tokens": 1.5},
        {"name": 5},
        None,
    ]
    content = json.dumps({"format": "edgeagent-presets-1", "presets": hostile}).encode()
    await tab.set_input_files("#presets-file", {"name": "x", "mimeType": "application/json", "buffer": content})
    await tab.wait_for_function("() => document.querySelector('#said').textContent === '1 preset is imported.'")
    kept = json.loads(await tab.evaluate("localStorage.getItem('edgeagent.presets')"))["presets"]
    assert [each for each in kept if each["name"] == "<b>x"] == [{"name": "<b>x"}] and len(kept) == 3
    await tab.set_input_files("#presets-file", {"name": "x", "mimeType": "application/json", "buffer": b"{}"})
    await tab.wait_for_function("() => document.querySelector('#said').textContent.includes('not imported')")


async def test_a_long_name_of_a_preset_keeps_the_picker_on_the_page(visit: Visit) -> None:
    tab = visit.tab
    await visit.enter()
    await tab.click("text=Settings")
    await tab.get_by_label("Name", exact=True).fill("W" * 80)
    await tab.click("text=Save preset")
    await tab.wait_for_function("() => document.querySelector('#preset').options.length === 2")
    for width in (390, 1280):
        await tab.set_viewport_size({"width": width, "height": 800})
        right = "(id) => document.querySelector(id).getBoundingClientRect().right"
        assert await tab.evaluate(right, "#preset") <= await tab.evaluate(right, "#settings")


async def test_the_board_unloads_and_loads_a_model(visit: Visit, backend: FakeBackend) -> None:
    await visit.enter()
    await visit.tab.click("#to-board")
    async with visit.tab.expect_response(lambda answer: answer.url.endswith("/edgeagent/unload")):
        await visit.tab.click("[aria-label='Unload fake']")
    assert backend.unloaded == ["fake"]
    # A screen reader finds each panel and each plot by its name.
    for name in ("Time to the first token", "Time between tokens", "Models", "Latency targets", "Prompt cache"):
        await visit.tab.get_by_role("region", name=name, exact=True).wait_for()


async def test_the_board_downloads_a_model_and_offers_to_load_it(
    browser: Any, backend: FakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import close_session

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    config = Config(state_dir=tmp_path, store=StoreConfig(models_dir=tmp_path / "models", min_free_bytes=0))
    close_session()
    with hub_server() as hub:
        hub.add("org/model-GGUF", {"model-Q4_K_M.gguf": small_model(1, 200_000)})
        monkeypatch.setattr(pull, "Puller", partial(Puller, endpoint=hub.url))
        async with visiting(browser, backend, config, (1280, 800)) as visit:
            await visit.enter()
            await visit.tab.click("#to-board")
            await visit.tab.fill("#pull-name", "org/model-GGUF")
            await visit.tab.press("#pull-name", "Enter")
            await visit.tab.get_by_text("org/model-GGUF:Q4_K_M is on this machine").wait_for()
            await visit.tab.get_by_role("button", name="Load org/model-GGUF:Q4_K_M").wait_for()
    close_session()


HOSTILE = [
    "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 2'>\n\n",
    "<iframe srcdoc='<script>parent.harmed = 3</script>'></iframe>\n\n",
    "[click](javascript:window.harmed=4) [click](data:text/html,<script>5</script>) ![i](http://evil.example/i.png)\n\n",
    "[https://bank.example](http://evil.example/) \u202egnp.exe\u202c \u2066hidden\u2069\n\n",
    "```\n</code></pre><script>window.harmed = 6</script>\n```\n\n",
    "<style>*{display:none}</style><base href='http://evil.example/'><meta http-equiv=refresh content='0;url=//e'>\n\n",
    "[x]: javascript:window.harmed=7\n\n[x]\n\n",
    "[" * 3000 + "\n\n" + "*a **b " * 900 + "\n\n" + "> " * 2000 + "\n\n" + "|" * 3000 + "\n" + "|-" * 1500 + "\n\n",
]


async def test_a_hostile_answer_does_nothing(visit: Visit, backend: FakeBackend) -> None:
    line = "a" * 65536
    backend.script = lambda request: (
        Started(3, 0),
        ReasoningDelta("<script>window.harmed = 8</script>"),
        *map(TextDelta, HOSTILE),
        *(TextDelta(line) for _ in range(16)),
        finished(),
    )
    await visit.enter()
    await visit.say("<script>window.harmed = 9</script> \u202eabc")
    await visit.ended(1)
    await visit.tab.wait_for_selector(".markdown .code")
    # Whole blocks are shown one after another; this one is the last that is parsed.
    await visit.tab.wait_for_function("() => document.querySelector('.markdown').textContent.length > 1000000")
    assert await visit.tab.evaluate("window.harmed") is None
    assert (
        await visit.tab.evaluate(
            "[...document.querySelectorAll('#transcript *')].filter(each => "
            "/^(script|img|iframe|style|base|meta|link)$/i.test(each.tagName)"
            " || [...each.attributes].some(a => /^on/i.test(a.name))).length"
        )
        == 0
    )
    targets = await visit.tab.evaluate("[...document.querySelectorAll('#transcript a')].map(each => each.href)")
    assert all(target.startswith(("http://", "https://", "mailto:")) for target in targets)
    shown = await visit.tab.inner_text("#transcript")
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    # The page still answers at once: a frame is drawn, and a click is taken.
    await visit.tab.click("#new")
    assert await visit.tab.inner_text("#transcript") == "What would you like to know?"


async def test_a_preset_for_which_there_is_no_room_is_not_chosen(visit: Visit) -> None:
    await visit.enter()
    await visit.tab.evaluate(
        "Storage.prototype.setItem = (key) => {"
        " if (key === 'edgeagent.presets') throw new Error('full');"
        " window.kept = key; }"
    )
    await visit.tab.click("summary")
    await visit.tab.fill("#preset-name", "Pirate")
    await visit.tab.press("#preset-name", "Enter")
    await visit.tab.wait_for_function("() => document.querySelector('#said').textContent.includes('no room')")
    assert await visit.tab.evaluate("window.kept") is None
    assert await visit.tab.input_value("#preset-name") == "Pirate"


# Counts how often the answer's elements change, by the frame in which they do.
COUNT = """() => {
  window.changes = new Map();
  const ofAnswer = ({ target }) => (target instanceof Element ? target : target.parentElement)?.closest(".parts");
  new MutationObserver((records) => {
    const frame = document.timeline.currentTime;
    if (records.some(ofAnswer)) window.changes.set(frame, (window.changes.get(frame) ?? 0) + 1);
  }).observe(document.querySelector("#transcript"), { subtree: true, childList: true, characterData: true });
}"""


async def test_a_burst_changes_the_answer_once_in_a_frame(visit: Visit, backend: FakeBackend) -> None:
    gate, num_deltas = Gate(), 3000
    pieces = [f"word{number} " if number % 12 else f"**word{number}**.\n\n" for number in range(num_deltas)]
    backend.script = lambda request: (
        (Started(8, 0), finished())
        if request.prefill_only
        else (Started(8, 0), ReasoningDelta("A burst."), *map(TextDelta, pieces), gate, finished())
    )
    await visit.enter()
    await visit.tab.evaluate(COUNT)
    await visit.say("Write a lot.")
    await asyncio.wait_for(gate.reached.wait(), patient(60))
    # A block is whole when the first line of the next one is.
    await visit.tab.wait_for_function(
        f"() => document.querySelectorAll('.markdown strong').length === {num_deltas // 12 - 1}"
        f" && document.querySelector('.markdown').textContent.includes('word{num_deltas - 1}')"
    )
    counted: list[tuple[float, int]] = await visit.tab.evaluate("[...window.changes]")
    assert {num for _, num in counted} == {1}
    # They are far fewer than the deltas: at most one in 30 ms.
    assert all(later - earlier > 29 for (earlier, _), (later, _) in pairwise(counted))
    gate.opened.set()
    await visit.ended(1)
    # The last block is asked for behind the answer.
    await visit.tab.wait_for_function(
        "word => [...document.querySelectorAll('.markdown p')].at(-1).textContent.includes(word)",
        arg=f"word{num_deltas - 1}",
    )
    texts = await visit.tab.evaluate("[...document.querySelectorAll('.markdown p')].map(each => each.textContent)")
    assert " ".join(texts).split() == "".join(pieces).replace("*", "").split()


async def test_numbers_look_as_the_browser_writes_them(visit: Visit) -> None:
    await visit.enter()
    differing = await visit.tab.evaluate(
        """async () => {
          const { number } = await import("/page/dom.js");
          const theirs = (value, digits) => value.toLocaleString("en", { maximumFractionDigits: digits });
          const values = [0, 1, 9.96, 12.5, 999, 1000, -1234.5, 1234567.891];
          const all = values.flatMap((value) => [0, 1, 2, 4].map((digits) => [value, digits]));
          const pairs = all.map(([value, digits]) => [number(value, digits), theirs(value, digits)]);
          return pairs.filter(([ours, theirs]) => ours !== theirs);
        }"""
    )
    assert differing == []


async def test_the_page_goes_on_when_the_daemon_is_back(visit: Visit, tmp_path: Path, backend: FakeBackend) -> None:
    await visit.enter()
    await visit.say("before")
    await visit.ended(1)
    port = visit.daemon.port
    visit.daemon.stop.request()
    visit.daemon.stop.request()
    await visit.daemon.serving
    await visit.tab.wait_for_selector("#offline:not([hidden])")
    await visit.shot("offline")
    async with running(backend, Config(state_dir=tmp_path), keys=KeyRing(tmp_path), port=port):
        await visit.tab.wait_for_selector("#offline", state="hidden")
        # This daemon keeps responses in memory, so the earlier ones are gone: the page sends what they were.
        await visit.say("after")
        await visit.ended(2)
        asked = backend.requests[-1].prompt
        assert [message.content for message in asked.messages] == ["before", "before", "after"]  # type: ignore[union-attr]
        await visit.tab.goto("about:blank")
    visit.faults = [fault for fault in visit.faults if "ERR_CONNECTION" not in fault and "404" not in fault]
    visit.asked.clear()


async def test_export_and_import(visit: Visit, tmp_path: Path) -> None:
    await visit.enter()
    await visit.say("one")
    await visit.ended(1)
    async with visit.tab.expect_download() as started:
        await visit.tab.click("#export")
    path = tmp_path / "conversation.json"
    await (await started.value).save_as(path)
    exported = json.loads(await asyncio.to_thread(path.read_text))
    assert [turn["output"][0]["content"] for turn in exported["turns"]] == ["one"]
    await visit.tab.click("#new")
    await visit.tab.set_input_files("#file", str(path))
    await visit.ended(1)
    await visit.say("two")
    await visit.ended(2)
    await visit.tab.set_input_files("#file", {"name": "x.json", "mimeType": "application/json", "buffer": b"{}"})
    await visit.tab.wait_for_function("() => document.querySelector('#said').textContent.includes('not imported')")


async def test_a_browser_that_may_only_chat(visit: Visit) -> None:
    made = await visit.daemon.http.post(
        f"{visit.daemon.url}/edgeagent/page/link",
        headers={"authorization": f"Bearer {visit.token}"},
        json={"scopes": ["infer"]},
    )
    await visit.tab.goto(visit.daemon.url + made.json()["path"])
    await visit.tab.wait_for_selector("#message")
    await visit.tab.click("#to-board")
    await visit.tab.wait_for_function(
        "() => document.querySelector('#board').textContent.includes('lacks the scope admin')"
    )
    visit.faults = [fault for fault in visit.faults if "403" not in fault]


async def test_the_owners_token_is_never_in_the_page(visit: Visit, tmp_path: Path) -> None:
    await visit.enter()
    kept = await visit.tab.evaluate("JSON.stringify({...localStorage}) + document.documentElement.outerHTML")
    assert ensure_token(tmp_path) not in kept and "edge_" in kept


async def test_a_choice_in_another_tab_ends_no_answer(visit: Visit, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda request: (Started(3, 0), TextDelta("begun"), gate, TextDelta(" and ended"), finished())
    await visit.enter()
    await visit.say("question")
    await gate.reached.wait()
    other = await visit.tab.context.new_page()
    await other.goto(visit.daemon.url)
    await visit.tab.evaluate("addEventListener('storage', () => (window.isTold = true))")
    await other.evaluate("localStorage.setItem('edgeagent.model', 'fake')")
    await visit.tab.wait_for_function("() => window.isTold")
    gate.opened.set()
    await visit.ended(1)
    assert await visit.tab.inner_text(".markdown") == "begun and ended"


async def test_a_window_that_is_looked_at_again_has_the_conversations_of_the_others(visit: Visit) -> None:
    await visit.enter()
    other = await visit.tab.context.new_page()
    await other.goto(visit.daemon.url)
    await other.wait_for_function("() => document.querySelector('#model').options.length > 0")
    await visit.say("one")
    await visit.ended(1)
    assert await other.query_selector("#list .entry") is None
    await other.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await other.wait_for_selector("#list .entry")


async def test_an_edit_waits_for_the_answer_that_is_made(visit: Visit, backend: FakeBackend) -> None:
    await visit.enter()
    await visit.say("one")
    await visit.ended(1)
    await visit.tab.click("text=Edit")
    gate = Gate()
    backend.script = lambda request: (Started(3, 0), TextDelta("begun"), gate, TextDelta(" and ended"), finished())
    await visit.say("two")
    await gate.reached.wait()
    await visit.tab.fill(".edit textarea", "three")
    await visit.tab.click(".edit button[type=submit]")
    gate.opened.set()
    await visit.tab.wait_for_function("() => document.querySelector('#stop').hidden")
    assert await visit.tab.inner_text(".turn:last-child .markdown") == "begun and ended"
    assert await visit.tab.input_value(".edit textarea") == "three"


async def test_an_answer_that_is_made_is_deleted_with_its_conversation(visit: Visit, backend: FakeBackend) -> None:
    gate = Gate()
    backend.script = lambda request: (Started(3, 0), TextDelta("begun"), gate, finished())
    await visit.enter()
    await visit.say("question")
    await gate.reached.wait()
    visit.tab.once("dialog", lambda dialog: dialog.accept())
    async with visit.tab.expect_response(lambda answer: answer.request.method == "DELETE"):
        await visit.tab.click("#delete")
    listed = await visit.daemon.http.get(
        f"{visit.daemon.url}/edgeagent/conversations", headers={"authorization": f"Bearer {visit.token}"}
    )
    assert listed.json()["data"] == []
    visit.faults = [fault for fault in visit.faults if "Delete this conversation" not in fault]


async def test_what_follows_a_refused_message_is_answered(visit: Visit, backend: FakeBackend) -> None:
    asked: list[list[str]] = []

    def refuse_long(request: GenerateRequest) -> Iterable[Act]:
        said = [message.content for message in request.prompt.messages]  # type: ignore[union-attr]
        if request.prefill_only:
            return [Started(1, 0), finished()]
        asked.append(said)
        if any("long" in text for text in said):
            return [ContextLengthExceeded("too long for the context")]
        return [Started(3, 0), TextDelta("answered"), finished()]

    backend.script = refuse_long
    await visit.enter()
    await visit.say("one")
    await visit.ended(1)
    await visit.say("a long message")
    await visit.ended(2)
    assert "context" in await visit.tab.inner_text(".turn:last-child .notice")
    await visit.say("two")
    await visit.ended(3)
    assert await visit.tab.inner_text(".turn:last-child .markdown") == "answered"
    assert asked[-1] == ["one", "answered", "two"]


async def test_a_malformed_file_leaves_the_conversation(visit: Visit) -> None:
    await visit.enter()
    items = [{"type": "message", "content": 5}, {"type": "reasoning", "content": "a"}, {"type": "message"}, 7]
    items += [{"type": "message", "role": "user", "content": [None]}, {"type": "a_call", "arguments": {"b": 1}}]
    turns = [{"input": items, "output": items}]
    file = {"format": "edgeagent-conversation-1", "turns": turns}
    content = {"name": "x.json", "mimeType": "application/json", "buffer": json.dumps(file).encode()}
    await visit.tab.set_input_files("#file", content)
    await visit.tab.wait_for_selector(".turn")
    assert await visit.tab.inner_text("#said") == ""
    await visit.say("one")
    await visit.tab.wait_for_function("() => document.querySelectorAll('.turn').length === 2")
