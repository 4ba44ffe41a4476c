"""Chat templates in a process of their own: if a job ends it, one request fails, and the next is served."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeagent.errors import InvalidRequest, TemplateTooSlow
from edgeagent.text.template.chat_template import CHATML, ChatTemplate
from edgeagent.text.template.rendered import Rendered
from edgeagent.text.tool_format import THINK
from edgeagent.types import ChatPrompt, Message
from edgeagent.worker.parent.supervision import renderer as parent_side
from edgeagent.worker.parent.supervision import watchdog
from edgeagent.worker.parent.supervision.channel import Channel
from edgeagent.worker.parent.supervision.renderer import RendererProcess
from edgeagent.worker.protocol import FromWorker, ProtocolError, RenderAnswer, RenderJob, framed
from edgeagent.worker.render import renderer as worker_side
from edgeagent.worker.render.protocol import Open, Render, encode
from edgeagent.worker.render.renderer import RemoteTemplate, RenderLink
from tests.local_template import open_here
from tests.worker.support import eventually

# Work in C, which no thread of the same process could end.
SHARED = "{%- set ns = namespace(a=[1], b=[1]) -%}{%- for _ in range(60) -%}{%- set ns.a = [ns.a, ns.a] -%}" + (
    "{%- set ns.b = [ns.b, ns.b] -%}{%- endfor -%}"
)
WORK = {
    "compare": SHARED + "{{ ns.a == ns.b }}",
    "sort": SHARED + "{{ ([ns.a, ns.b] | sort) | length }}",
    "loops": "{%- for _ in range(100000) -%}{%- for _ in range(100000) -%}{%- endfor -%}{%- endfor -%}",
}
WHEN = "{%- if messages[-1].content == 'work' -%}WORK{%- endif -%}{{ messages[-1].content }}"


class Daemon:
    """The daemon's renderer, and the link of a worker to it."""

    def __init__(self) -> None:
        self.renderer = RendererProcess("tiny", self._answer, is_enclosed=True)
        self.link = RenderLink(self._put)
        self._loop = asyncio.get_running_loop()

    def _put(self, frame: FromWorker) -> None:
        assert isinstance(frame, RenderJob)
        self._loop.call_soon_threadsafe(self.renderer.submit, frame)

    def _answer(self, answer: RenderAnswer) -> None:
        self.link.on_answer(answer)

    async def open(self, source: str | None) -> RemoteTemplate:
        opening = Open(source, "<s>", "</s>", "", ("<|im_end|>",), ())
        return await asyncio.to_thread(RemoteTemplate, self.link, opening)

    @property
    def is_working(self) -> bool:
        """Whether the process has a job."""
        reply = self.renderer._reply
        return reply is not None and not reply.done()

    @property
    def process(self) -> psutil.Process:
        """The renderer's process."""
        channel = self.renderer._channel
        assert channel is not None and channel.pid is not None
        return psutil.Process(channel.pid)


@pytest.fixture
async def daemon(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Daemon]:
    monkeypatch.setattr(worker_side, "OPEN_CPU_S", 0.5)
    monkeypatch.setattr(worker_side, "REQUEST_CPU_S", 0.3)
    monkeypatch.setattr(watchdog, "_IDLE_FACTOR", 100.0)  # the limit on elapsed time, which a busy machine exceeds
    daemon = Daemon()
    yield daemon
    await daemon.renderer.stop()


def prompt(*contents: str) -> ChatPrompt:
    return ChatPrompt(tuple(Message("user", content) for content in contents))


async def render(template: RemoteTemplate, conversation: ChatPrompt) -> Rendered:
    """Return another request's conversation, rendered."""
    template.renew()
    return await asyncio.to_thread(template.render, conversation)


async def test_it_is_the_same_template(daemon: Daemon) -> None:
    source = CHATML + "{%- if enable_thinking is not false -%}<think>\n{%- endif -%}"
    there, here = await daemon.open(source), open_here(Open(source, "<s>", "</s>", "", ("<|im_end|>",), ()))
    assert isinstance(here, ChatTemplate)
    # The last one is longer than a frame, and comes in parts.
    for conversation in (prompt("hi"), prompt("an <|im_end|> of mine", "ünï🦊"), prompt("x" * 3_000_000)):
        assert await render(there, conversation) == here.render(conversation)
    assert (await render(there, prompt("hi"))).open_reasoning == THINK
    for name in ("supports_tools", "supports_reasoning", "tool_format"):
        assert getattr(there, name) == getattr(here, name)


async def test_an_error_of_the_template_is_an_error(daemon: Daemon) -> None:
    template = await daemon.open("{{ raise_exception('only users, please') }}")
    with pytest.raises(InvalidRequest, match="only users, please") as caught:
        await render(template, prompt("hi"))
    assert caught.value.param == "input"


async def test_halves_of_characters_are_replaced(daemon: Daemon) -> None:
    template = await daemon.open("{{ '\\ud83e' }}{{ messages[-1].content }}")
    assert (await render(template, prompt("hi"))).text == "?hi"


async def test_a_prompt_or_an_answer_that_is_too_long_is_refused(daemon: Daemon) -> None:
    template = await daemon.open(WHEN.replace("WORK", "{{ 'x' * 20000000 }}"))
    for conversation in (prompt("work"), prompt("x" * (17 << 20))):
        with pytest.raises(InvalidRequest, match="longer than 16 MiB"):
            await render(template, conversation)


@pytest.mark.daily(1, seconds=1)
@pytest.mark.parametrize("work", WORK)
async def test_what_takes_too_long_is_ended_and_the_next_is_served(daemon: Daemon, work: str) -> None:
    template = await daemon.open(WHEN.replace("WORK", WORK[work]))
    with pytest.raises(TemplateTooSlow, match=r"more than .*0\.3 s of CPU time") as caught:
        await render(template, prompt("work"))
    assert caught.value.param == "input"
    assert (await render(template, prompt("hi"))).text == "hi"


def grammar(schema: dict[str, Any]) -> str:
    return json.dumps({"grammars": [{"lark_grammar": "start: @a"}, {"name": "a", "json_schema": schema}]})


def joined(num_patterns: int) -> dict[str, Any]:
    """Return a schema whose work doubles with each pattern. The patterns are joined where no count finds them."""
    members = [{"properties": {"a": {"type": "string", "pattern": f".*{index}x.*"}}} for index in range(num_patterns)]
    return {"type": "object", "allOf": members}


GRAMMARS = {
    "patterns joined": joined(60),
    "pairs of patterns": {"type": "object", "patternProperties": {f"^a{index}[a-z]*$": {} for index in range(2_500)}},
}


@pytest.mark.daily(1, seconds=1)
@pytest.mark.parametrize("name", GRAMMARS)
async def test_a_grammar_that_takes_too_long_is_refused_and_the_next_is_tried(daemon: Daemon, name: str) -> None:
    template = await daemon.open(CHATML)

    def check(schema: dict[str, Any]) -> Awaitable[str]:
        return asyncio.to_thread(template.check_grammar, grammar(schema))

    assert "of CPU time" in await check(GRAMMARS[name])
    assert "of CPU time" in await check({"type": "string"}), "the request's time is used up"
    template.renew()
    assert await check({"type": "string"}) == ""
    assert "look-around" in await check({"type": "string", "pattern": "(?=a)"})
    assert (await render(template, prompt("hi"))).text.endswith("assistant\n")


async def test_all_renderings_of_a_request_share_its_time(daemon: Daemon) -> None:
    template = await daemon.open(WHEN.replace("WORK", "{%- for _ in range(50000) -%}{%- endfor -%}"))

    def render_often() -> None:
        template.renew()
        for _ in range(2000):
            template.render(prompt("work"))

    for _ in range(2):
        assert (await render(template, prompt("work"))).text == "work"
        with pytest.raises(TemplateTooSlow, match=r"0\.3 s of CPU time"):
            await asyncio.to_thread(render_often)
    assert (await render(template, prompt("hi"))).text == "hi"


async def test_a_template_that_cannot_be_tried(daemon: Daemon) -> None:
    with pytest.raises(TemplateTooSlow, match=r"0\.5 s of CPU time"):
        await daemon.open(WORK["compare"])


@pytest.mark.parametrize("work", ["{{ ('x' * 2000000000) | length }}", "{{ [0] * 2000000000 }}"])
@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited on Linux")
async def test_memory_that_is_too_much(daemon: Daemon, work: str) -> None:
    template = await daemon.open(WHEN.replace("WORK", work))
    with pytest.raises(InvalidRequest, match="memory"):
        await render(template, prompt("work"))
    assert (await render(template, prompt("hi"))).text == "hi"


# The kernel limits the address space to little more than an idle renderer has.
SMALL = """
from edgeagent.worker.render import process
process.MAX_RENDERER_BYTES = 4 << 20
process.main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited on Linux")
async def test_a_grammar_that_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_side, "RENDERER_COMMAND", (sys.executable, "-P", "-c", SMALL))
    pairs: list[Any] = [[{"properties": {f"{x}{number}": {}}} for x in "ab"] for number in range(10)]
    schema = {"type": "object", "allOf": [{"anyOf": pair} for pair in pairs]}
    daemon = Daemon()
    template = await daemon.open(CHATML)
    fault = await asyncio.to_thread(template.check_grammar, grammar(schema))
    assert fault == "it takes too much memory, or its process was ended"
    assert await asyncio.to_thread(template.check_grammar, grammar({"type": "string"})) == ""
    await daemon.renderer.stop()


async def test_memory_is_limited_where_the_kernel_does_not_do_it(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_side, "MAX_RENDERER_BYTES", 64 << 20)
    monkeypatch.setattr(worker_side, "REQUEST_CPU_S", 60.0)
    hoard = (
        "{%- set ns = namespace(x=[]) -%}{%- for number in range(1000) -%}"
        "{%- set ns.x = [ns.x, 'x' * (100000 + number)] -%}{%- endfor -%}"
    )
    template = await daemon.open(WHEN.replace("WORK", hoard + WORK["loops"]))
    with pytest.raises(TemplateTooSlow, match="more than 64 MiB of memory"):
        await render(template, prompt("work"))


async def test_one_that_is_ended_while_it_rests(daemon: Daemon) -> None:
    template = await daemon.open("{{ messages[-1].content }}")
    for _ in range(3):
        daemon.process.kill()
        assert (await render(template, prompt("hi"))).text == "hi"


async def test_one_that_is_ended_during_a_job_fails_this_job_only(daemon: Daemon) -> None:
    template = await daemon.open(WHEN.replace("WORK", WORK["loops"]))
    other = template.for_another_thread()
    working = asyncio.create_task(render(template, prompt("work")))
    waiting = asyncio.create_task(render(other, prompt("hi")))
    await eventually(lambda: daemon.is_working)
    daemon.process.kill()
    with pytest.raises(TemplateTooSlow):
        await working
    assert (await waiting).text == "hi"


async def test_a_process_that_is_stopped_delays_no_request_for_ever(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = await daemon.open("{{ messages[-1].content }}")
    daemon.process.suspend()
    with monkeypatch.context() as patch:
        patch.setattr(watchdog, "_IDLE_FACTOR", 3.0)
        with pytest.raises(TemplateTooSlow, match=r"more than 0\.9 s, with less than 0\.3 s of CPU time"):
            await render(template, prompt("hi"))
    assert (await render(template, prompt("hi"))).text == "hi"


async def test_one_that_does_not_start_in_time_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    spawn, channels = Channel.spawn, list[Channel]()

    async def spawn_a_silent_one_first(command: Sequence[str], *rest: Any) -> Channel:
        silent = (sys.executable, "-c", "import sys; sys.stdin.buffer.read()")
        channels.append(await spawn(command if channels else silent, *rest))
        return channels[-1]

    monkeypatch.setattr(Channel, "spawn", spawn_a_silent_one_first)
    daemon = Daemon()
    with monkeypatch.context() as patch:
        patch.setattr(parent_side, "_START_S", 0.1)
        daemon.link.start()
        await eventually(lambda: bool(channels) and channels[0].returncode is not None)
    template = await daemon.open("{{ messages[-1].content }}")
    assert [(await render(template, prompt(each))).text for each in ("one", "two")] == ["one", "two"]
    await daemon.renderer.stop()


async def test_none_outlives_its_worker(daemon: Daemon) -> None:
    template = await daemon.open(WHEN.replace("WORK", WORK["loops"]))
    process = daemon.process
    working = asyncio.create_task(asyncio.to_thread(template.render, prompt("work")))
    await eventually(lambda: daemon.is_working)
    await daemon.renderer.stop()
    assert not process.is_running()
    daemon.link.on_answer(RenderAnswer(2, trouble="nothing"))  # so that the thread ends
    with pytest.raises(TemplateTooSlow):
        await working


ORPHAN = """
from edgeagent.worker.render import process
process._MAX_CPU_S = 0
process.main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no CPU time")
def test_a_job_that_nobody_watches_ends() -> None:
    opening = Open(WORK["loops"], "<s>", "</s>", "", (), ())
    jobs = framed(encode(opening)) + framed(encode(Render(prompt("hi"))))
    ended = subprocess.run([sys.executable, "-P", "-c", ORPHAN], input=jobs, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGXCPU


@pytest.mark.parametrize(("num_jobs", "num_bytes"), [(19, 1), (1, 33 << 20)])
async def test_a_worker_that_sends_too_much_breaks_the_protocol(daemon: Daemon, num_jobs: int, num_bytes: int) -> None:
    with pytest.raises(ProtocolError, match="too many jobs"):
        for number in range(1, num_jobs + 1):
            daemon.renderer.submit(RenderJob(number, 1.0, bytes(num_bytes)))


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
async def test_it_can_do_nothing_else(daemon: Daemon) -> None:
    await daemon.open(None)
    proc = Path(f"/proc/{daemon.process.pid}/status")
    status = await asyncio.to_thread(proc.read_text)
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE) and re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
