"""Chat templates in a separate process: if it dies, one request fails, and the next is served.

These tests check the kernel's limits: the templates do work that the budgets counted in Python do not see.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeagent.errors import InvalidRequest, TemplateTooSlow
from edgeagent.text.template import budget
from edgeagent.text.template.chat_template import CHATML, ChatTemplate
from edgeagent.text.template.rendered import Rendered
from edgeagent.text.tool_format import THINK
from edgeagent.types import ChatPrompt, Message
from edgeagent.worker.render import process as render_process
from edgeagent.worker.render import protocol as render_protocol
from edgeagent.worker.render import renderer
from edgeagent.worker.render.protocol import (
    Frames,
    NotOpen,
    Open,
    decode_from_renderer,
    decode_to_renderer,
    encode,
    framed,
    new_mark,
    send,
)
from edgeagent.worker.render.renderer import RemoteTemplate, open_here, start_renderers
from tests.patience import patient

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="templates run in the worker's own process here")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the address space is bounded on Linux")

# Only the operations below do the work, and nothing else.
SHARED = "{%- set ns = namespace(a=[1], b=[1]) -%}{%- for _ in range(60) -%}{%- set ns.a = [ns.a, ns.a] -%}" + (
    "{%- set ns.b = [ns.b, ns.b] -%}{%- endfor -%}"
)
WORK = {
    "compare": SHARED + "{{ ns.a == ns.b }}",
    "find": SHARED + "{{ ns.a in [ns.b] }}",
    "sort": SHARED + "{{ ([ns.a, ns.b] | sort) | length }}",
    "test": SHARED + "{{ ns.a is eq ns.b }}",
    "index": SHARED + "{{ [ns.a].index(ns.b) }}",
}
WHEN = "{%- if messages[-1].content == 'work' -%}WORK{%- endif -%}"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(render_process, "OPEN_CPU_S", 0.5)
    monkeypatch.setattr(renderer, "REQUEST_CPU_S", 0.2)
    made: list[RemoteTemplate] = []
    before = renderers()

    def open_one(source: str | None) -> RemoteTemplate:
        make = start_renderers(1, is_enclosed=True)
        template = make(Open(0, source, "<s>", "</s>", "", ("<|im_end|>",), ()))
        assert isinstance(template, RemoteTemplate)
        made.append(template)
        return template

    yield open_one
    for template in made:
        with suppress(OSError):  # a test may have closed it
            template.close()
    psutil.wait_procs(
        [each for each in renderers() if each not in before], timeout=patient(10)
    )  # no zombies for other tests


def prompt(*contents: str) -> ChatPrompt:
    return ChatPrompt(tuple(Message("user", content) for content in contents))


def renderers() -> list[psutil.Process]:
    """Return the running keeper and renderer processes."""
    return list(psutil.Process().children(recursive=True))


def render(template: RemoteTemplate, conversation: ChatPrompt) -> Rendered:
    """Return another request's conversation, rendered."""
    template.renew()
    return template.render(conversation)


def test_it_is_the_same_template(opened: Any) -> None:
    source = CHATML + "{%- if enable_thinking is not false -%}<think>\n{%- endif -%}"
    there, here = opened(source), open_here(Open(0, source, "<s>", "</s>", "", ("<|im_end|>",), ()))
    assert isinstance(here, ChatTemplate)
    for conversation in (prompt("hi"), prompt("an <|im_end|> of mine", "ünï🦊"), prompt("x" * 300_000)):
        assert there.render(conversation) == here.render(conversation)
    assert there.render(prompt("hi")).open_reasoning == THINK
    for name in ("supports_tools", "supports_reasoning", "tool_format"):
        assert getattr(there, name) == getattr(here, name)


def test_an_error_of_the_template_is_an_error(opened: Any) -> None:
    template = opened("{{ raise_exception('only users, please') }}")
    with pytest.raises(InvalidRequest, match="only users, please") as caught:
        render(template, prompt("hi"))
    assert caught.value.param == "messages"


def test_halves_of_characters_are_replaced(opened: Any) -> None:
    assert opened("{{ '\\ud83e' }}{{ messages[-1].content }}").render(prompt("hi")).text == "?hi"


@pytest.mark.parametrize("work", WORK)
def test_what_takes_too_long_is_ended_and_the_next_is_served(
    opened: Any, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the count in Python missed this work.
    monkeypatch.setattr(budget, "weigh", lambda _: 0)
    template = opened(WHEN.replace("WORK", WORK[work]) + "{{ messages[-1].content }}")
    for _ in range(2):
        with pytest.raises(TemplateTooSlow, match="CPU time") as caught:
            render(template, prompt("work"))
        assert caught.value.param == "messages"
        assert render(template, prompt("hi")).text == "hi"


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


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_that_takes_too_long_is_refused_and_the_next_is_tried(opened: Any, name: str) -> None:
    template = opened(CHATML)
    assert "of CPU time" in template.check_grammar(grammar(GRAMMARS[name]))
    assert "of CPU time" in template.check_grammar(grammar({"type": "string"})), "the request's time is used up"
    template.renew()
    assert template.check_grammar(grammar({"type": "string"})) == ""
    assert "look-around" in template.check_grammar(grammar({"type": "string", "pattern": "(?=a)"}))
    assert render(template, prompt("hi")).text.endswith("assistant\n")


# In a process of its own: a renderer first uses memory that the process which it came from has freed.
MEMORY = """
import json, sys
from edgeagent.text.template.chat_template import CHATML
from edgeagent.worker.render import process, renderer
from edgeagent.worker.render.protocol import Open
process.MAX_MEMORY_BYTES = 4 << 20
renderer.REQUEST_CPU_S = 3.0
template = renderer.start_renderers(1, is_enclosed=True)(Open(0, CHATML, "<s>", "</s>", "", ("<|im_end|>",), ()))
print(json.dumps([template.check_grammar(each) for each in json.loads(sys.argv[1])]))
template.close()
"""


def test_a_grammar_that_takes_too_much_memory_is_refused() -> None:
    forks: list[dict[str, Any]] = [
        {"anyOf": [{"properties": {f"{x}{index}": {}}} for x in "ab"]} for index in range(10)
    ]
    grammars = [grammar({"type": "object", "allOf": forks}), grammar({"type": "string"})]
    command = [sys.executable, "-c", MEMORY, json.dumps(grammars)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(30), check=True)
    assert json.loads(done.stdout) == ["it takes too much memory", ""]


def test_all_renderings_of_a_request_share_its_time(opened: Any) -> None:
    work = WHEN.replace("WORK", "{%- for _ in range(20000) -%}{%- endfor -%}")
    template = opened(work + "{{ messages[-1].content }}")
    for _ in range(2):
        assert render(template, prompt("work")).text == "work"
        with pytest.raises(TemplateTooSlow, match=r"0\.2 s of CPU time"):
            for _ in range(2000):
                template.render(prompt("work"))
    assert render(template, prompt("hi")).text == "hi"


def test_a_template_that_cannot_be_tried(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "weigh", lambda _: 0)
    before = renderers()
    with pytest.raises(TemplateTooSlow, match="CPU time"):
        opened(WORK["compare"])
    _, alive = psutil.wait_procs([each for each in renderers() if each not in before], timeout=patient(10))
    assert not alive


@LINUX
def test_memory_that_is_too_much(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_MAX_TOTAL_CHARS", 1 << 40)
    monkeypatch.setattr(budget, "_MAX_TEXT_CHARS", 1 << 40)
    template = opened(WHEN.replace("WORK", "{{ ('x' * 2000000000) | length }}") + "{{ messages[-1].content }}")
    with pytest.raises(InvalidRequest, match="memory"):
        render(template, prompt("work"))
    assert render(template, prompt("hi")).text == "hi"


def test_one_that_is_ended_while_it_rests(opened: Any) -> None:
    before = renderers()
    template = opened("{{ messages[-1].content }}")
    keeper, child = sorted(
        (each for each in renderers() if each not in before), key=lambda each: each.ppid() != os.getpid()
    )
    child.send_signal(signal.SIGKILL)
    psutil.wait_procs([child])
    assert render(template, prompt("hi")).text == "hi"
    assert keeper.is_running()


def test_one_that_is_ended_again_and_again_while_it_rests(opened: Any) -> None:
    before = renderers()
    template = opened("{{ messages[-1].content }}")
    (keeper,) = (each for each in renderers() if each not in before and each.ppid() == os.getpid())
    for _ in range(2 * renderer._MAX_TRIES):
        (child,) = keeper.children()
        child.kill()
        psutil.wait_procs([child])
        while not keeper.children():
            pass
    assert render(template, prompt("hi")).text == "hi"


def test_one_that_is_ended_before_it_has_answered(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def send_or_die(descriptor: int, mark: bytes, frame: bytes) -> None:
        if b"die" in frame:
            os.kill(os.getpid(), signal.SIGKILL)
        send(descriptor, mark, frame)

    monkeypatch.setattr(render_process, "send", send_or_die)
    template = opened("{{ messages[-1].content }}")
    with pytest.raises(TemplateTooSlow, match="killed from outside"):
        render(template, prompt("die"))
    assert render(template, prompt("hi")).text == "hi"


@pytest.fixture
def is_first() -> Iterator[Callable[[], bool]]:
    """Return True to the first renderer process that asks; False to all others and to the worker."""
    asked, worker = mmap.mmap(-1, 1), os.getpid()

    def first() -> bool:
        if os.getpid() == worker or asked[0]:
            return False
        asked[0] = 1
        return True

    yield first
    asked.close()


LONG = "die" + "x" * 300_000
"""More than a pipe holds."""


def test_one_that_is_ended_in_the_middle_of_a_question(
    opened: Any, monkeypatch: pytest.MonkeyPatch, is_first: Callable[[], bool]
) -> None:
    read = os.read

    def read_or_die(descriptor: int, num_bytes: int) -> bytes:
        part = read(descriptor, num_bytes)
        if b"die" in part and is_first():
            os.kill(os.getpid(), signal.SIGKILL)
        return part

    monkeypatch.setattr(os, "read", read_or_die)
    template = opened("{{ messages[-1].content }}")
    assert render(template, prompt(LONG)).text == LONG
    assert render(template, prompt("hi")).text == "hi"


def test_one_that_is_ended_in_the_middle_of_an_answer(
    opened: Any, monkeypatch: pytest.MonkeyPatch, is_first: Callable[[], bool]
) -> None:
    write = os.write

    def write_or_die(descriptor: int, content: Any) -> int:
        if len(content) > 1000 and is_first():
            write(descriptor, bytes(content[:1000]))
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", write_or_die)
    template = opened("{{ messages[-1].content }}")
    with pytest.raises(TemplateTooSlow, match="killed from outside"):
        render(template, prompt(LONG))
    assert render(template, prompt(LONG)).text == LONG


@pytest.mark.parametrize("end", ["killed", "out of memory"])
def test_one_that_is_ended_before_it_has_begun(
    opened: Any, monkeypatch: pytest.MonkeyPatch, is_first: Callable[[], bool], end: str
) -> None:
    def decode_or_die(body: bytes) -> Any:
        if b"die" in body and is_first():
            if end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise MemoryError
        return decode_to_renderer(body)

    monkeypatch.setattr(render_process, "decode_to_renderer", decode_or_die)
    template = opened("{{ messages[-1].content }}")
    assert render(template, prompt(LONG)).text == LONG


def test_one_that_always_fails_is_an_error(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode_or_fail(body: bytes) -> Any:
        if b"die" in body:
            raise MemoryError
        return decode_to_renderer(body)

    monkeypatch.setattr(render_process, "decode_to_renderer", decode_or_fail)
    template = opened("{{ messages[-1].content }}")
    for _ in range(2):
        with pytest.raises(TemplateTooSlow, match="MiB"):
            render(template, prompt("die"))
        assert render(template, prompt("hi")).text == "hi"


@pytest.mark.parametrize("num_bytes", [1, 7, 1 << 20])
def test_frames_without_a_beginning_or_an_end_are_skipped(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    monkeypatch.setattr(render_protocol, "_READ_BYTES", num_bytes)
    mark = new_mark()
    frames = [framed(encode(NotOpen(number)), mark) for number in range(5)]
    reads, writes = os.pipe()
    cut = [frame[: -1 - index * 9] for index, frame in enumerate(frames)]
    os.write(writes, frames[0][5:] + frames[1] + b"".join(cut) + frames[3] + mark + frames[1] + mark[:9])
    os.close(writes)
    received = Frames(reads, mark)
    assert [decode_from_renderer(received.receive() or b"").number for _ in range(3)] == [1, 3, 1]
    assert received.receive() is None
    os.close(reads)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_who_kills_the_keeper_has_killed_the_worker(opened: Any, number: int) -> None:
    worker = os.fork()
    if worker == 0:
        with suppress(BaseException):
            template = opened("{{ messages[-1].content }}")
            (keeper,) = psutil.Process().children()
            keeper.send_signal(number)
            while True:  # the renderer lives a moment longer
                render(template, prompt("hi"))
        os._exit(0)
    _, status = os.waitpid(worker, 0)
    assert os.waitstatus_to_exitcode(status) == (1 if number == signal.SIGSEGV else -number)


def test_none_outlives_its_worker(opened: Any) -> None:
    before = renderers()
    template = opened(None)
    mine = [each for each in renderers() if each not in before]
    assert len(mine) == 2
    template.close()
    gone, alive = psutil.wait_procs(mine, timeout=patient(10))
    assert not alive and len(gone) == 2


@LINUX
def test_it_can_do_nothing_else() -> None:
    """A renderer has the worker's sandbox, and cannot even read the model's files."""
    before = renderers()
    make = start_renderers(1, is_enclosed=True)
    template = make(Open(0, None, "", "", "", (), ()))
    assert isinstance(template, RemoteTemplate)
    mine = [each for each in renderers() if each not in before]
    (child,) = [each for each in mine if not each.children()]
    status = Path(f"/proc/{child.pid}/status").read_text(encoding="ascii")
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE) and re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    template.close()
    _, alive = psutil.wait_procs(mine, timeout=patient(10))
    assert not alive


def test_without_processes_it_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert start_renderers(2, is_enclosed=True) is open_here
