"""`edgeagent run`: chat with a model, through the running daemon or a temporary one."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from edgeagent.cli.attachments import checked_file, looks_like_file, take_files
from edgeagent.cli.completion import model_names
from edgeagent.cli.conversation import Chat
from edgeagent.cli.display import print_json
from edgeagent.cli.line_reader import make_reader, replace_surrogates
from edgeagent.cli.link import address_of, ask
from edgeagent.cli.options import ConfigFile, StateDir, settings_of
from edgeagent.cli.progress import StatusLine
from edgeagent.cli.temporary import load_in_progress, temporary_daemon, wait_until_loaded
from edgeagent.client import Address, Answer, Client
from edgeagent.config import MAX_INT32, Config
from edgeagent.errors import EdgeAgentError, InvalidRequest, ModelNotFound, PayloadTooLarge
from edgeagent.runtime_file import find_daemon
from edgeagent.state_files import HISTORY_FILE
from edgeagent.store.file_records import LastUse
from edgeagent.store.library import Library
from edgeagent.store.names.parsing import is_path, near_names

# The characters of models' names on the hub, in the catalog and in most folders.
_NAME = re.compile(r"[\w.:/\\~@+-]+", re.ASCII)


def split_arguments(arguments: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the model and the question; each is None if it is not given.

    1. A single argument is a model if it looks like a name (`llama3.2`, `org/repo:Q4_0`, `hello`), if it ends in .gguf
       and has no blanks, or if a file or folder has this path. Otherwise it is a question (`Hello!`, `What now?`).
    2. If there are several arguments, the first is the model, and the others are the question.
    """
    if not arguments:
        return None, None
    first, *words = arguments
    is_like_a_name = _NAME.fullmatch(first) is not None or (first.lower().endswith(".gguf") and not _has_blanks(first))
    if not words and not is_like_a_name and not _is_there(first):
        return None, first
    return first, " ".join(words) or None


def check_model(
    name: str, question: str | None, known: Collection[str], means_a_model: Callable[[str], bool] = lambda _: False
) -> None:
    """Raise BadParameter if `name` cannot be a model.

    It can be one if it is a known name (with or without :QUANT), a path, or org/repo (with or without :QUANT).
    `means_a_model` returns True for other spellings of known names. `question` is the text that was typed after the
    name; the error message repeats it.
    """
    if name in known or name.rpartition(":")[0] in known or _is_there(name) or means_a_model(name):
        return
    if not _has_blanks(name) and ("/" in name or "\\" in name or name.lower().endswith(".gguf")):
        return
    typed = name if question is None else f"{name} {question}"
    near = near_names(name, known, "a path to a .gguf or org/repo[:QUANT]")
    raise typer.BadParameter(f"there is no model {name!r:.80}; {near}. {_as_question(typed)}")


def _as_question(typed: str) -> str:
    # A terminal would execute control characters.
    shown = "".join(char if char.isprintable() else " " for char in typed)
    text = " ".join(shown.replace('"', "'").split())
    short = textwrap.shorten(text, 60, placeholder=" ...") or text[:60]
    return f'To ask it as a question: edgeagent run -p "{short}"'


def _has_blanks(text: str) -> bool:
    return not text or any(char.isspace() for char in text)


def _is_there(text: str) -> bool:
    """Whether a file or folder has this name; False if no file system allows the name."""
    try:
        return text != "" and Path(text).exists()
    except (OSError, ValueError):
        return False


DEFAULT_MODEL = "default"
"""The name by which clients may request the daemon's default model."""


Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="As for serve; default: the daemon's model.", autocompletion=model_names),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="PROMPT", help="Answer this and exit. Piped text is added to it.", show_default=False),
]
PromptText = Annotated[str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="Answer this and exit.")]
System = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="Instructions for the model.")]
Temperature = Annotated[
    float | None,
    typer.Option("--temperature", min=0, max=2, metavar="N", help="0 always takes the most probable token."),
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, max=MAX_INT32, metavar="N", help="The most tokens in an answer.")
]
Route = Annotated[
    Literal["local_only", "prefer_local", "prefer_remote", "remote_only"] | None,
    typer.Option(
        "--route",
        help="Where the request may run. If the daemon's route is stricter, it applies, and remote_only is refused.",
    ),
]
NoStore = Annotated[
    bool, typer.Option("--no-store", help="Store nothing: no response on the daemon, no lines in the history.")
]
NoHistory = Annotated[
    bool, typer.Option("--no-history", help="Do not remember typed lines (in the state folder) for the next chat.")
]
Images = Annotated[
    list[Path] | None,
    typer.Option("--image", metavar="FILE", help="Show this image (PNG, JPEG, WebP, GIF, BMP); may be repeated."),
]
Sounds = Annotated[
    list[Path] | None,
    typer.Option("--audio", metavar="FILE", help="Play this sound (WAV, MP3, FLAC); may repeat."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object: text, usage, timings.")]


def run(
    model: Model = None,
    words: Words = None,
    prompt: PromptText = None,
    image: Images = None,
    audio: Sounds = None,
    system: System = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    route: Route = None,
    no_store: NoStore = False,
    no_history: NoHistory = False,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Chat with a model, or answer one PROMPT (also from a pipe) and exit.

    A single argument that looks like a name (llama3.2, hello) is the MODEL. Any other (Hello!) is the PROMPT, for the
    default model. With several arguments, the first is the MODEL and the others are the PROMPT. -p TEXT is always the
    PROMPT. Images and sounds at the end of the arguments are sent with the PROMPT, as those of --image and --audio are.

    Uses the running daemon, or starts a temporary one.
    """
    settings = settings_of(state_dir, config)
    given, files = take_files([] if model is None else [model, *(words or [])])
    if looks_like_file(given):
        try:
            files.append(checked_file(given.pop()))
        except InvalidRequest as error:
            raise InvalidRequest(f"{error.message}. To ask about the name, put the question into quotes") from None
    files += map(checked_file, [*(image or []), *(audio or [])])
    model, question = _model_and_question(given, prompt, settings)
    if files and question is None:
        raise typer.BadParameter("say in a PROMPT what to do with the images and sounds")
    if as_json and question is None:
        raise typer.BadParameter("--json needs a PROMPT or piped text")
    if question is None and not _is_typed():
        raise typer.BadParameter("no PROMPT was given, and the piped text is empty")
    options = {
        "instructions": None if system is None else replace_surrogates(system),
        "temperature": temperature,
        "max_output_tokens": max_tokens,
        "edgeagent": None if route is None else {"route": route},
    }
    with _daemon(model, settings, config, records_use=not no_store) as (address, name), asyncio.Runner() as runner:
        client = Client(lambda: address)
        fields = {"model": name, **options, "store": False if no_store else None}
        chat = Chat(
            client,
            runner,
            fields,
            partial(load_in_progress, address),
            partial(_served_name, address),
            partial(_served_names, address),
        )
        try:
            if question is None:
                running = find_daemon(settings.state_dir)
                is_forgotten = no_store or no_history or settings.forget or (running is not None and running.forgets)
                print(f"{name or model or settings.model} at {address.url}. /help lists the commands.")  # noqa: T201
                chat.repl(make_reader(None if is_forgotten else settings.state_dir / HISTORY_FILE))
            else:
                answer = chat.answer(question, None if as_json else sys.stdout, files)
                if as_json:
                    print_json(_answer_body(answer))
                if answer.status == "cancelled":
                    raise typer.Exit(130)
        finally:
            runner.run(client.close())


def _model_and_question(arguments: list[str], prompt: str | None, settings: Config) -> tuple[str | None, str | None]:
    """Return the model and the question. The model is None for the default one. The question is None for a chat.

    Piped text is read and added to the question. Raise BadParameter if the model cannot be one, see `check_model`.
    """
    model, question = split_arguments(arguments)
    if model is not None:
        library = Library.of(settings)
        check_model(model, question, _served_here(settings) | library.short_names(), library.means_a_model)
    return None if model == DEFAULT_MODEL else model, _question(prompt, question, settings.server.max_frame_bytes)


def _served_here(settings: Config) -> set[str]:
    """Return "default", the configured model's name, and the names of the models that a running daemon serves."""
    names = {DEFAULT_MODEL, settings.model}
    found = find_daemon(settings.state_dir)
    if found is not None:
        names |= set(_served_names(address_of(found)))
    return names


def _question(prompt: str | None, typed: str | None, max_bytes: int) -> str | None:
    piped = "" if _is_typed() else _piped(max_bytes)
    return replace_surrogates("\n\n".join(part for part in (prompt, typed, piped) if part)) or None


def _is_typed() -> bool:
    return sys.stdin is None or sys.stdin.isatty()


def _piped(max_bytes: int) -> str:
    """Read stdin to its end. Raise PayloadTooLarge above `max_bytes` characters, since a pipe may never end."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    text = sys.stdin.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise PayloadTooLarge(f"the piped text is larger than the daemon accepts ({max_bytes} bytes)")
    return text.strip()


@contextlib.contextmanager
def _daemon(
    model: str | None, settings: Config, config: Path | None, *, records_use: bool
) -> Iterator[tuple[Address, str | None]]:
    """Yield the address of a daemon that serves the model, and the model's name there (None for its default model).

    The daemon is the running one if it serves the model. Otherwise, a temporary one is started here and stopped at the
    end. If `records_use` is True, such a start is recorded as the model's last load.
    """
    found = find_daemon(settings.state_dir)
    if found is not None:
        address = address_of(found)
        name = _served_name(address, model)
        if model is None or name is not None:
            with StatusLine() as line:
                wait_until_loaded(address, line.show)
            yield address, name
            return
    flags = [model or settings.model, *(["--config", str(config)] if config else [])]
    with StatusLine() as line, temporary_daemon(flags, line.show, owner=settings.state_dir) as address:
        line.show("")
        if records_use:
            with contextlib.suppress(EdgeAgentError):
                LastUse(settings.state_dir).note(Library.of(settings).find(flags[0]).paths[0])
        yield address, None


def _served_name(address: Address, model: str | None) -> str | None:
    """Return the name under which a daemon serves a model; None if `model` is None or the daemon does not serve it."""
    if model is None:
        return None
    entries = ask(address, "/v1/models")["data"]
    if is_path(model):
        # Clients cannot request paths. A model that is not loaded may be another file with the same name.
        stem = Path(model).stem
        states = {each["id"]: each.get("edgeagent", {}).get("state") for each in entries}
        return stem if states.get(stem, "stopped") != "stopped" else None
    if any(entry["id"] == model for entry in entries):
        return model
    try:
        return str(ask(address, f"/v1/models/{quote(model, errors='replace')}")["id"])
    except (ModelNotFound, InvalidRequest):
        return None


def _served_names(address: Address) -> list[str]:
    return [entry["id"] for entry in ask(address, "/v1/models")["data"]]


def _answer_body(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "reasoning": answer.reasoning,
        "status": answer.status,
        "response_id": answer.response_id,
        "model": answer.model,
        "usage": answer.usage,
        "timings": answer.timings,
        "edgeagent": answer.edgeagent,
    }
