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
from edgeagent.state_files import FollowedFiles, changing, check_folder

MAX_REMOTES = 64
_MAX_BYTES = 1 << 20
_LOCK_FILE = "remotes.lock"

logger = logging.getLogger(__name__)


class _File(Struct, forbid_unknown_fields=True):
    remotes: list[Raw]


class _Named(Struct):
    name: str


class RemotesFile(FollowedFiles[tuple[Remote, ...]]):
    """The remotes of a state folder. While the file cannot be trusted or understood, there are none."""

    counts_writes = True

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(state_dir, [state_dir / REMOTES_FILE], (), clock)

    @property
    def remotes(self) -> tuple[Remote, ...]:
        """The remotes in the order in which they were added; empty while `trouble` is set."""
        return self._current

    def find(self, name: str) -> Remote | None:
        """Return the remote with this name; None if there is none, or while `trouble` is set."""
        return next((remote for remote in self._current if remote.name == name), None)

    def _read(self) -> tuple[Remote, ...]:
        return load_remotes(self._folder)

    def _note_change(self, value: tuple[Remote, ...], trouble: str) -> None:
        del value
        if self._trouble and self._trouble != trouble:
            logger.warning("no remote is used: %s", self._trouble)
        elif trouble and not self._trouble:
            logger.warning("remotes are used again: %s can be trusted", REMOTES_FILE)


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
