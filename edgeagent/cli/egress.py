"""`edgeagent egress`: shows what left this machine. It reads the ledger's files, without a daemon."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TextIO

import typer
from typer import get_text_stream

from edgeagent.cli.display import print_json, size_text, table, wrapped
from edgeagent.cli.options import AsJson, ConfigFile, StateDir, settings_of
from edgeagent.egress import ANSWERS, BENCH, DOCTOR, ENGINE, KEPT_DAYS, PROBE, PULL, TRACES, Row
from edgeagent.egress.rows import described, folder_of, purge, read_rows
from edgeagent.errors import ConfigError

COLUMNS = ("time (UTC)", "remote", "host", "model", "client", "reason", "sent", "tokens in", "out", "outcome")
MAX_SHOWN = 50
_RECENTLY = "24h"
_UNITS = {"m": "minute", "h": "hour", "d": "day"}
# The reasons of rows that are not listed, with their names.
_COUNTED = {
    PROBE: ("probe of remotes", "probes of remotes"),
    PULL: ("host asked for models", "hosts asked for models"),
    DOCTOR: ("question of the doctor to the hub", "questions of the doctor to the hub"),
    ENGINE: ("page asked for a back end", "pages asked for back ends"),
    BENCH: ("server measured with invented prompts", "servers measured with invented prompts"),
    TRACES: ("batch of traces", "batches of traces"),
    ANSWERS: ("command to a store of answers", "commands to a store of answers"),
}
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


def egress(
    since: Annotated[
        str, typer.Option("--since", metavar="WHEN", help="30m, 24h or 7d ago, or a UTC time like 2026-11-22[T10:30].")
    ] = _RECENTLY,
    as_json: AsJson = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write every row as a line of JSON; - is stdout.")
    ] = None,
    is_purge: Annotated[
        bool, typer.Option("--purge", help="Delete every row; today's use of budgets is kept.")
    ] = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Show what left this machine: when, for which client, why, where to, and how much; not its content.

    Requests to remotes are listed, and images that were fetched for clients. Probes of remotes and what edgeagent sends
    for itself (pulls, the doctor's question, back ends, benchmarks, traces, kept answers) are counted; --json and
    --export show each. The rows are in the state folder, private, for 30 days.
    """
    folder = folder_of(settings_of(state_dir, config).state_dir)
    if sum((as_json, export is not None, is_purge)) > 1:
        raise ConfigError("give one of --json, --export and --purge")
    if is_purge:
        num_days = purge(folder, time.time())
        typer.echo(f"Deleted the rows of {num_days} {'day' if num_days == 1 else 'days'}.")
        return
    if export is not None:
        with _opened(export) as out:
            for row in read_rows(folder):
                out.write(json.dumps(described(row), ensure_ascii=False) + "\n")
        return
    rows = read_rows(folder, _since(since, time.time()))
    if as_json:
        print_json({"rows": [described(row) for row in rows]})
        return
    _show(list(rows), since)


def recent_egress(state_dir: Path) -> list[dict[str, object]]:
    """Return the rows of the last 24 hours, each as a dict for JSON."""
    return [described(row) for row in read_rows(folder_of(state_dir), _since(_RECENTLY, time.time()))]


def show_recent_egress(state_dir: Path) -> None:
    """Print the requests that left this machine in the last 24 hours."""
    _show(list(read_rows(folder_of(state_dir), _since(_RECENTLY, time.time()))), _RECENTLY)


def _show(all_rows: Sequence[Row], since: str) -> None:
    rows = [row for row in all_rows if row.reason not in _COUNTED]
    others = _counted(row.reason for row in all_rows)
    if not rows:
        left = f"Only {others}, left" if others else "Nothing has left"
        typer.echo(f"{left} this machine {_period(since)}.")
        return
    typer.echo(table(COLUMNS, [*map(_cells, rows[-MAX_SHOWN:])], left_columns=6, last_left=True))
    outcomes, spent = Counter(map(_outcome, rows)), sum(row.money for row in rows)
    money = f", {spent:,.4g} money" if spent else ""
    counts = ", ".join(f"{number} {outcome}" for outcome, number in outcomes.most_common())
    left_out = f" (the last {MAX_SHOWN} are shown)" if len(rows) > MAX_SHOWN else ""
    num_requests = len({row.request for row in rows})  # a request has a row for each attempt to send it
    requests = "1 request" if num_requests == 1 else f"{num_requests} requests"
    if len(rows) > num_requests:
        requests += f" in {len(rows)} attempts"
    num_tokens = sum(row.num_prompt_tokens + row.num_output_tokens for row in rows)
    sent = f"at most {size_text(sum(row.num_bytes for row in rows))} sent, {num_tokens:,} tokens{money}"
    counts += f"; and {others}" if others else ""
    typer.echo(wrapped(f"{requests} {_period(since)}{left_out}: {sent}; {counts}"))


def _counted(reasons: Iterable[str]) -> str:
    """Return how many rows have a reason that is only counted; "" if there are none."""
    numbers = Counter(reasons)
    parts = {
        reason: f"{number} {one if number == 1 else many}"
        for reason, (one, many) in _COUNTED.items()
        if (number := numbers[reason])
    }
    answers = parts.pop(ANSWERS, "")
    others = f"{', '.join(parts.values())}, without content" if parts else ""
    return "; ".join(filter(None, (others, answers and f"{answers}, encrypted")))


def _period(since: str) -> str:
    """Return the time that --since means, in words: in the last 24 hours, in the last day, or since 2026-11-22."""
    if since[-1] not in _UNITS:
        return f"since {since}"
    number, unit = int(since[:-1]), _UNITS[since[-1]]
    return f"in the last {unit}" if number == 1 else f"in the last {number} {unit}s"


def _outcome(row: Row) -> str:
    return f"{row.outcome} (its count differs)" if row.differs else row.outcome


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.at[:19].replace("T", " "),
        row.remote,
        row.host,
        row.model,
        row.client or "owner",
        row.reason,
        size_text(row.num_bytes),
        str(row.num_prompt_tokens),
        str(row.num_output_tokens),
        _outcome(row),
    )


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    if file == Path("-"):
        yield get_text_stream("stdout")
        return
    try:
        descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            yield out
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error


def _since(text: str, now_s: float) -> float:
    """Return the time that --since means, in seconds since 1970; raise ConfigError if it is not valid."""
    if match := re.fullmatch(r"(\d{1,6})([mhd])", text):
        return max(0.0, now_s - int(match[1]) * _UNITS_S[match[2]])
    try:
        at = datetime.fromisoformat(text)
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"--since: must be like 30m, 24h or 7d, or a time like 2026-11-22T10:30, not {text!r:.80}; "
            f"rows are kept for {KEPT_DAYS} days"
        ) from None
