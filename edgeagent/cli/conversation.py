"""A conversation in the terminal: it reads prompts, streams answers, and cancels them on Ctrl-C.

It depends on the client only, not on the daemon.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

from edgeagent.cli.attachments import checked_file, dropped_file
from edgeagent.cli.chat_state import ChatState, message
from edgeagent.cli.display import aligned, complain
from edgeagent.cli.line_reader import LineReader
from edgeagent.cli.progress import StatusLine
from edgeagent.cli.word_wrap import PLAIN, WordWrap
from edgeagent.client import Answer, Client, Event, function_output, user_message
from edgeagent.errors import EdgeAgentError, ModelNotFound

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


HELP = '''\
/timings             where the time of the last answer went
/clear               forget the conversation
/system [TEXT]       show or change the instructions; `default` removes them
/model [NAME]        list the models, or use another one
/set [NAME VALUE]    show or change temperature, top_p, max_tokens
/image FILE          send an image or a sound with the next question (or drop the file here)
/tools [FILE]        offer the functions of a JSON file to the model; without FILE, no more
/save FILE           write the conversation to a file
/load FILE           continue a saved conversation
/help                this
/exit                leave (also Ctrl-D)
"""                  begins and ends a question of several lines
Ctrl-C               cancels an answer, or clears the line'''
HINT = "(Ctrl-C again or Ctrl-D leaves)"
REMOTE = "remote:"
QUIET_S = 1.0
"""After this many seconds without an event, the chat asks the daemon for the reason."""
DIM = "\x1b[2m"
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
    is known. The reason is shown only on a terminal. `find_model` returns the name under which the daemon serves a
    model, or None. `model_names` returns the names of all that it serves.
    """

    def __init__(
        self,
        client: Client,
        runner: asyncio.Runner,
        fields: Mapping[str, Any],
        wait_reason: Callable[[], str] = lambda: "",
        find_model: Callable[[str], str | None] = lambda name: name,
        model_names: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._wait_reason = wait_reason
        self._find_model = find_model
        self._model_names = model_names
        self._client = client
        self._runner = runner
        self._state = ChatState(fields)
        self._last_answer: Answer | None = None
        self._files: list[Path] = []  # what the next question shows

    def answer(self, prompt: str, output: TextIO | None, files: Sequence[Path] = ()) -> Answer:
        """Send a question and return the answer. If `output` is given, write the answer to it as it arrives.

        `files` are images and sounds that are sent with it.

        After a Ctrl-C, the status of the answer is "cancelled". Raise KeyboardInterrupt for a second Ctrl-C. Raise
        EdgeAgentError if the daemon does not answer or the response fails.
        """
        return self._answer([user_message(prompt, *files) if files else message("user", prompt)], output)

    def _answer(self, items: list[dict[str, Any]], output: TextIO | None) -> Answer:
        answer = self._runner.run(self._stream(items, output))
        self._last_answer = answer
        # A cancelled answer is not part of the conversation. The next question follows the last complete answer.
        if answer.status in ("completed", "incomplete") and answer.response_id:
            self._state.record(items, answer)
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
            try:
                if (file := dropped_file(prompt)) is not None:
                    print(self._attach(file).translate(_CONTROLS))  # noqa: T201
                elif prompt.startswith("/"):
                    is_hinted = self._is_interrupted(prompt)
                elif prompt:
                    is_hinted = self._turn(prompt, reader)
            except EdgeAgentError as error:
                complain(error.message.translate(_CONTROLS))

    def _is_interrupted(self, command: str) -> bool:
        """Run a command, and show what it says. Return whether Ctrl-C ended it, such as one that waits for a file."""
        try:
            said = self._command(command)
        except KeyboardInterrupt:
            said = HINT
        print(said.translate(_CONTROLS))  # noqa: T201
        return said is HINT

    def _turn(self, prompt: str, reader: LineReader) -> bool:
        """Answer a question. Return whether Ctrl-C cancelled the answer, so that one more Ctrl-C leaves the chat."""
        before = self._state.last_id, list(self._state.items)
        status = "failed"
        try:
            files, self._files = self._files, []
            answer = self.answer(prompt, sys.stdout, files)
            while answer.tool_calls and answer.status == "completed":
                answer = self._answer(_typed_results(answer, reader), sys.stdout)
            status = answer.status
        except EOFError:
            print("\n(the question and its calls are forgotten)\n")  # noqa: T201
            return False
        finally:
            if status not in ("completed", "incomplete"):
                self._state.last_id, self._state.items = before  # calls without results cannot be continued
        match status:
            case "cancelled":
                print("(cancelled; Ctrl-C again leaves)\n")  # noqa: T201
            case "incomplete":
                print("(cut off at the token limit)\n")  # noqa: T201
            case _:
                print()  # noqa: T201
        return status == "cancelled"

    def _command(self, command: str) -> str:
        name, _, rest = command.partition(" ")
        rest = rest.strip()
        match name:
            case "/timings":
                return stage_table({"last": self._last_answer}) if self._last_answer else "Nothing was answered yet."
            case "/clear":
                self._state.forget()
                self._last_answer, self._files = None, []
                return "Forgotten."
            case "/system":
                return self._state.set_instructions(rest)
            case "/model":
                return self._switch_model(rest)
            case "/set":
                return self._state.set_value(rest.split())
            case "/image" | "/audio":
                return self._attach(checked_file(rest))
            case "/tools":
                return self._state.set_tools(rest)
            case "/save":
                return self._state.save(rest)
            case "/load":
                return self._state.load(rest)
            case "/help" | "/?":
                return HELP
            case _:
                return f"There is no command {command}.\n{HELP}"

    def _attach(self, file: Path) -> str:
        self._files.append(checked_file(file))
        return f"{', '.join(each.name for each in self._files)}: sent with the next question."

    def _switch_model(self, wanted: str) -> str:
        if not wanted:
            return "\n".join(self._model_names()) or "No model is served."
        name = self._find_model(wanted)
        if name is None:
            raise ModelNotFound(f"the daemon does not serve {wanted!r:.80}; /model lists what it serves")
        self._state.fields["model"] = name
        return f"The next answer is from {name}."

    async def _stream(self, items: list[dict[str, Any]], output: TextIO | None) -> Answer:
        state = self._state
        reply = self._client.respond(state.input_of(items), previous_response_id=state.last_id, **state.fields)
        printer = _Printer(output)
        try:
            async with self._explained(printer):
                async for event in reply:
                    printer.show(event)
        except asyncio.CancelledError:
            # asyncio.Runner raises this at the first Ctrl-C. A second one raises KeyboardInterrupt and ends the chat.
            await reply.cancel()
            reply.answer.status = "cancelled"
        except EdgeAgentError:
            printer.end_style()
            raise
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


def _typed_results(answer: Answer, reader: LineReader) -> list[dict[str, Any]]:
    """Show the calls of an answer and return the results that the user types. Raise EOFError if the user types none."""
    results = []
    for call in answer.tool_calls:
        print(f"{call.name}({call.arguments})".translate(_CONTROLS))  # noqa: T201
        print("Type its result:")  # noqa: T201
        try:
            results.append(dict(function_output(call.id, reader.read())))
        except KeyboardInterrupt:
            raise EOFError from None
    return results


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
        self._is_styled = not self._is_dumb and not os.environ.get("NO_COLOR")
        self._wrap = WordWrap(is_styled=self._is_styled)
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
        """End the line and the style of the answer."""
        if self._wrote:
            self._write("\n", dim=False)
            self.end_style()

    def end_style(self) -> None:
        """Make the terminal's style plain, as it was before the answer."""
        if self._output is not None and self._is_terminal:
            self._output.write(self._wrap.end())
            self._output.flush()

    def _write(self, text: str, *, dim: bool) -> None:
        if self._output is None:
            return
        if dim != self._is_dim:
            begin, end = ("", "") if self._is_dumb else (DIM, PLAIN)
            self._output.write(begin if dim else f"{end}\n")
            self._is_dim, self._wrap = dim, WordWrap(is_styled=self._is_styled and not dim)
        self._output.write(self._shown(text) if self._is_terminal else text)
        self._output.flush()
        self._wrote = True
        self._is_in_line = not text.endswith("\n")

    def _shown(self, text: str) -> str:
        """Return what a terminal may be sent to show a text."""
        text = text.translate(_CONTROLS)
        return text if self._is_dumb else self._wrap.wrap(text, shutil.get_terminal_size().columns)
