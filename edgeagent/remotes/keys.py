"""Finds a remote's API key in the place that the owner chose. The key is in none of edgeagent's files or messages."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from edgeagent.errors import ConfigError
from edgeagent.remotes import Key
from edgeagent.runtime_file import read_private

KEYRING_SERVICE = "edgeagent"
MAX_KEY_CHARS = 8192
RETRY_S = 10.0
"""After a failure, the keyring is not asked for the same key again for this many seconds."""


class KeyFinder:
    """Finds keys. Keys from the system's keyring are kept in memory, since the keyring may ask the user each time.

    With `waits`, a call waits for the keyring. Otherwise a thread asks the keyring, and the key counts as missing until
    the keyring answers.
    """

    def __init__(self, *, waits: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._waits = waits
        self._clock = clock
        self._from_keyring: dict[str, str] = {}
        # Why a key is missing, and when to ask for it again.
        self._missing: dict[str, tuple[str, float]] = {}
        self._asking: set[str] = set()

    def __call__(self, key: Key) -> str:
        """Return a key; raise ConfigError if there is none. The error says where the key should be and what to do."""
        match key.source:
            case "env":
                return _checked(os.environ.get(key.name), f"the environment variable {key.name}", _SET_IT)
            case "file":
                return _from_file(Path(key.name))
            case "keyring":
                return self._kept(key.name)

    def forget(self, key: Key) -> None:
        """Drop a key that a remote has refused, so that it is looked up again next time."""
        self._from_keyring.pop(key.name, None)
        self._missing.pop(key.name, None)

    def _kept(self, name: str) -> str:
        if name not in self._from_keyring and name not in self._asking:
            _, retry_at_s = self._missing.get(name, ("", 0.0))
            if self._clock() >= retry_at_s:
                self._asking.add(name)
                if self._waits:
                    self._ask(name)
                else:
                    threading.Thread(target=self._ask, args=(name,), name="edgeagent-keyring", daemon=True).start()
        if (value := self._from_keyring.get(name)) is not None:
            return value
        raise ConfigError(self._missing.get(name, (_ASKED, 0.0))[0])

    def _ask(self, name: str) -> None:
        try:
            self._from_keyring[name] = _from_keyring(name)
        except ConfigError as error:
            self._missing[name] = error.message, self._clock() + RETRY_S
        finally:
            self._asking.discard(name)


_SET_IT = "set it where the daemon is started (a service needs it in its own settings)"
_ASKED = "the system's keyring has not given the remote's key yet; unlock it if it asks"


def store_key(name: str, value: str) -> None:
    """Put a remote's key into the system's keyring; raise ConfigError if that fails."""
    try:
        import keyring
    except ImportError:
        raise ConfigError(_NO_KEYRING) from None
    try:
        keyring.set_password(KEYRING_SERVICE, name, _checked(value, "what was typed", "type it again"))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the system's keyring cannot store the key ({type(error).__name__}); unlock it") from None


def _checked(value: str | None, where: str, advice: str) -> str:
    """Return a key without surrounding blanks; raise ConfigError if there is none or no HTTP header can hold it."""
    key = (value or "").strip()
    if not key:
        raise ConfigError(f"the remote's key should be in {where}, which is {_problem_of(value)}; {advice}")
    if len(key) > MAX_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{where} has no valid key: a key is ASCII without blanks, at most {MAX_KEY_CHARS} characters"
        )
    return key


def _problem_of(value: str | None) -> str:
    return "not set" if value is None else "empty"


def _from_file(path: Path) -> str:
    content = read_private(path)
    if content is None:
        raise ConfigError(f"the remote's key should be in {path}, which does not exist; write it there (chmod 600)")
    return _checked(content.decode("utf-8", errors="replace"), str(path), "write the key into it")


def _from_keyring(name: str) -> str:
    try:
        import keyring
    except ImportError:
        raise ConfigError(_NO_KEYRING) from None
    try:
        value = keyring.get_password(KEYRING_SERVICE, name)
    except Exception as error:  # each desktop's keyring has errors of its own beside the library's
        raise ConfigError(
            f"the system's keyring does not give the key of {name!r} ({type(error).__name__}); unlock it, "
            "or keep the key in a variable or a private file (`edgeagent remote add --key-env`, --key-file)"
        ) from None
    where = f"the system's keyring (service {KEYRING_SERVICE!r}, name {name!r})"
    return _checked(value, where, f"put it there with `keyring set {KEYRING_SERVICE} {name}`")


_NO_KEYRING = (
    "the remote's key is in the system's keyring, and the library that reads it is missing; "
    "pip install 'edgeagent[keyring]', or keep the key in a variable or a private file"
)
