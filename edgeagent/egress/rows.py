"""The ledger's files, one for each UTC day: their names, how they are read, and how they are purged.

A daemon may append to a file while it is read. A line that a crash has cut off is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from edgeagent.egress import EGRESS_FOLDER, Carried, Line, Row, RowEnd, RowStart, Sent
from edgeagent.egress.spending import Spending
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import check_private, write_private
from edgeagent.state_files import NO_FOLLOW

_FILE = re.compile(r"(\d{4}-\d{2}-\d{2})\.jsonl")
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def folder_of(state_dir: Path) -> Path:
    return state_dir / EGRESS_FOLDER


def day_of(at_s: float) -> str:
    """Return the UTC day of a time in seconds since 1970, for example "2026-11-22"."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


def time_text(at_s: float) -> str:
    """Return a time in seconds since 1970 as ISO 8601, UTC, with milliseconds."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def file_of(folder: Path, day: str) -> Path:
    return folder / f"{day}.jsonl"


def days(folder: Path) -> list[str]:
    """Return the days that have a file, the oldest first; raise ConfigError if the folder cannot be read."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror}") from error
    return sorted(match[1] for name in names if (match := _FILE.fullmatch(name)))


def read_lines(path: Path) -> Iterator[Line]:
    """Yield a file's lines, without those that cannot be decoded; none if there is no file.

    Raise ConfigError if the file cannot be read, or if other users could have read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        check_private(path, os.fstat(descriptor))
        try:
            for line in file:
                try:
                    yield _DECODER.decode(line)
                except (msgspec.DecodeError, RecursionError):
                    continue
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def read_rows(folder: Path, since_s: float = 0.0) -> Iterator[Row]:
    """Yield the rows that began at or after a time in seconds since 1970, in the order in which they began.

    Raise ConfigError if the folder or a file cannot be read, or if other users could have read a file.
    """
    # A request may end on the day after it began. If it ends later, its row stays unfinished.
    since = time_text(since_s)
    before: dict[int, Row] = {}
    for day in days(folder):
        if day < day_of(since_s):
            continue
        rows: dict[int, Row] = {}
        for line in read_lines(file_of(folder, day)):
            match line:
                case RowStart() if line.at >= since:
                    rows[line.row] = Row(**{name: getattr(line, name) for name in Sent.__struct_fields__})
                case RowEnd():
                    for known in (rows, before):
                        if line.row in known:
                            known[line.row] = _ended(known[line.row], line)
        yield from before.values()
        before = rows
    yield from before.values()


def _ended(row: Row, end: RowEnd) -> Row:
    return msgspec.structs.replace(
        row,
        outcome=end.outcome,
        ended_at=end.at,
        num_prompt_tokens=end.num_prompt_tokens,
        num_output_tokens=end.num_output_tokens,
        money=end.money,
        differs=end.differs,
    )


def purge(folder: Path, now_s: float) -> int:
    """Delete all rows and return how many days had a file. Only the sums of today's spending are kept.

    Raise ConfigError if a file cannot be read, written or deleted.
    """
    today, found = day_of(now_s), days(folder)
    for day in found:
        path = file_of(folder, day)
        if day == today:
            spending = Spending()
            for line in read_lines(path):
                spending.add(line)
            write_private(path, b"".join(encoded(line) for line in spending.carried()))
        else:
            _delete(path)
    return len(found)


def delete_old(folder: Path, now_s: float, kept_days: int) -> None:
    """Delete the files of days more than `kept_days` before `now_s`; raise ConfigError if that fails."""
    oldest = day_of((datetime.fromtimestamp(now_s, UTC) - timedelta(days=kept_days)).timestamp())
    for day in days(folder):
        if day < oldest:
            _delete(file_of(folder, day))


def described(row: Row) -> dict[str, Any]:
    return msgspec.structs.asdict(row)


def encoded(line: RowStart | RowEnd | Carried) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot delete {path}: {error.strerror}") from error
