"""The worker's side of the renderer, the process that runs a model's chat template and first compiles grammars.

A rendering or a grammar that takes too long, or ends its process, fails only its own request.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from queue import SimpleQueue
from typing import Protocol

from edgeagent.errors import InternalError, InvalidRequest, TemplateTooSlow, from_code
from edgeagent.text.template.rendered import Rendered
from edgeagent.text.tool_format import ToolFormat
from edgeagent.types import ChatPrompt, replace
from edgeagent.worker.protocol import FromWorker, RenderAnswer, RenderJob
from edgeagent.worker.render.protocol import (
    Answer,
    Check,
    Checked,
    Done,
    Job,
    Open,
    Opened,
    Refused,
    Render,
    decode_answer,
    encode,
)

# CPU time for compiling a template and finding out what it supports.
OPEN_CPU_S = 5.0
# CPU time for all renderings of one request. A conversation to be truncated is rendered again for each length tried.
REQUEST_CPU_S = 3.0
# CPU time for one grammar. The largest of real clients take 0.1 s.
GRAMMAR_CPU_S = 1.0
# The least CPU time for a job. With less, even a short one could exceed the limit and end its process.
_LEAST_CPU_S = 0.05
# How often a template is opened for one rendering, at most. It must be opened again if the process ended meanwhile.
_MAX_TRIES = 4
_PART_BYTES = 512 << 10
# A conversation with more bytes fits into no model's context.
_MAX_JOB_BYTES = 16 << 20


class Template(Protocol):
    """A chat template, which renders conversations. Only one thread may use it."""

    @property
    def supports_tools(self) -> bool: ...

    @property
    def supports_reasoning(self) -> bool: ...

    @property
    def tool_format(self) -> ToolFormat: ...

    def render(self, prompt: ChatPrompt) -> Rendered:
        """Return a rendered conversation; raise InvalidRequest if the template refuses it or exceeds a limit."""
        ...


class Renderer(Template, Protocol):
    """A chat template that also tries grammars, within the same limits."""

    def check_grammar(self, grammar: str) -> str:
        """Return why a grammar cannot be compiled, or not within the limits of time and memory; empty if it can."""
        ...

    def renew(self) -> None:
        """Start a new budget of CPU time, which all renderings and grammars of one request share."""
        ...

    def for_another_thread(self) -> Renderer:
        """Return the same template with a budget of its own, for another thread."""
        ...


MakeTemplate = Callable[[Open], Renderer]


class _EndedError(Exception):
    """The process ended during a job. The text says what the job took, such as "more than 1 s of CPU time"."""


class RenderLink:
    """Sends jobs to the renderer through the daemon. Several threads may use it."""

    def __init__(self, put: Callable[[FromWorker], None]) -> None:
        """`put` sends a frame to the daemon; any thread may call it."""
        self._put = put
        self._numbers = count(1)
        self._waiting: dict[int, SimpleQueue[RenderAnswer]] = {}

    def start(self) -> None:
        """Start the process before the first job needs it."""
        self._put(RenderJob(0, 0.0))

    def ask(self, job: Job, cpu_s: float) -> Answer:
        """Send a job and wait for its answer; raise _EndedError if the process ended during the job."""
        body = encode(job)
        if len(body) > _MAX_JOB_BYTES:
            raise InvalidRequest(f"the conversation is longer than {_MAX_JOB_BYTES >> 20} MiB", param="input")
        number = next(self._numbers)
        answered = self._waiting[number] = SimpleQueue()
        for start in range(0, len(body), _PART_BYTES):
            end = start + _PART_BYTES
            self._put(RenderJob(number, cpu_s, body[start:end], is_last=end >= len(body)))
        answer = answered.get()
        if answer.trouble:
            raise _EndedError(answer.trouble)
        return decode_answer(answer.body)

    def on_answer(self, answer: RenderAnswer) -> None:
        """Pass on an answer from the daemon to the thread that waits for it."""
        if (answered := self._waiting.pop(answer.number, None)) is not None:
            answered.put(answer)


class RemoteTemplate:
    """A template in the renderer. If that process has ended, the template is opened again in the next one."""

    def __init__(self, link: RenderLink, opening: Open, opened: Opened | None = None) -> None:
        """Raise TemplateTooSlow or another InvalidRequest if opening the template exceeds its limits."""
        self._link = link
        self._opening = opening
        self._left_s = REQUEST_CPU_S
        self._opened = opened or self._open()

    @property
    def supports_tools(self) -> bool:
        return self._opened.supports_tools

    @property
    def supports_reasoning(self) -> bool:
        return self._opened.supports_reasoning

    @property
    def tool_format(self) -> ToolFormat:
        return self._opened.tool_format

    def render(self, prompt: ChatPrompt) -> Rendered:
        """Return a rendered conversation; raise InvalidRequest if the template refuses it.

        Raise TemplateTooSlow if the request's CPU time is used up, or if the process was ended.
        """
        for _ in range(_MAX_TRIES):
            if self._left_s < _LEAST_CPU_S:
                raise _too_slow(f"more than {REQUEST_CPU_S:g} s of CPU time")
            try:
                outcome = self._ask(Render(replace(prompt, media=())), self._left_s)
            except _EndedError as error:
                raise _too_slow(str(error)) from None
            if isinstance(outcome, Done):
                text = "".join(text for text, _ in outcome.pieces)
                return Rendered(text, outcome.pieces, outcome.open_reasoning, outcome.media_marks)
            self._open()
        raise _too_slow("several processes, which were ended")

    def check_grammar(self, grammar: str) -> str:
        cpu_s = min(GRAMMAR_CPU_S, self._left_s)
        if cpu_s < _LEAST_CPU_S:
            return f"the schemas of this request take more than {REQUEST_CPU_S:g} s of CPU time"
        try:
            outcome = self._ask(Check(grammar), cpu_s)
        except _EndedError as error:
            return f"it takes {error}"
        assert isinstance(outcome, Checked)
        return outcome.fault

    def renew(self) -> None:
        self._left_s = REQUEST_CPU_S

    def for_another_thread(self) -> RemoteTemplate:
        return RemoteTemplate(self._link, self._opening, self._opened)

    def _open(self) -> Opened:
        try:
            outcome = self._link.ask(self._opening, OPEN_CPU_S).outcome
        except _EndedError as error:
            raise _too_slow(str(error)) from None
        if isinstance(outcome, Opened):
            return outcome
        raise _refusal(outcome)

    def _ask(self, job: Job, cpu_s: float) -> object:
        try:
            answer = self._link.ask(job, cpu_s)
        except _EndedError:
            self._left_s -= cpu_s
            raise
        self._left_s -= answer.cpu_s
        if isinstance(answer.outcome, Refused):
            raise _refusal(answer.outcome)
        return answer.outcome


def _refusal(outcome: object) -> Exception:
    if isinstance(outcome, Refused):
        return from_code(outcome.code, outcome.message, param=outcome.param)
    return InternalError(f"the chat template's process answered with {type(outcome).__name__}")


def _too_slow(what: str) -> InvalidRequest:
    return TemplateTooSlow(
        f"the model's chat template takes {what}. Send a shorter conversation, use another model, or send a prompt's "
        "raw text (/v1/completions)",
        param="input",
    )
