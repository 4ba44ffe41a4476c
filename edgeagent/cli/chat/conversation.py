"""A conversation in the terminal: it reads prompts, streams answers, and cancels them on Ctrl-C.

It depends on the client only, not on the daemon.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TextIO

from edgeagent.cli.chat.line_reader import LineReader
from edgeagent.cli.chat.stages import stage_table
from edgeagent.cli.chat.status_line import StatusLine
from edgeagent.cli.chat.word_wrap import WordWrap
from edgeagent.cli.display import complain
from edgeagent.client import Answer, Client, Event
from edgeagent.errors import EdgeAgentError

HELP = '''\
/timings   where the time of the last answer went
/clear     forget the conversation
/help      this
/exit      leave (also Ctrl-D)
"""        begins and ends a question of several lines
Ctrl-C     cancels an answer, or clears the line'''
HINT = "(Ctrl-C again or Ctrl-D leaves)"
REMOTE = "remote:"
QUIET_S = 1.0
"""After this many seconds without an event, the chat asks the daemon for the reason."""
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
# Control characters that a terminal executes. An answer could use them to change the terminal's title, the clipboard or
# earlier lines.
_CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
_CONTROLS[ord("\r")] = ""  # mostly a part of a line end


class Chat:
    """One conversation.

    The event loop runs only during an answer, so that input() and Ctrl-C behave as in any terminal program. If the
    daemon closes the connection between answers, the client reopens it.

    `fields` of the constructor are sent with every request: model, instructions, temperature and others. `wait_reason`
    is called in a thread. It returns what an answer is waiting for, such as "builtin: loading 40%", or "" if no reason
    is known. The reason is shown only on a terminal.
    """

    def __init__(
        self,
        client: Client,
        runner: asyncio.Runner,
        fields: Mapping[str, Any],
        wait_reason: Callable[[], str] = lambda: "",
    ) -> None:
        self._wait_reason = wait_reason
        self._client = client
        self._runner = runner
        self._fields = fields
        self._last_id: str | None = None
        self._last_answer: Answer | None = None

    def answer(self, prompt: str, output: TextIO | None) -> Answer:
        """Send a question and return the answer. If `output` is given, write the answer to it as it arrives.

        After a Ctrl-C, the status of the answer is "cancelled". Raise KeyboardInterrupt for a second Ctrl-C. Raise
        EdgeAgentError if the daemon does not answer or the response fails.
        """
        answer = self._runner.run(self._stream(prompt, output))
        self._last_answer = answer
        # A cancelled answer is not part of the conversation. The next question follows the last complete answer.
        if answer.status in ("completed", "incomplete") and answer.response_id:
            self._last_id = answer.response_id
        return answer

    def repl(self, reader: LineReader) -> None:
        """Read prompts and answer them until the user leaves with /exit, /quit, /bye, Ctrl-D or Ctrl-C.

        Ctrl-C leaves only if it directly follows another Ctrl-C or a cancelled answer.
        """
        is_hinted = False
        while True:
            try:
                prompt = reader.read()
            except EOFError:
                print()  # noqa: T201
                return
            except KeyboardInterrupt:
                print("" if is_hinted else HINT)  # noqa: T201
                if is_hinted:
                    return
                is_hinted = True
                continue
            is_hinted = False
            if prompt in ("/exit", "/quit", "/bye"):
                return
            if prompt.startswith("/"):
                print(self._command(prompt))  # noqa: T201
            elif prompt:
                is_hinted = self._turn(prompt)

    def _turn(self, prompt: str) -> bool:
        """Answer a question. Return whether Ctrl-C cancelled the answer, so that one more Ctrl-C leaves the chat."""
        try:
            answer = self.answer(prompt, sys.stdout)
        except EdgeAgentError as error:
            complain(error.message)
            return False
        match answer.status:
            case "cancelled":
                print("(cancelled; Ctrl-C again leaves)\n")  # noqa: T201
            case "incomplete":
                print("(cut off at the token limit)\n")  # noqa: T201
            case _:
                print()  # noqa: T201
        return answer.status == "cancelled"

    def _command(self, command: str) -> str:
        match command:
            case "/timings":
                return stage_table({"last": self._last_answer}) if self._last_answer else "Nothing was answered yet."
            case "/clear":
                self._last_id = self._last_answer = None
                return "Forgotten."
            case "/help" | "/?":
                return HELP
            case _:
                return f"There is no command {command}.\n{HELP}"

    async def _stream(self, prompt: str, output: TextIO | None) -> Answer:
        reply = self._client.respond(prompt, previous_response_id=self._last_id, **self._fields)
        printer = _Printer(output)
        try:
            async with self._explained(printer):
                async for event in reply:
                    printer.show(event)
        except asyncio.CancelledError:
            # asyncio.Runner raises this at the first Ctrl-C. A second one raises KeyboardInterrupt and ends the chat.
            await reply.cancel()
            reply.answer.status = "cancelled"
        printer.finish()
        if output is not None and (place := _remote(reply.answer)):
            print(place, file=sys.stderr)  # noqa: T201
        return reply.answer

    @asynccontextmanager
    async def _explained(self, printer: _Printer) -> AsyncIterator[None]:
        """While this context is active, show the reason for the wait after each QUIET_S without an event.

        Do nothing if stderr is not a terminal.
        """
        if not printer.status_line.is_visible:
            yield
            return
        watch = asyncio.create_task(self._explain(printer))
        try:
            yield
        finally:
            watch.cancel()
            printer.show_wait_reason("")

    async def _explain(self, printer: _Printer) -> None:
        while True:
            num_events = printer.num_events
            await asyncio.sleep(QUIET_S)
            if printer.num_events == num_events:
                reason = await asyncio.to_thread(self._wait_reason)
                if printer.num_events == num_events:
                    printer.show_wait_reason(reason)


def _remote(answer: Answer) -> str:
    """Return a note with the name of the remote that answered, and the reason; empty if no remote answered."""
    served_by, reason = answer.edgeagent.get("route", ""), answer.edgeagent.get("reason", "")
    name = str(served_by).removeprefix(REMOTE)
    return "" if name == served_by else f"(answered by {name}: {reason})"


class _Printer:
    """Writes the text of an answer as it arrives. On a terminal, lines end between words.

    Reasoning is dim, and is shown only on a terminal. A dumb terminal gets neither escape sequences nor added lines.
    """

    def __init__(self, output: TextIO | None) -> None:
        self._output = output
        self._is_terminal = output is not None and output.isatty()
        self._is_dumb = os.environ.get("TERM") == "dumb"
        self._wrap = WordWrap()
        self._is_dim = False
        self._wrote = False
        self._is_in_line = False
        self.num_events = 0
        self.status_line = StatusLine()

    def show_wait_reason(self, reason: str) -> None:
        """Show the reason for the wait below the answer so far. An empty text removes the reason shown before."""
        if reason and self._is_in_line and self._is_terminal:
            self._write("\n", dim=False)
        self.status_line.show(reason)

    def show(self, event: Event) -> None:
        self.num_events += 1
        self.status_line.show("")
        match event["type"]:
            case "response.output_text.delta":
                self._write(event["delta"], dim=False)
            case "response.reasoning_text.delta" if self._is_terminal:
                self._write(event["delta"], dim=True)

    def finish(self) -> None:
        if self._wrote:
            self._write("\n", dim=False)

    def _write(self, text: str, *, dim: bool) -> None:
        if self._output is None:
            return
        if dim != self._is_dim:
            begin, end = ("", "") if self._is_dumb else (DIM, PLAIN)
            self._output.write(begin if dim else f"{end}\n")
            self._is_dim, self._wrap = dim, WordWrap()
        self._output.write(self._shown(text) if self._is_terminal else text)
        self._output.flush()
        self._wrote = True
        self._is_in_line = not text.endswith("\n")

    def _shown(self, text: str) -> str:
        """Return what a terminal may be sent to show a text."""
        text = text.translate(_CONTROLS)
        return text if self._is_dumb else self._wrap.wrap(text, shutil.get_terminal_size().columns)
