"""The API key of a remote. The key is sent only to this remote.

A key that the remote has refused is not sent again before `Access.forgive` is called. The router calls it whenever
the remotes or the machine's policy change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from edgeagent.errors import ConfigError
from edgeagent.remotes import Key

Headers = tuple[tuple[str, str], ...]
_SCHEME = "Bearer "
FindKey = Callable[[Key], str]

KEY_IS_MENDED = "the key is changed, or the remote is added again with `edgeagent remote add`"
_ASK_AGAIN_S = 5.0
_MIN_KEY_PART = 8


def quotes_key(text: str, headers: Headers) -> bool:
    """Whether a text from a remote contains the key in these headers, or at least eight characters of it in a row."""
    keys = [value.removeprefix(_SCHEME) for _, value in headers]
    return any(
        key[start : start + _MIN_KEY_PART] in text
        for key in keys
        for start in range(max(1, len(key) - _MIN_KEY_PART + 1))
    )


class Access:
    """Tracks whether a remote accepts our key. After a refusal, only another key may be sent, until `forgive`."""

    def __init__(self, key: Key | None, find: FindKey) -> None:
        self._key = key
        self._find = find
        self._refused: bytes | None = None
        self._status = 0
        self._trouble = ""
        self._kind = ""
        self._checked_s: float | None = None

    def headers(self) -> Headers:
        """Return the headers that carry the key; raise ConfigError if the key is not found."""
        return () if self._key is None else (("Authorization", f"{_SCHEME}{self._find(self._key)}"),)

    def refuse(self, status: int, headers: Headers) -> None:
        """Note that the remote refused a request because of the key in these headers, or because they have no key."""
        self._status = status
        self._refused = _digest(headers)
        self._checked_s = None
        forget = getattr(self._find, "forget", None)
        if self._key is not None and forget is not None:
            forget(self._key)

    def forgive(self) -> None:
        """Let a refused key be sent again."""
        self._refused = self._checked_s = None

    def obstacle(self, now_s: float) -> tuple[str, str]:
        """Return why requests cannot be sent, as one word and as a sentence; both are empty if requests can be sent.

        The key is looked up at most once in five seconds. A call of `refuse` or `forgive` causes a new lookup.
        """
        if self._checked_s is None or now_s - self._checked_s > _ASK_AGAIN_S:
            self._checked_s = now_s
            self._kind, self._trouble = self._look()
        return self._kind, self._trouble

    def _look(self) -> tuple[str, str]:
        try:
            digest = _digest(self.headers())
        except ConfigError as error:
            return "no_key", error.message
        if self._refused is None or digest != self._refused:
            self._refused = None
            return "", ""
        what = "its key" if self._key is not None else "a request without a key"
        return "refused_key", (
            f"the remote refused {what} (HTTP {self._status}) and gets no requests until {KEY_IS_MENDED}"
        )


def _digest(headers: Headers) -> bytes:
    return hashlib.sha256("".join(value for _, value in headers).encode()).digest()
