"""Remembers the backend that each conversation ran on last. The policy decides whether a conversation stays there."""

from __future__ import annotations

from collections import OrderedDict

from edgeagent.backends.remote.pseudonyms import beginning_of
from edgeagent.types import GenerateRequest

_MAX_CONVERSATIONS = 4096

Conversation = tuple[str, str]


class Conversations:
    """The backends of the most recent conversations."""

    def __init__(self, max_conversations: int = _MAX_CONVERSATIONS) -> None:
        self._max = max_conversations
        self._backends: OrderedDict[Conversation, str] = OrderedDict()

    def find(self, request: GenerateRequest) -> str | None:
        """Return the backend that a request's conversation ran on last; None if it is unknown."""
        return self._backends.get(conversation_of(request))

    def note(self, request: GenerateRequest, backend: str) -> None:
        """Record that a request's conversation runs on a backend."""
        key = conversation_of(request)
        self._backends[key] = backend
        self._backends.move_to_end(key)
        while len(self._backends) > self._max:
            self._backends.popitem(last=False)


def conversation_of(request: GenerateRequest) -> Conversation:
    """Return a key that all requests of a conversation share.

    The key consists of the cache partition and the conversation's name in the cache policy (`lane`). Without a name,
    a digest of the first messages takes its place. A request that has neither is a conversation of its own.
    """
    return request.cache.partition, request.cache.lane or beginning_of(request) or request.id
