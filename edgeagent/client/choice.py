"""The choice among given answers, over HTTP: how likely is each of them?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from edgeagent.client.address import Address
from edgeagent.client.answer import wire_error
from edgeagent.errors import BackendUnavailable

# A model may have to be loaded first.
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Chance:
    """One of the choices. `probability` is among the choices, and `logprob` among all texts that the model may write.

    `empty_logprob`: the `logprob` after an empty message; None without `calibrate`.
    """

    id: str
    text: str
    probability: float
    logprob: float
    empty_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The id of the likeliest choice, all choices with the likeliest first, and the daemon's whole answer."""

    id: str
    chances: tuple[Chance, ...]
    body: Mapping[str, Any]


async def choose(locate: Callable[[], Address], request: Mapping[str, Any]) -> Choice:
    """Ask for a choice. Raise the daemon's error, BackendUnavailable, or ConfigError as `Client.open` does."""
    # Imported here, so that applications that do not use it start sooner.
    import httpx2

    from edgeagent.client.background import connected, refusal_of

    try:
        async with await connected(locate, _TIMEOUT_S) as http:
            base = str(http.base_url).rstrip("/").removesuffix("/v1")
            reply = await http.post(f"{base}/edgeagent/choose", json=request)
    except httpx2.TransportError as lost:
        raise BackendUnavailable(f"the daemon cannot be reached: {lost}") from None
    if reply.is_error:
        raise wire_error(refusal_of(reply.content, reply.status_code))
    return choice_of(json.loads(reply.content))


def choice_of(body: Mapping[str, Any]) -> Choice:
    """Return what the daemon's answer says. Fields of a later daemon are only in its `body`."""
    names = [field.name for field in fields(Chance)]
    known = ({name: each[name] for name in names if name in each} for each in body["probabilities"])
    return Choice(body["choice"], tuple(Chance(**each) for each in known), body)
