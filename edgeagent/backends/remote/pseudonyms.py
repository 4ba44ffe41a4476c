"""Makes random names for conversations and clients, so that a remote does not learn who the client is.

At 0:00 UTC, all conversations get new names. Until then, a conversation keeps its name, so that its turns reach the
same endpoint and its cached prefix. The secret from which names are derived is new with each start of the daemon, and
with each change of the remote.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

import msgspec

from edgeagent.types import ChatPrompt, GenerateRequest

_DAY_S = 86_400.0


class Pseudonyms:
    """Derives names from one secret. Different remotes get different names."""

    def __init__(self, remote: str, secret: bytes | None = None) -> None:
        self._remote = remote
        self._secret = secret or secrets.token_bytes(32)

    def session(self, request: GenerateRequest, now_s: float) -> str:
        """Return the name of a request's conversation on this UTC day; `now_s` is in seconds since 1970.

        It is derived from the conversation's name in the cache policy (`lane`), or else from its first messages, or
        else from the request's id. So every request gets a name. This matters because vLLM's router sends all requests
        without a name to the same engine.
        """
        lane = request.cache.lane or beginning_of(request) or request.id
        return self._name("session", str(int(now_s // _DAY_S)), request.cache.partition, lane)

    def cache_salt(self, request: GenerateRequest) -> str:
        """Return the salt that keeps one client's requests from hitting another client's cached prefixes."""
        return self._name("salt", request.cache.partition)

    def _name(self, *parts: str) -> str:
        text = "\0".join((self._remote, *parts))
        return hmac.digest(self._secret, text.encode(), hashlib.sha256).hex()[:32]


def beginning_of(request: GenerateRequest) -> str:
    """Return a digest of a conversation's messages up to and including the first user message.

    If there is no user message, the digest covers only the first message. The digest is the same for all turns of the
    conversation. Without a chat prompt, return "".
    """
    if not isinstance(request.prompt, ChatPrompt):
        return ""
    messages = request.prompt.messages
    first_user = next((index for index, message in enumerate(messages) if message.role == "user"), 0)
    return hashlib.sha256(msgspec.msgpack.encode(messages[: first_user + 1])).hexdigest()
