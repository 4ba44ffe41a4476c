"""Finds a remote's API key where its owner put it. A key is in no file of ours, no command line and no message."""

from __future__ import annotations

import os
from pathlib import Path

from edgeagent.errors import ConfigError
from edgeagent.remotes import Key
from edgeagent.runtime_file import read_private

KEYRING_SERVICE = "edgeagent"
MAX_KEY_CHARS = 8192


class KeyFinder:
    """Finds keys. Those of the system's keyring are kept, since asking it may take long, or ask the user."""

    def __init__(self) -> None:
        self._from_keyring: dict[str, str] = {}

    def __call__(self, key: Key) -> str:
        """Return a key; raise ConfigError, which says where it was looked for and what to do."""
        match key.source:
            case "env":
                return _checked(os.environ.get(key.name), f"the environment variable {key.name}", _SET_IT)
            case "file":
                return _from_file(Path(key.name))
            case "keyring":
                if key.name not in self._from_keyring:
                    self._from_keyring[key.name] = _from_keyring(key.name)
                return self._from_keyring[key.name]

    def forget(self, key: Key) -> None:
        """Look a key up anew the next time: a remote has refused it."""
        self._from_keyring.pop(key.name, None)


def store_key(name: str, value: str) -> None:
    """Put a remote's key into the system's keyring; raise ConfigError where that cannot be."""
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise ConfigError(_NO_KEYRING) from None
    try:
        keyring.set_password(KEYRING_SERVICE, name, _checked(value, "what was typed", "type it again"))
    except keyring.errors.KeyringError as error:
        raise ConfigError(f"the system's keyring takes no key ({type(error).__name__}); unlock it") from None


_SET_IT = "set it where the daemon is started (a service needs it in its own settings)"


def _checked(value: str | None, where: str, advice: str) -> str:
    """Return a key without blanks around it; raise ConfigError for one that no HTTP header can carry."""
    key = (value or "").strip()
    if not key:
        raise ConfigError(f"the remote's key is looked for in {where}, which is {_lack(value)}; {advice}")
    if len(key) > MAX_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"what is in {where} is no key: one is ASCII without blanks, at most {MAX_KEY_CHARS} characters"
        )
    return key


def _lack(value: str | None) -> str:
    return "not set" if value is None else "empty"


def _from_file(path: Path) -> str:
    content = read_private(path)
    if content is None:
        raise ConfigError(f"the remote's key is looked for in {path}, which does not exist; write it there (chmod 600)")
    return _checked(content.decode("utf-8", errors="replace"), str(path), "write the key into it")


def _from_keyring(name: str) -> str:
    try:
        import keyring
        import keyring.errors
    except ImportError:
        raise ConfigError(_NO_KEYRING) from None
    try:
        value = keyring.get_password(KEYRING_SERVICE, name)
    except keyring.errors.KeyringError as error:
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
