"""Who holds which token and what it opens: the owner's, in its own file, and those of clients that may do less.

Of a client's token only the digest is kept. The files may change while the daemon runs: what was replaced or removed is
refused from the next request on.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from edgeagent.errors import ConfigError
from edgeagent.runtime_file import TOKEN_FILE, read_private, read_token, write_private

CLIENTS_FILE = "clients.json"
MAX_CLIENTS = 1000
_TOKEN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Scope(StrEnum):
    """What a token may open: generating; fetching and removing models; the daemon itself."""

    INFER = "infer"
    MODELS = "models"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Client:
    """A holder of a token. The owner's name is empty."""

    name: str
    scopes: frozenset[Scope]


OWNER = Client("", frozenset(Scope))


class Keys(Protocol):
    """What tells whose a token is."""

    def find(self, token: bytes) -> Client | None:
        """Return the holder of a token, None where it is nobody's. Takes as long for a wrong one as for a right one."""
        ...


class KeyRing:
    """The tokens of a state folder, read again when its files have changed."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._files = [state_dir / TOKEN_FILE, state_dir / CLIENTS_FILE]
        self._stamps: list[object] = []
        self._holders: tuple[tuple[bytes, Client], ...] = ()

    def find(self, token: bytes) -> Client | None:
        """Return the holder of a token; nobody, while a file cannot be read or others could have written it."""
        stamps = [_stamp(path) for path in self._files]
        if stamps != self._stamps:
            self._holders = ()
            with contextlib.suppress(ConfigError):
                self._holders = self._read()
            self._stamps = stamps
        wanted, found = digest(token), None
        for held, client in self._holders:
            if hmac.compare_digest(wanted, held):
                found = client
        return found

    def _read(self) -> tuple[tuple[bytes, Client], ...]:
        owner = read_token(self._state_dir)
        holders = [(bytes.fromhex(held), client) for client, held in _read_clients(self._state_dir)]
        return (((digest(owner.encode()), OWNER),) if owner else ()) + tuple(holders)


def digest(token: bytes) -> bytes:
    """Return what is kept and compared instead of a token."""
    return hashlib.sha256(token).digest()


def ensure_token(state_dir: Path) -> str:
    """Return the owner's token, made on first use; raise ConfigError where others could have read it."""
    return read_token(state_dir) or rotate_token(state_dir)


def rotate_token(state_dir: Path) -> str:
    """Replace the owner's token and return it; the old one is dead."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    write_private(state_dir / TOKEN_FILE, token.encode() + b"\n")
    return token


def clients(state_dir: Path) -> list[Client]:
    """Return the clients that have a token of their own."""
    return [client for client, _ in _read_clients(state_dir)]


def add_client(state_dir: Path, name: str, scopes: Iterable[Scope]) -> str:
    """Return a new token for a client, which replaces the one it had."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a client's name is letters, digits and _.-, at most 64 of them, not {name!r:.80}")
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    others = [(client, held) for client, held in _read_clients(state_dir) if client.name != name]
    if len(others) >= MAX_CLIENTS:
        raise ConfigError(f"there are {MAX_CLIENTS} clients; remove one with `edgeagent token remove`")
    _write_clients(state_dir, [*others, (Client(name, frozenset(scopes)), digest(token.encode()).hex())])
    return token


def remove_client(state_dir: Path, name: str) -> None:
    """End a client's token; raise ConfigError where it has none."""
    known = _read_clients(state_dir)
    others = [(client, held) for client, held in known if client.name != name]
    if len(others) == len(known):
        names = ", ".join(client.name for client, _ in known) or "nobody"
        raise ConfigError(f"no client is named {name!r:.80}; there is {names}")
    _write_clients(state_dir, others)


def _stamp(path: Path) -> object:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode


def _write_clients(state_dir: Path, entries: Iterable[tuple[Client, str]]) -> None:
    rows = [{"name": client.name, "scopes": sorted(client.scopes), "sha256": held} for client, held in entries]
    write_private(state_dir / CLIENTS_FILE, json.dumps({"clients": rows}, indent=1).encode() + b"\n")


def _read_clients(state_dir: Path) -> list[tuple[Client, str]]:
    path = state_dir / CLIENTS_FILE
    content = read_private(path, max_bytes=MAX_CLIENTS * 512)
    if content is None:
        return []
    try:
        return [_read_client(row) for row in json.loads(content)["clients"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is not what `edgeagent token` wrote ({error}); delete it, and add them again"
        ) from None


def _read_client(row: object) -> tuple[Client, str]:
    match row:
        case {"name": str(name), "scopes": list(scopes), "sha256": str(held)} if _DIGEST.fullmatch(held):
            return Client(name, frozenset(Scope(scope) for scope in scopes)), held
    raise ValueError("a client has a name, scopes and a sha256")
