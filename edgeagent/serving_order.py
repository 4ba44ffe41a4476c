"""The order in which requests are served. The engine serves them in it, and the daemon's forecast plays it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Served(Protocol):
    """A request that waits or runs.

    `rank`: the smaller one is more urgent. `due_s`: when its first token is due; infinite if at no particular time.
    `order`: of arrival.
    """

    @property
    def rank(self) -> int: ...
    @property
    def due_s(self) -> float: ...
    @property
    def order(self) -> float: ...
    @property
    def client(self) -> str: ...


_Request = TypeVar("_Request", bound=Served)


def by_urgency(requests: Iterable[_Request]) -> list[_Request]:
    """Return requests sorted by rank, within a rank by the time they are due, then by arrival."""
    return sorted(requests, key=lambda each: (each.rank, each.due_s, each.order))


def by_share(requests: Iterable[_Request], running: Iterable[_Request] = ()) -> list[_Request]:
    """Return requests in the order in which they are served: by rank, fair share and `by_urgency`.

    In a rank, clients take turns: the n-th request of a client comes after the first n - 1 requests of every other
    client. A client's `running` requests count as its first ones.
    """
    places = Counter(request.client for request in running)
    ranked = []
    for request in by_urgency(requests):
        ranked.append((request.rank, places[request.client], request))
        places[request.client] += 1
    return [request for *_, request in sorted(ranked, key=lambda each: each[:2])]
