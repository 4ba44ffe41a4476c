"""`edgeagent cache answers`: show, list, forget, export and warm the answers that the daemon keeps. All need one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from edgeagent.cli.display import complain, duration, print_json, size_text, table, tell, wrapped
from edgeagent.cli.link import ask, daemon_of
from edgeagent.cli.options import AsJson, AsJsonArray, ConfigFile, StateDir, settings_of
from edgeagent.cli.progress import Show, progress
from edgeagent.cli.text_files import json_object, text_of
from edgeagent.client import Address
from edgeagent.errors import ConfigError, EdgeAgentError, InvalidRequest, NotSupported

answers_app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Show and forget answers that are given again without a model."
)

PAGE = 500
WARM_TIMEOUT_S = 600.0
OFF = "The answer cache is off. To keep answers, set exact = true in [answers] of config.toml, and restart the daemon."
COLUMNS = ("id", "client", "model", "question", "age", "given", "size")
_OUTCOMES = {
    "exact": "kept answers given to equal questions",
    "similar": "kept answers given to similar questions",
    "joined": "answers shared with an equal question that was running",
    "miss": "answers that a model gave",
    "slow": "questions that were not looked up, since the store was slow",
}
_MAX_QUESTION_CHARS = 40
_CHAT = "as for /v1/chat/completions"

Client = Annotated[
    str | None,
    typer.Option(
        "--client",
        metavar="NAME",
        help="The client, by its token's name, or kiosk:NAME for what a kiosk's visitors ask; \"\" is the owner.",
    ),
]


@answers_app.command("stats")
def stats(as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Show how many answers are kept, and how often one was given."""
    report = ask(daemon_of(settings_of(state_dir, config).state_dir), "/edgeagent/answers")
    tell(report, *_stats_lines(report), as_json=as_json)


def _stats_lines(report: dict[str, Any]) -> Iterator[str]:
    if not report["is_on"]:
        yield wrapped(OFF)
        return
    num, num_bytes = report["num_answers"], report["num_bytes"]
    kept = "An unknown number of answers is" if num is None else f"{num:,} answer{' is' if num == 1 else 's are'}"
    size = "" if num_bytes is None else f", {size_text(num_bytes)} of {size_text(report['max_bytes'])}"
    yield f"{kept} kept ({report['store']}{size})."
    rows = [(f"{report['outcomes'].get(name, 0):,}", meaning) for name, meaning in _OUTCOMES.items()]
    yield table(("times", "since the start"), rows, left_columns=0)
    if report["trouble"]:
        yield wrapped(f"Nothing is kept at the moment: {report['trouble']}")
    if report["similar"] is not None:
        yield from map(wrapped, _similar_lines(report["similar"]))


@answers_app.command("list")
def list_answers(
    client: Client = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="At most N answers.")] = 100,
    as_json: AsJsonArray = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """List the kept answers, the last used first, by what was asked."""
    address = daemon_of(settings_of(state_dir, config).state_dir)
    listed = _page(address, client, limit, 0, is_whole=False)
    if listed or as_json:
        text = table(COLUMNS, [*map(_row, listed)], left_columns=4)
    else:
        text = "No answer is kept." if ask(address, "/edgeagent/answers")["is_on"] else wrapped(OFF)
    tell(listed, text, as_json=as_json)


@answers_app.command("forget")
def forget(
    answer: Annotated[str | None, typer.Argument(metavar="[ID]", help="The id of one answer, from `list`.")] = None,
    client: Client = None,
    every: Annotated[bool, typer.Option("--all", help="Forget all answers of all clients.")] = False,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Forget one answer by its id, those of one client, or all.

    The next question of that kind is answered by the model again.
    """
    if (answer is not None) + (client is not None) + every != 1:
        raise ConfigError("give the id of an answer, --client NAME, or --all")
    address = daemon_of(settings_of(state_dir, config).state_dir)
    if answer is not None:
        ask(address, f"/edgeagent/answers/{answer}", "DELETE")
        num = 1
    else:
        body = {} if client is None else {"client": client}
        num = ask(address, "/edgeagent/answers/forget", "POST", body=body)["num_answers"]
    tell({"num_answers": num}, f"{num:,} answer{'' if num == 1 else 's'} forgotten.", as_json=as_json)


@answers_app.command("warm")
def warm(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A question a line; or, in a .jsonl file, a chat completion a line.")
    ],
    kiosk: Annotated[
        str | None, typer.Option("--kiosk", metavar="NAME", help="Ask as visitors of the kiosk with this token do.")
    ] = None,
    client: Client = None,
    like: Annotated[
        Path | None,
        typer.Option("--like", metavar="FILE", help="JSON of a chat completion; each question follows its messages."),
    ] = None,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Ask each question of a file, so that its answer is kept. Ctrl-C keeps those that are done.

    A question whose answer is kept already takes no time. A question that fails is named, and the others go on.
    """
    address = daemon_of(settings_of(state_dir, config).state_dir)
    if kiosk is not None and client is not None:
        raise ConfigError("give --kiosk or --client: the answers are for visitors, or for a client")
    bodies = _bodies(file, None if like is None else json_object(text_of(like), str(like), _CHAT))
    given = {"client": client or ""} if kiosk is None else {"kiosk": kiosk}
    counts = Counter(new=0, known=0, not_kept=0, failed=0)
    is_interrupted = False
    with progress("questions", is_quiet=as_json) as show:
        try:
            _ask_each(address, {line: {**body, **given} for line, body in bodies.items()}, counts, show)
        except KeyboardInterrupt:
            is_interrupted = True
    if as_json:
        print_json(dict(counts))
    else:
        typer.echo(f"{counts['new']} answers are new, {counts['known']} were kept before.")
        if counts["not_kept"]:
            typer.echo(f"{counts['not_kept']} were answered, but may not be kept: see docs/howto/answers.md.")
    if is_interrupted:
        complain(f"interrupted after {counts.total()} of {len(bodies)} questions; the same command goes on from there")
        raise typer.Exit(130)
    if counts["failed"]:
        raise typer.Exit(1)


def _ask_each(address: Address, bodies: dict[int, dict[str, Any]], counts: Counter[str], show: Show) -> None:
    """Ask each question, and count what came of it. On an interruption, `counts` says how far it got."""
    for number, (line, body) in enumerate(bodies.items()):
        show("Asking", number, len(bodies))
        try:
            asked = ask(address, "/edgeagent/answers/warm", "POST", body=body, timeout_s=WARM_TIMEOUT_S)
            counts[asked["status"]] += 1
        except EdgeAgentError as error:
            if isinstance(error, NotSupported) or (isinstance(error, InvalidRequest) and error.param is None):
                raise  # no field of this question is wrong, so it holds for all
            counts["failed"] += 1
            typer.echo(wrapped(f"line {line}: {error.message}"), err=True)
    show("Asking", len(bodies), len(bodies))


def _bodies(file: Path, like: dict[str, Any] | None) -> dict[int, dict[str, Any]]:
    """Return the body of each question's request by its line; raise ConfigError if the file cannot be used."""
    # Not `splitlines`: a text in JSON may have other characters that it takes for the end of a line.
    lines = {number: line.strip() for number, line in enumerate(text_of(file).split("\n"), 1) if line.strip()}
    if not lines:
        raise ConfigError(f"{file} has no questions")
    if file.suffix.lower() != ".jsonl":
        more = {} if like is None else {"request": like}
        return {number: {"question": line, **more} for number, line in lines.items()}
    return {number: {"request": json_object(line, f"line {number} of {file}", _CHAT)} for number, line in lines.items()}


@answers_app.command("export")
def export(client: Client = None, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Print all kept answers with their texts, one JSON object a line, the last used first."""
    address = daemon_of(settings_of(state_dir, config).state_dir)
    for answer in _all(address, client):
        typer.echo(json.dumps(answer, ensure_ascii=False))


def _all(address: Address, client: str | None) -> Iterator[dict[str, Any]]:
    offset = 0
    while page := _page(address, client, PAGE, offset, is_whole=True):
        yield from page
        offset += len(page)


def _page(address: Address, client: str | None, limit: int, offset: int, *, is_whole: bool) -> list[dict[str, Any]]:
    query: dict[str, Any] = {"limit": limit, "offset": offset, "whole": str(is_whole).lower()}
    if client is not None:
        query["client"] = client
    listed: list[dict[str, Any]] = ask(address, f"/edgeagent/answers/list?{urlencode(query)}")["answers"]
    return listed


def _similar_lines(similar: dict[str, Any]) -> Iterator[str]:
    """Yield what is known of similar questions: both errors beside the bound, what was refused, and trouble."""
    bound, measured = f"{similar['max_error']:.2%}", similar["measured_error"]
    num, num_compared = similar["num_questions"], similar["num_compared"]
    yield f"Similar questions: {num:,} are known, and {num_compared:,} comparisons were made."
    expected = similar["expected_error"]
    said = f"At most {bound} of these answers may be wrong."
    if expected is not None:
        said += f" Expected since the start: {expected:.2%}."
    if measured is None:
        yield f"{said} None was checked so far."
    else:
        num_wrong, num_checked = similar["num_found_wrong"], similar["num_checked"]
        yield (f"{said} Measured: {measured:.2%} ({num_wrong:,} wrong of {num_checked:,} checked).")
    if not similar["is_on"]:
        yield (
            "The checks contradict the bound, so no answer is given from similarity any more. "
            "`edgeagent cache answers forget --all` starts over."
        )
    if similar["refused"]:
        rules = sorted(similar["refused"].items(), key=lambda each: -each[1])
        yield f"Refused by rules: {', '.join(f'{name} {count:,}' for name, count in rules)}."
    if similar["trouble"]:
        yield f"No answer is given from similarity at the moment: {similar['trouble']}"


def _row(answer: dict[str, Any]) -> tuple[str, ...]:
    question = answer["question"]
    if len(question) > _MAX_QUESTION_CHARS:
        question = question[: _MAX_QUESTION_CHARS - 1] + "…"
    counts = (duration(answer["age_s"]), str(answer["num_uses"]), size_text(answer["num_bytes"]))
    return (answer["id"], answer["client"] or "-", answer["model"], question, *counts)
