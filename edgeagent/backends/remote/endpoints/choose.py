"""Orders the endpoints of a remote for a request. Its functions are pure: they get numbers, not connections."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from msgspec import Struct

LONG_PROMPT_TOKENS = 4096
UNKNOWN_FIRST_TOKEN_S = 0.2
"""The assumed time to the first token of an endpoint that has answered nothing yet, besides a probe's round trip.

It is short, so that a new endpoint is tried.
"""
_WAITING_S = 0.2
_MIXED_S = 0.5
_FULL_CACHE = 0.95
_FULL_CACHE_S = 1.0
_HOME_FACTOR, _HOME_S = 1.5, 0.25
_REGION_FACTOR, _REGION_S = 2.0, 0.5


class View(Struct, frozen=True):
    """What is known about an endpoint, for one request.

    `is_usable`: the request may be sent to it now. `is_on_trial`: its breaker is not closed, so the next request is a
    test. `first_token_s` is the predicted time to the first token; None if unknown.

    `num_long` and `num_short` count this machine's live requests at the endpoint that have long and short prompts.
    `num_waiting` and `kv_usage` are reported by the endpoint itself; 0 if it does not report them.
    """

    url: str
    region: str = ""
    is_usable: bool = True
    is_on_trial: bool = False
    first_token_s: float | None = None
    num_long: int = 0
    num_short: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0


def choose(views: Sequence[View], num_prompt_tokens: int, session: str = "") -> list[int]:
    """Return the endpoints to try, as indices into `views`, best first; those that cannot be tried are left out.

    1. Endpoints on trial come last.
    2. The first region in the owner's order comes first, unless another is predicted to be much faster.
    3. Within a region, the conversation's own endpoint comes first, since its cache has the conversation's prefix,
       unless another is predicted to be much faster.
    4. The others follow in the order of their predicted times (see `score`).
    """
    is_long = num_prompt_tokens >= LONG_PROMPT_TOKENS
    usable = [index for index, view in enumerate(views) if view.is_usable]
    scores = {index: score(views[index], is_long=is_long) for index in usable}
    proven = [index for index in usable if not views[index].is_on_trial]
    ordered: list[int] = []
    for group in (proven, [index for index in usable if views[index].is_on_trial]):  # 1
        for region in _regions(group, views, scores):  # 2
            there = [index for index in group if views[index].region == region]
            ordered += _within(there, views, scores, session)
    return ordered


def score(view: View, *, is_long: bool) -> float:
    """Return the predicted seconds to the first token: the endpoint's average, plus its known delays.

    The delays come from the endpoint's queue, from a full KV cache, and from live requests of the other length, because
    long and short prompts delay each other. `is_long`: the request's prompt is long.
    """
    seconds = UNKNOWN_FIRST_TOKEN_S if view.first_token_s is None else view.first_token_s
    seconds += _WAITING_S * view.num_waiting
    if view.kv_usage >= _FULL_CACHE:
        seconds += _FULL_CACHE_S
    return seconds + _MIXED_S * (view.num_short if is_long else view.num_long)


def _regions(group: Sequence[int], views: Sequence[View], scores: dict[int, float]) -> list[str]:
    regions = list(dict.fromkeys(views[index].region for index in group))
    if not regions:
        return []
    best = {region: min(scores[index] for index in group if views[index].region == region) for region in regions}
    soonest = min(best.values())
    home = [region for region in regions[:1] if best[region] <= _REGION_FACTOR * soonest + _REGION_S]
    return home + sorted((region for region in regions if region not in home), key=lambda region: best[region])


def _within(there: Sequence[int], views: Sequence[View], scores: dict[int, float], session: str) -> list[int]:
    ordered = sorted(there, key=lambda index: scores[index])
    if not session or not ordered:
        return ordered
    # 3. Rendezvous hashing: if an endpoint is added or removed, only its own conversations move.
    home = max(there, key=lambda index: _weight(session, views[index].url))
    if scores[home] <= _HOME_FACTOR * scores[ordered[0]] + _HOME_S:
        ordered.remove(home)
        ordered.insert(0, home)
    return ordered


def _weight(session: str, url: str) -> bytes:
    return hashlib.blake2b(f"{session}\n{url}".encode(), digest_size=8).digest()
