"""Reads and writes remotes.json. One process at a time changes it. A running daemon reads it again after a change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from edgeagent.errors import ConfigError
from edgeagent.remotes import REMOTES_FILE, Remote
from edgeagent.remotes.check import checked
from edgeagent.runtime_file import read_private, write_private
from edgeagent.state_files import OncePerTurn, changing, check_folder, file_stamp, folder_stamp

MAX_REMOTES = 64
RETRY_S = 1.0
_MAX_BYTES = 1 << 20
_LOCK_FILE = "remotes.lock"

logger = logging.getLogger(__name__)


class _File(Struct, forbid_unknown_fields=True):
    remotes: list[Raw]


class _Named(Struct):
    name: str


class RemotesFile:
    """The remotes of a state folder. The file is read again when it has changed.

    While the file cannot be trusted or understood, there are no remotes, and `trouble` says why.
    """

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._state_dir = state_dir
        self._clock = clock
        self._retry_at_s = 0.0
        self._path = state_dir / REMOTES_FILE
        self._stamps: object = None
        self._by_name: dict[str, Remote] = {}
        self._trouble = ""
        self._revision = 0
        self._turn = OncePerTurn()

    @property
    def remotes(self) -> tuple[Remote, ...]:
        """The remotes in the order in which they were added; empty while `trouble` is set."""
        self._refresh()
        return tuple(self._by_name.values())

    @property
    def trouble(self) -> str:
        """Why no remote is used, and what to do; empty if the file can be trusted and understood."""
        self._refresh()
        return self._trouble

    @property
    def revision(self) -> int:
        """A number that changes with every change of a remote, and each time that the file is written."""
        self._refresh()
        return self._revision

    def find(self, name: str) -> Remote | None:
        """Return the remote with this name; None if there is none, or while `trouble` is set."""
        self._refresh()
        return self._by_name.get(name)

    def _refresh(self) -> None:
        if not self._turn.is_due():
            return
        stamps = folder_stamp(self._state_dir), file_stamp(self._path)
        if stamps == self._stamps and not (self._trouble and self._clock() >= self._retry_at_s):
            return
        before, trouble = self._by_name, ""
        try:
            self._by_name = {remote.name: remote for remote in load_remotes(self._state_dir)}
        except ConfigError as error:
            self._by_name, trouble = {}, error.message
        is_written = self._stamps is not None and stamps != self._stamps
        # A failed read is repeated, since the cause may have been outside the file.
        self._stamps, self._retry_at_s = stamps, self._clock() + RETRY_S
        self._revision += is_written or list(before.items()) != list(self._by_name.items())
        if trouble and trouble != self._trouble:
            logger.warning("no remote is used: %s", trouble)
        elif self._trouble and not trouble:
            logger.warning("remotes are used again: %s can be trusted", self._path.name)
        self._trouble = trouble


def load_remotes(state_dir: Path) -> tuple[Remote, ...]:
    """Return the remotes of a state folder; () if it has no file of remotes.

    Raise ConfigError if the file is not valid, or if the folder or the file cannot be trusted.
    """
    check_folder(state_dir)
    path = state_dir / REMOTES_FILE
    content = read_private(path, max_bytes=_MAX_BYTES + 1)
    if content is None:
        return ()
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{path} has more than {_MAX_BYTES} bytes; remove remotes from it")
    try:
        rows = msgspec.json.decode(content, type=_File).remotes
    except (msgspec.DecodeError, RecursionError) as error:
        raise _complaint(path, "", error) from None
    if len(rows) > MAX_REMOTES:
        raise ConfigError(f"{path}: at most {MAX_REMOTES} remotes, not {len(rows)}")
    found: dict[str, Remote] = {}
    for index, row in enumerate(rows):
        remote = _read(path, row, index)
        if remote.name in found:
            raise ConfigError(f"{path}: two remotes are named {remote.name!r}; rename or delete one")
        found[remote.name] = remote
    return tuple(found.values())


def add_remote(state_dir: Path, remote: Remote) -> Remote:
    """Add a remote, or replace the remote of the same name. Return the remote as it was written.

    A running daemon uses it within a second.

    Raise ConfigError if a field is not valid, if there are too many remotes, or if the file cannot be read or written.
    """
    remote = checked(remote)
    with changing(state_dir / _LOCK_FILE, "edgeagent remote"):
        known = load_remotes(state_dir)
        names = [each.name for each in known]
        changed = [remote if each.name == remote.name else each for each in known]
        if remote.name not in names:
            if len(known) >= MAX_REMOTES:
                raise ConfigError(f"there are {MAX_REMOTES} remotes; remove one with `edgeagent remote rm`")
            changed.append(remote)
        _write(state_dir, changed)
    return remote


def remove_remote(state_dir: Path, name: str) -> None:
    """Remove a remote; raise ConfigError if there is none of this name, or if the file cannot be read or written."""
    with changing(state_dir / _LOCK_FILE, "edgeagent remote"):
        known = load_remotes(state_dir)
        find_among(known, name)
        _write(state_dir, [each for each in known if each.name != name])


def find_among(remotes: Sequence[Remote], name: str) -> Remote:
    """Return the remote of this name; raise ConfigError, which lists the known names, if there is none."""
    for remote in remotes:
        if remote.name == name:
            return remote
    names = ", ".join(each.name for each in remotes)
    raise ConfigError(
        f"no remote is named {name!r:.80}; there is {names or 'none: add one with `edgeagent remote add`'}"
    )


def described(remote: Remote) -> dict[str, Any]:
    """Return a remote as a dict for JSON, in the form that the file has."""
    fields: dict[str, Any] = msgspec.to_builtins(remote)
    return fields


def _write(state_dir: Path, remotes: Sequence[Remote]) -> None:
    content = msgspec.json.encode({"remotes": remotes})
    write_private(state_dir / REMOTES_FILE, msgspec.json.format(content, indent=1) + b"\n")


def _read(path: Path, row: Raw, index: int) -> Remote:
    name = f"remotes[{index}]"
    try:
        name = f"remote {msgspec.json.decode(row, type=_Named).name!r:.80}"
        fields = msgspec.json.decode(row, type=dict[str, Any])
        fields.pop("wire", None)  # written by versions that could speak another protocol too
        return checked(msgspec.convert(fields, Remote))
    except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as error:
        raise _complaint(path, name, error) from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None


def _complaint(path: Path, name: str, error: Exception) -> ConfigError:
    """Return an error such as "FILE: remote 'gpu': limits.connect_s: expected `float`, got `str`; fix it, or ..."."""
    problem, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    parts = [part for part in (str(path), name, field, problem[:1].lower() + problem[1:]) if part]
    return ConfigError(f"{': '.join(parts)}; fix it, or delete the file and add the remotes again")
