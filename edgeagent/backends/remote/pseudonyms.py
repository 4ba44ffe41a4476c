"""The names under which remotes know conversations and clients: random ones, which change.

A conversation keeps its name for a day, so that its turns find the endpoint and the cache of those before; the secret
behind the names is new with each start.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import msgspec

from edgeagent.types import ChatPrompt, GenerateRequest

_DAY_S = 86_400.0


class Pseudonyms:
    """Makes names, all from one secret. No two remotes get the same ones."""

    def __init__(self, remote: str, secret: bytes | None = None) -> None:
        self._remote = remote
        self._secret = secret or secrets.token_bytes(32)

    def session(self, request: GenerateRequest, now_s: float) -> str:
        """Return the name of a request's conversation: by its lane, else by how it begins, else the request's own.

        None is without: vLLM's router sends all requests that have no name to the same engine.
        """
        lane = request.cache.lane or beginning_of(request) or request.id
        return self._name("session", str(int(now_s // _DAY_S)), request.cache.partition, lane)

    def cache_salt(self, request: GenerateRequest) -> str:
        """Return what keeps one client's prefixes from being found by another's requests."""
        return self._name("salt", request.cache.partition)

    def _name(self, *parts: str) -> str:
        text = "\0".join((self._remote, *parts))
        return hmac.digest(self._secret, text.encode(), hashlib.sha256).hex()[:32]


def beginning_of(request: GenerateRequest) -> str:
    """Return what all turns of a conversation have in common: a digest of its messages up to the user's first."""
    if not isinstance(request.prompt, ChatPrompt):
        return ""
    messages = request.prompt.messages
    first_user = next((index for index, message in enumerate(messages) if message.role == "user"), 0)
    return hashlib.sha256(msgspec.msgpack.encode(messages[: first_user + 1])).hexdigest()
