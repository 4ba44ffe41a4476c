"""Tokens, their holders and scopes. The owner's token has its own file; tokens of clients may have fewer scopes.

Only the digest of a client's token is stored. The files may change while the daemon runs. A token that was replaced or
removed is refused from the next request on. While a file cannot be trusted, every token is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from edgeagent.errors import ConfigError
from edgeagent.runtime_file import TOKEN_FILE, read_private, read_token, write_private
from edgeagent.state_files import FollowedFiles, changing, check_folder
from edgeagent.types import RouteMode, Tier

CLIENTS_FILE = "clients.json"
TOKEN_PREFIX = "edge_"  # noqa: S105 distinguishes our tokens from the API keys that OpenAI's clients must send
MAX_CLIENTS = 1000
BROWSER_DAYS = 30
"""A browser's token expires if it was not used for this many days."""
VOICE_CLIENT = "wyoming"
"""The client that all are who ask over Wyoming, which has no tokens. So no token has this name."""
_LOCK_FILE = "clients.lock"
_TOKEN_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

logger = logging.getLogger(__name__)


class Scope(StrEnum):
    """What a token allows. INFER: to generate. MODELS: to fetch and remove models. ADMIN: to administer the daemon.

    KIOSK: to ask as a visitor of the kiosk, whose prompt the owner has pinned. No scope includes another.
    """

    INFER = "infer"
    MODELS = "models"
    ADMIN = "admin"
    KIOSK = "kiosk"


@dataclass(frozen=True, slots=True)
class Client:
    """A holder of a token, or a local user without one. The owner's name is empty.

    `route` limits where the client's requests may run, and `tier` is their highest tier; None adds no limit. `answers`:
    whether the answer cache may keep and give answers to its requests. `browser`: the name of a browser of the owner,
    which has the owner's stored responses and cached prompts; empty for others. `used_on`: the day (UTC) on which a
    browser last used its token, as far as it is known.
    """

    name: str
    scopes: frozenset[Scope]
    route: RouteMode | None = None
    tier: Tier | None = None
    browser: str = ""
    answers: bool = True
    # It changes nothing that the token allows, so a change of it ends no request.
    used_on: date | None = field(default=None, compare=False)

    @property
    def expires_on(self) -> date | None:
        """The first day (UTC) on which the token is refused, if it is not used before; None for never, or unknown."""
        return None if self.used_on is None else self.used_on + timedelta(BROWSER_DAYS + 1)

    @property
    def label(self) -> str:
        """The name of the token's holder in `edgeagent token list`; empty for the owner."""
        return self.browser or self.name


OWNER = Client("", frozenset(Scope))


class KeyStatus(StrEnum):
    """What was found out about a request's keys."""

    NONE = "no key"
    FOREIGN = "another key"
    KNOWN = "a known token"
    UNKNOWN = "an unknown, removed or expired token"
    UNUSABLE = "a token that cannot be checked"
    SEVERAL = "several keys"


@dataclass(frozen=True, slots=True)
class CheckedKeys:
    """The result of checking a request's keys.

    `client` and `digest` are set for a known token. `reason`: why a token cannot be checked; otherwise empty.
    """

    status: KeyStatus
    client: Client | None = None
    digest: bytes = b""
    reason: str = ""


NO_KEYS = CheckedKeys(KeyStatus.NONE)


class Keys(Protocol):
    """Checks tokens and finds their holders."""

    @property
    def trouble(self) -> str:
        """Why tokens cannot be checked, and what to do; empty if they can."""
        ...

    @property
    def revision(self) -> object:
        """A value that differs after every change of tokens, or of what one allows."""
        ...

    def judge(self, tokens: Sequence[bytes]) -> CheckedKeys:
        """Check the keys of one request. Tokens are compared in constant time, so timing reveals nothing about them."""
        ...

    def holder(self, token_digest: bytes) -> Client | None:
        """Return the holder of the token with this digest; None if no valid token has it.

        This counts as a use of a browser's token, so that it does not expire.
        """
        ...


class KeyRing(FollowedFiles[tuple[tuple[bytes, Client], ...]]):
    """The Keys of a state folder."""

    looks_at_every_use = True  # a token that was removed earlier in the same iteration of the event loop opens nothing

    def __init__(self, state_dir: Path, today: Callable[[], date] = lambda: datetime.now(UTC).date()) -> None:
        super().__init__(state_dir, [state_dir / TOKEN_FILE, state_dir / CLIENTS_FILE], (), time.monotonic)
        self._today = today
        self._noted: dict[str, date] = {}  # the days of use that this process has written, by browser
        # Digests of tokens that were valid earlier in this process. A removed token of an older edgeagent can be
        # recognized only here, because it lacks the prefix.
        self._former: dict[bytes, None] = {}

    def judge(self, tokens: Sequence[bytes]) -> CheckedKeys:
        if not tokens:
            return NO_KEYS
        if len(tokens) > 1:
            each = [self._judge_one(token) for token in tokens]
            is_one_ours = any(checked.status is not KeyStatus.FOREIGN for checked in each)
            return CheckedKeys(KeyStatus.SEVERAL if is_one_ours else KeyStatus.FOREIGN)
        return self._judge_one(tokens[0])

    def holder(self, token_digest: bytes) -> Client | None:
        """Return the holder of the token with this digest; None if it is unknown, or while a file cannot be trusted."""
        found = None
        for known, client in self._current:
            if hmac.compare_digest(token_digest, known):
                found = client
        return found if found is None or not found.browser or self._use(found) else None

    def _use(self, browser: Client) -> bool:
        """Return whether a browser's token has not expired. If so, write the day of its use, once a day."""
        today = self._today()
        if browser.expires_on is not None and today >= browser.expires_on:
            return False
        # A clock that was set back writes nothing, so a jump to the future and back ends no token.
        if (browser.used_on is None or browser.used_on < today) and self._noted.get(browser.browser) != today:
            self._noted[browser.browser] = today
            # In a thread, since a command may hold the lock of the file.
            threading.Thread(target=_note_use, args=(self._folder, browser.browser, today), daemon=True).start()
        return True

    def _judge_one(self, token: bytes) -> CheckedKeys:
        wanted = digest(token)
        client = self.holder(wanted)
        if client is not None:
            return CheckedKeys(KeyStatus.KNOWN, client, wanted)
        is_former = False
        for former in self._former:
            is_former |= hmac.compare_digest(wanted, former)
        if not is_former and not token.startswith(TOKEN_PREFIX.encode()):
            return CheckedKeys(KeyStatus.FOREIGN)
        if self._trouble:
            # Do not reveal the path of the folder to clients.
            reason = self._trouble.replace(f"{self._folder}/", "").replace(str(self._folder), "the state folder")
            return CheckedKeys(KeyStatus.UNUSABLE, reason=reason)
        return CheckedKeys(KeyStatus.UNKNOWN)

    def _note_change(self, value: tuple[tuple[bytes, Client], ...], trouble: str) -> None:
        kept = {known for known, _ in self._value}
        for known, _ in value:
            if known not in kept and len(self._former) < 2 * MAX_CLIENTS:
                self._former[known] = None
        if self._trouble and self._trouble != trouble:
            logger.warning("every token is refused: %s", self._trouble)
        elif trouble and not self._trouble:
            logger.warning("tokens are accepted again: %s and %s can be trusted", TOKEN_FILE, CLIENTS_FILE)

    def _read(self) -> tuple[tuple[bytes, Client], ...]:
        check_folder(self._folder)
        owner = read_token(self._folder)
        holders = [(bytes.fromhex(token_digest), client) for client, token_digest in _read_clients(self._folder)]
        return (((digest(owner.encode()), OWNER),) if owner else ()) + tuple(holders)


def digest(token: bytes) -> bytes:
    """Return the digest that is stored and compared instead of a token."""
    return hashlib.sha256(token).digest()


def ensure_token(state_dir: Path) -> str:
    """Return the owner's token, creating it on first use.

    Raise ConfigError if others could have read or written its file, if the file cannot be read or written, or if it
    does not hold a token.
    """
    return read_token(state_dir) or rotate_token(state_dir)


def check_files(state_dir: Path) -> None:
    """Raise ConfigError if the folder or a file of tokens cannot be trusted or read. The error says what to do.

    A missing file is not an error.
    """
    check_folder(state_dir)
    read_token(state_dir)
    _read_clients(state_dir)


def rotate_token(state_dir: Path) -> str:
    """Replace the owner's token and return the new one; raise ConfigError if its file cannot be written."""
    token = _new_token()
    write_private(state_dir / TOKEN_FILE, token.encode() + b"\n")
    return token


def clients(state_dir: Path) -> list[Client]:
    """Return the clients that have tokens, without the owner; raise ConfigError if the clients' file cannot be used."""
    return [client for client, _ in _read_clients(state_dir)]


def add_client(
    state_dir: Path,
    name: str,
    scopes: Iterable[Scope],
    route: RouteMode | None = None,
    tier: Tier | None = None,
    *,
    answers: bool = True,
) -> str:
    """Create a token for a client and return it. It replaces the client's earlier token, if there is one.

    Raise ConfigError for a wrong name or VOICE_CLIENT, if there are too many clients, or if the clients' file cannot be
    trusted, read or written.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a client's name must be 1 to 64 letters, digits, _ . or -, not {name!r:.80}")
    if name == VOICE_CLIENT:
        raise ConfigError(f"{name} is the client of all who ask over Wyoming without a token; choose another name")
    return _add(state_dir, Client(name, frozenset(scopes), route, tier, answers=answers))


def add_browser(state_dir: Path, scopes: Iterable[Scope], replaced: str = "") -> str:
    """Create a token for a browser of the owner and return it. It replaces that of the browser `replaced`, if any.

    Raise ConfigError if there are too many clients, or if the clients' file cannot be trusted, read or written.
    """
    name = replaced or f"browser-{secrets.token_hex(4)}"
    return _add(state_dir, Client(OWNER.name, frozenset(scopes), browser=name, used_on=datetime.now(UTC).date()))


def _add(state_dir: Path, client: Client) -> str:
    token = _new_token()
    with changing(state_dir / _LOCK_FILE, "edgeagent token"):
        today = datetime.now(UTC).date()
        others = [
            entry
            for entry in _read_clients(state_dir)
            if entry[0].label != client.label and (entry[0].expires_on is None or entry[0].expires_on > today)
        ]
        if len(others) >= MAX_CLIENTS:
            raise ConfigError(f"there are {MAX_CLIENTS} clients; remove one with `edgeagent token remove`")
        _write_clients(state_dir, [*others, (client, digest(token.encode()).hex())])
    return token


def _note_use(state_dir: Path, browser: str, day: date) -> None:
    """Write the day on which a browser used its token, if it still has one."""
    try:
        with changing(state_dir / _LOCK_FILE, "edgeagent"):
            known = _read_clients(state_dir)
            if any(client.browser == browser and client.used_on != day for client, _ in known):
                noted = [
                    (replace(client, used_on=day) if client.browser == browser else client, its)
                    for client, its in known
                ]
                _write_clients(state_dir, noted)
    except ConfigError as error:
        logger.warning("the use of a browser's token was not noted, so it may expire too early: %s", error.message)


def remove_client(state_dir: Path, name: str) -> None:
    """Revoke a client's token.

    Raise ConfigError if the client has no token, or if the clients' file cannot be trusted, read or written.
    """
    with changing(state_dir / _LOCK_FILE, "edgeagent token"):
        known = _read_clients(state_dir)
        others = [(client, token_digest) for client, token_digest in known if client.label != name]
        if len(others) == len(known):
            names = ", ".join(client.label for client, _ in known)
            raise ConfigError(f"no client is named {name!r:.80}; known clients: {names or 'none'}")
        _write_clients(state_dir, others)


def _new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def _write_clients(state_dir: Path, entries: Iterable[tuple[Client, str]]) -> None:
    rows = [
        {"name": client.label, "scopes": sorted(client.scopes), "sha256": token_digest}
        | ({"is_browser": True} if client.browser else {})
        | ({} if client.used_on is None else {"used_on": client.used_on.isoformat()})
        | ({} if client.route is None else {"route": client.route})
        | ({} if client.tier is None else {"tier": client.tier})
        | ({} if client.answers else {"answers": False})
        for client, token_digest in entries
    ]
    write_private(state_dir / CLIENTS_FILE, json.dumps({"clients": rows}, indent=1).encode() + b"\n")


def _read_clients(state_dir: Path) -> list[tuple[Client, str]]:
    path = state_dir / CLIENTS_FILE
    content = read_private(path, max_bytes=MAX_CLIENTS * 512)
    if content is None:
        return []
    try:
        return [_read_client(row) for row in json.loads(content)["clients"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is not what `edgeagent token` wrote ({error}); delete it, and add the clients again"
        ) from None


def _read_client(row: object) -> tuple[Client, str]:
    match row:
        case {"name": str(name), "scopes": list(scopes), "sha256": str(token_digest), **more} if _DIGEST.fullmatch(
            token_digest
        ) and _NAME.fullmatch(name):
            # An unknown mode, even null, is an error: if it were ignored, requests could leave the machine.
            route = RouteMode(str(more["route"])) if "route" in more else None
            tier = Tier(str(more["tier"])) if "tier" in more else None
            allowed = frozenset(Scope(scope) for scope in scopes)
            is_browser = more.get("is_browser") is True
            browser = name if is_browser else ""
            used_on = date.fromisoformat(str(more["used_on"])) if "used_on" in more else None
            if used_on is not None and used_on.year == date.max.year:
                raise ValueError("used_on is too late for a day of expiry")
            answers = more.get("answers", True) is True
            return Client(
                OWNER.name if browser else name, allowed, route, tier, browser, answers, used_on
            ), token_digest
    raise ValueError("a client has a name, scopes and a sha256")
