"""The limits of time of a request on this machine, for the backend that runs it and for those who share its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from edgeagent.errors import DeadlineUnreachable, EdgeAgentError, RequestTimeout
from edgeagent.types import GenerateRequest


def limit(
    request: GenerateRequest, end: Callable[[EdgeAgentError], None], has_begun: Callable[[], bool]
) -> list[asyncio.TimerHandle]:
    """Set timers that end a request at its own limits, with an error: of the whole answer, and of the first token.

    If its answer `has_begun` when the first token is due, it goes on. The caller must cancel the timers at its end.
    """
    limit_s, first_s = request.timeout_s, request.need.first_token_s

    def pass_first() -> None:
        if first_s is not None and not has_begun():
            end(DeadlineUnreachable.passed(first_s))

    limits = ((limit_s, lambda: end(RequestTimeout.passed(limit_s))), (first_s, pass_first))
    loop = asyncio.get_running_loop()
    return [loop.call_later(seconds, act) for seconds, act in limits if seconds is not None]
