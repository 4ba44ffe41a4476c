"""The worker's side of the separate process that runs a model's chat template, and first compiles clients' grammars.

A rendering or a grammar that takes too long, or kills its process, fails only its own request.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import NoReturn, Protocol

import msgspec

from edgeagent.errors import InternalError, InvalidRequest, TemplateTooSlow, from_code
from edgeagent.text.grammar.compiler import grammar_fault
from edgeagent.text.template.chat_template import ChatTemplate
from edgeagent.text.template.rendered import Rendered
from edgeagent.text.tool_format import ToolFormat
from edgeagent.types import ChatPrompt
from edgeagent.worker.exit_cause import is_from_outside
from edgeagent.worker.render.process import MAX_MEMORY_BYTES, OPEN_CPU_S, Pipes, keep
from edgeagent.worker.render.protocol import (
    Check,
    Checked,
    Done,
    Ended,
    Frames,
    FromRenderer,
    NotOpen,
    Open,
    Opened,
    Render,
    RenderFailed,
    ToRenderer,
    decode_from_renderer,
    encode,
    new_mark,
    send,
)


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

    def renew(self) -> None:
        """Start a new budget of CPU time, which all renderings and grammars of one request share."""
        ...


class Renderer(Template, Protocol):
    """A chat template that also tries grammars, within the same limits."""

    def check_grammar(self, grammar: str) -> str:
        """Return why a grammar cannot be compiled, or not within the limits of time and memory; empty if it can."""
        ...


# CPU time for all renderings of one request. A conversation to be truncated is rendered again for each length tried.
REQUEST_CPU_S = 3.0
# CPU time for one grammar. The largest of real clients take 0.1 s.
GRAMMAR_CPU_S = 1.0
# The least CPU time for a rendering. With less, even a short rendering could exceed the limit and end its process.
_LEAST_CPU_S = 0.05
# How often a message is sent, at most. It is sent again if the process ended before or after its work on the message,
# since the message is not the cause then.
_MAX_TRIES = 4
_END_TRIES, _END_WAIT_S = 20, 0.01

MakeTemplate = Callable[[Open], Renderer]


class _LocalTemplate(ChatTemplate):
    """A template in this process. Nothing here limits the CPU time of grammars."""

    def check_grammar(self, grammar: str) -> str:
        """Return why a grammar cannot be compiled; empty if it can."""
        return grammar_fault(grammar)


def open_here(opening: Open) -> Renderer:
    """Return a template that runs in this process; for platforms without fork."""
    return _LocalTemplate(
        opening.source,
        bos_text=opening.bos_text,
        eos_text=opening.eos_text,
        architecture=opening.architecture,
        control_texts=opening.control_texts,
        marker_texts=opening.marker_texts,
    )


def start_renderers(num_templates: int, *, is_enclosed: bool) -> MakeTemplate:
    """Start a process for each of `num_templates` templates. Return a function that opens a template.

    The returned function may be called `num_templates` times. Call `start_renderers` while this process has one thread
    and is not in a sandbox. With `is_enclosed`, each new process enters the sandbox. On Windows, which cannot fork,
    templates run in this process, limited only by their own budgets.
    """
    if not hasattr(os, "fork"):
        return open_here
    requests = [os.pipe() for _ in range(num_templates)]
    answers = [os.pipe() for _ in range(num_templates)]
    mark = new_mark()
    sys.stderr.flush()
    keeper = os.fork()
    if keeper == 0:
        theirs = [(request[0], answer[1]) for request, answer in zip(requests, answers, strict=True)]
        keep(theirs, mark, is_enclosed=is_enclosed)
    ours: list[Pipes] = []
    for request, answer in zip(requests, answers, strict=True):
        os.close(request[0])
        os.close(answer[1])
        ours.append((answer[0], request[1]))
    free = iter(ours)
    return lambda opening: RemoteTemplate(next(free), mark, opening, keeper)


class RemoteTemplate:
    """A template in another process. If that process has ended, the template is opened again in the next one."""

    def __init__(self, pipes: Pipes, mark: bytes, opening: Open, keeper: int) -> None:
        """Open the template; raise TemplateTooSlow or another InvalidRequest if opening it exceeds its limits.

        `keeper` is the process id of the child that starts the renderers.
        """
        self._keeper = keeper
        self._reads, self._writes = pipes
        self._mark = mark
        self._frames = Frames(self._reads, mark)
        self._num_ended = 0
        self._numbers = count(1)
        self._opening = opening
        self._left_s = REQUEST_CPU_S
        try:
            self._opened = self._open()
        except InvalidRequest:
            self.close()
            raise

    @property
    def supports_tools(self) -> bool:
        """Whether the template itself renders tools, calls and results."""
        return self._opened.supports_tools

    @property
    def supports_reasoning(self) -> bool:
        """Whether the model may reason: the template reacts to `enable_thinking`, or renders past reasoning."""
        return self._opened.supports_reasoning

    @property
    def tool_format(self) -> ToolFormat:
        """The format in which the model writes tool calls."""
        return self._opened.tool_format

    def render(self, prompt: ChatPrompt) -> Rendered:
        """Return a rendered conversation; raise InvalidRequest if the template refuses it.

        Raise TemplateTooSlow if the request's CPU time is used up, or if the process was ended.
        """
        for _ in range(_MAX_TRIES):
            if self._left_s < _LEAST_CPU_S:
                raise _too_slow(signal.SIGPROF, REQUEST_CPU_S)
            try:
                answer = self._ask(Render(next(self._numbers), prompt, self._num_ended, self._left_s))
            except _EndedError as error:
                self._left_s = 0.0 if error.signal == signal.SIGPROF else self._left_s
                raise _too_slow(error.signal, REQUEST_CPU_S) from None
            if isinstance(answer, Done):
                self._left_s -= answer.cpu_s
                return answer.rendered
            if not isinstance(answer, NotOpen):
                raise InternalError(f"the chat template's process answered a prompt with {type(answer).__name__}")
            self._open()
        raise _too_slow(signal.SIGKILL, REQUEST_CPU_S)

    def check_grammar(self, grammar: str) -> str:
        """Return why a grammar cannot be compiled, also if it exceeds the limits of time or memory; empty if it can."""
        for _ in range(_MAX_TRIES):
            cpu_s = min(GRAMMAR_CPU_S, self._left_s)
            if cpu_s < _LEAST_CPU_S:
                return f"the schemas of this request take more than {REQUEST_CPU_S:g} s of CPU time"
            try:
                answer = self._ask(Check(next(self._numbers), grammar, self._num_ended, cpu_s))
            except _EndedError as error:
                is_late = error.signal == signal.SIGPROF
                self._left_s -= cpu_s if is_late else 0.0
                return f"it takes more than {cpu_s:.2g} s of CPU time" if is_late else "it takes too much memory"
            if isinstance(answer, Checked):
                self._left_s -= answer.cpu_s
                return answer.fault
        return "the process that compiles it was ended again and again"

    def renew(self) -> None:
        """Give the next renderings and grammars a new budget of CPU time, which those of one request share."""
        self._left_s = REQUEST_CPU_S

    def close(self) -> None:
        """Close the pipes, which ends the process. No method may be called after this."""
        os.close(self._writes)
        os.close(self._reads)
        self._writes = self._reads = -1

    def _open(self) -> Opened:
        for _ in range(_MAX_TRIES):
            number = next(self._numbers)
            opening = msgspec.structs.replace(self._opening, number=number, num_ended=self._num_ended)
            try:
                answer = self._ask(opening)
            except _EndedError as error:
                raise _too_slow(error.signal, OPEN_CPU_S) from None
            if isinstance(answer, Opened):
                return answer
            if not isinstance(answer, NotOpen):
                raise InternalError(f"the chat template's process answered a template with {type(answer).__name__}")
        raise _too_slow(signal.SIGKILL, OPEN_CPU_S)

    def _count_ends(self) -> None:
        """Count the processes that ended since the last message. Without this, the next answer would be NotOpen."""
        while (body := self._frames.receive_now()) is not None:
            self._num_ended += isinstance(decode_from_renderer(body), Ended)

    def _ask(self, message: ToRenderer) -> FromRenderer:
        """Send a message and return the answer; NotOpen if the message must be sent again because a process ended.

        Raise the error of a RenderFailed. Raise _EndedError if the process ended during its work on this message.
        """
        try:
            self._count_ends()
            send(self._writes, self._mark, encode(message))
            while True:
                body = self._frames.receive()
                if body is None:
                    _fail("it has ended", self._keeper)
                answer = decode_from_renderer(body)
                self._num_ended += isinstance(answer, Ended)
                # Skip an answer with another number: it belongs to an earlier message that was given up.
                if answer.number == message.number or isinstance(answer, Ended):
                    break
        except (OSError, msgspec.MsgspecError) as error:
            _fail(str(error), self._keeper)
        match answer:
            case Ended(number=busy_with) if busy_with != message.number:
                # The process may have been idle, or may have just read or answered this message.
                return NotOpen(message.number)
            case Ended(signal=number):
                raise _EndedError(number)
            case RenderFailed(code=code, message=text, param=param, cpu_s=spent_s):
                self._left_s -= spent_s
                raise from_code(code, text, param=param)
        return answer


class _EndedError(Exception):
    """The process ended during its work on a message, by this signal; 0 if it exited by itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


def _too_slow(number: int, cpu_s: float) -> InvalidRequest:
    if number == signal.SIGPROF:
        why = f"took more than {cpu_s:g} s of CPU time"
    elif number == signal.SIGKILL:
        why = f"was killed from outside; did it take more than {MAX_MEMORY_BYTES >> 20} MiB?"
    elif not number:
        why = f"failed in its process; did it take more than {MAX_MEMORY_BYTES >> 20} MiB?"
    else:
        why = f"ended its process by signal {number}"
    return TemplateTooSlow(
        f"the model's chat template {why}. Send a shorter conversation, use another model, or send a prompt's raw text "
        "(/v1/completions)",
        param="messages",
    )


def _fail(why: str, keeper: int) -> NoReturn:
    """End the worker, which is useless without its renderer. The next worker continues its streams.

    The sandbox does not allow starting a new keeper process. If a signal from outside killed the keeper, the worker
    ends by the same signal, so that the daemon does not count a crash: a keeper runs no code of the model.
    """
    sys.stderr.write(f"edgeagent worker: the chat template's process is gone: {why}\n")
    sys.stderr.flush()
    returncode = _wait_ended(keeper)
    if returncode is not None and is_from_outside(returncode):
        os.kill(os.getpid(), -returncode)
    os._exit(1)


def _wait_ended(child: int) -> int | None:
    """Return a child's exit code; None if it is still running after 0.2 s, or if there is no such child.

    The child's pipes may end a moment before the process does.
    """
    for _ in range(_END_TRIES):
        try:
            pid, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_END_WAIT_S)
    return None
