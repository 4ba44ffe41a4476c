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

from rich.cells import cell_len

from edgeagent.cli.display import aligned, complain
from edgeagent.cli.line_reader import LineReader
from edgeagent.cli.progress import StatusLine
from edgeagent.client import Answer, Client, Event
from edgeagent.errors import EdgeAgentError

STAGES = {
    "queue": "waiting for its turn",
    "load": "waiting for the model",
    "render": "template and tokenizer",
    "cache": "prefix cache lookup",
    "prefill": "computing the prompt",
    "first_token": "until the first token",
    "decode": "first to last token",
    "delivery": "engine to client, mean",
}


def stage_table(answers: Mapping[str, Answer]) -> str:
    """Return a table of the milliseconds in each stage, the tokens and the speed, with one column for each answer.

    `answers` maps the title of each column to its answer.
    """
    columns = list(answers.values())
    rows = [["milliseconds", *answers]]
    for stage, meaning in STAGES.items():
        rows.append([meaning, *(_milliseconds(answer, stage) for answer in columns)])
    rows.append(["tokens: prompt (cached) + output", *(_tokens(answer) for answer in columns)])
    rows.append(["tokens per second", *(f"{answer.timings.get('predicted_per_second', 0):.1f}" for answer in columns)])
    if any(answer.timings.get("draft_n") for answer in columns):
        rows.append(["draft tokens accepted", *(_accepted(answer) for answer in columns)])
    return aligned(rows)


def _milliseconds(answer: Answer, stage: str) -> str:
    value = (answer.edgeagent.get("stages_ms") or {}).get(stage)
    return "-" if value is None else f"{value:.1f}"


def _tokens(answer: Answer) -> str:
    cached = (answer.usage.get("input_tokens_details") or {}).get("cached_tokens", 0)
    return f"{answer.usage.get('input_tokens', 0)} ({cached}) + {answer.usage.get('output_tokens', 0)}"


def _accepted(answer: Answer) -> str:
    drafted = answer.timings.get("draft_n", 0)
    return f"{answer.timings.get('draft_n_accepted', 0)} of {drafted}" if drafted else "-"


_FENCES = ("```", "~~~")
_TAB_COLUMNS = 8
_CLEAR_LINE = "\x1b[K"  # from the cursor on


class WordWrap:
    """Wraps one text that arrives in pieces. The text starts at the left edge of the terminal.

    Each piece is shown at once: a word that turns out too long for its line is erased and moves to the next line. Three
    things stay intact, so only the terminal breaks them: a word longer than a line, code between backticks, and the
    lines of a fenced code block. A wide character, as in Chinese, begins a word of its own.
    """

    def __init__(self) -> None:
        self._output: list[str] = []
        self._column = 0
        # The word at the end of the text: the part that is shown, the part that is not, and the columns of both.
        self._shown = self._unshown = ""
        self._num_word_columns = 0
        self._line_start = ""  # the first characters of the line, without leading blanks
        self._is_block = self._is_span = False

    def wrap(self, text: str, num_columns: int) -> str:
        """Return what to write to a terminal of this width to show the next piece of the text."""
        self._output = []
        for char in text:
            self._add(char, num_columns)
        self._show_word()
        return "".join(self._output)

    def _add(self, char: str, num_columns: int) -> None:
        if char == "\n":
            self._end_line()
            return
        if len(self._line_start) < len(_FENCES[0]) and (self._line_start or not char.isspace()):
            self._line_start += char
        if self._is_block:
            self._output.append(char)
        elif char in " \t" and not self._is_span:
            self._end_word()
            self._add_blank(char, num_columns)
        else:
            self._add_to_word(char, num_columns)

    def _end_line(self) -> None:
        self._end_word()
        self._output.append("\n")
        if self._line_start in _FENCES:
            self._is_block = not self._is_block
        self._column, self._line_start, self._is_span = 0, "", False

    def _show_word(self) -> None:
        self._output.append(self._unshown)
        self._shown += self._unshown
        self._unshown = ""

    def _end_word(self) -> None:
        self._show_word()
        self._shown, self._num_word_columns = "", 0

    def _add_blank(self, char: str, num_columns: int) -> None:
        """Add a blank. At the end of a full line it is left out."""
        if self._column < num_columns - 1:
            self._output.append(char)
            width = 1 if char == " " else _TAB_COLUMNS - self._column % _TAB_COLUMNS
            self._column = min(self._column + width, num_columns - 1)

    def _add_to_word(self, char: str, num_columns: int) -> None:
        if char == "`":
            self._is_span = not self._is_span
        width = cell_len(char)
        if width > 1:
            self._end_word()
        # The last column stays empty: with the cursor behind it, terminals treat a backspace differently.
        if self._num_word_columns + width >= num_columns:
            self._is_span = False  # a backtick without a second one must not stop the wrapping
        elif self._column + width >= num_columns:
            self._move_word()
        if self._column + width > num_columns:  # the terminal has broken the word
            self._column = 0
        self._unshown += char
        self._column += width
        self._num_word_columns += width

    def _move_word(self) -> None:
        """Move the word to the start of the next line."""
        erase = "\b" * cell_len(self._shown) + _CLEAR_LINE if self._shown else ""
        self._output.append(f"{erase}\n")
        self._shown, self._unshown = "", self._shown + self._unshown
        self._column = self._num_word_columns


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
