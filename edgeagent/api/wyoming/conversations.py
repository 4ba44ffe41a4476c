"""The conversations of voice clients, in memory only: each goes on over several connections, for a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from edgeagent.types import Message

MAX_CONVERSATIONS = 64
MAX_MESSAGES = 32
KEPT_S = 600.0

Key = tuple[str, str]
"""The client's address, and its id of the conversation. Another machine that knows an id cannot continue with it."""


class Conversations:
    """At most MAX_CONVERSATIONS conversations, each of at most MAX_MESSAGES, until KEPT_S after its last turn."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[Key, tuple[float, tuple[Message, ...]]] = OrderedDict()  # the oldest turn first

    def messages(self, key: Key) -> tuple[Message, ...]:
        """Return the messages of a conversation; () if it is new or forgotten."""
        self.forget_old()
        return self._kept[key][1] if key in self._kept else ()

    def keep(self, key: Key, messages: tuple[Message, ...]) -> None:
        """Keep a conversation after a turn. Of one that is too long, the older half is dropped.

        To drop one message at each turn would change the prompt's beginning each time, and nothing of it would be
        cached.
        """
        self._kept.pop(key, None)
        self._kept[key] = (self._clock(), messages if len(messages) <= MAX_MESSAGES else messages[-MAX_MESSAGES // 2 :])
        if len(self._kept) > MAX_CONVERSATIONS:
            self._kept.popitem(last=False)

    def forget_old(self) -> None:
        """Forget the conversations whose time is over."""
        while self._kept and self._clock() - next(iter(self._kept.values()))[0] > KEPT_S:
            self._kept.popitem(last=False)
