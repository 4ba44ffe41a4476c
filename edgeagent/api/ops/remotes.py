"""The remotes' part of the status, the test of a remote, and the routes that show and delete the egress ledger."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Annotated, Literal, NotRequired

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from edgeagent.api.context import Context, context_of
from edgeagent.api.wire.body import OwnerBody, Query, between, read_fields
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Json, Reported, Shape, report, shaped
from edgeagent.credentials.keys import Scope
from edgeagent.egress import Row
from edgeagent.egress.rows import folder_of, purge, read_rows
from edgeagent.errors import ConfigError, InternalError, InvalidRequest
from edgeagent.remotes import Budget, Remote
from edgeagent.remotes.check import MAX_NAME_CHARS
from edgeagent.remotes.keys import KeyFinder
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.types import Checkup, RemoteStatus, RouteMode

routes = Routes()


class EndpointReport(Shape):
    """An endpoint of a remote: its base URL and region. It has the other fields only while it is in use.

    `breaker` is the state of the circuit breaker. While it is open, no request is sent there; `cause` says why.
    `num_waiting` and `kv_usage` are reported by the endpoint. `first_token_s` and `token_s` are averages over this
    machine's requests. null means unknown.
    """

    url: str
    region: str
    breaker: NotRequired[Literal["closed", "half_open", "open"]]
    cause: NotRequired[str]
    num_live: NotRequired[int]
    first_token_s: NotRequired[float | None]
    token_s: NotRequired[float | None]
    num_waiting: NotRequired[int | None]
    kv_usage: NotRequired[float | None]


class RemoteReport(Shape):
    """A remote: whether requests may be sent to it, and what was spent there on this day (UTC).

    `trouble`: why no request can be sent to it; null if requests can be sent.
    """

    name: str
    trouble: str | None
    is_used: bool
    num_live: int
    num_tokens_today: int
    money_today: float
    budget: Annotated[Json, Reported(Budget)]
    budget_trouble: str | None
    """Why the owner's requests may not be sent to the remote today; null if they may be sent."""
    endpoints: list[EndpointReport]


class RouteReport(Shape):
    """Where requests may run: the machine's mode, and its remotes. A client or a request can have a stricter mode."""

    mode: RouteMode
    trouble: str | None
    """Why no remote is used; null if nothing is wrong."""
    ledger_trouble: str | None
    """Why the egress ledger cannot be written, so that nothing may be sent to remotes; null if it can be written."""
    remotes: list[RemoteReport]


class EgressRows(Shape):
    """The newest rows of the egress ledger, in the order of time."""

    rows: list[Annotated[Json, Reported(Row)]]


class EgressPurged(Shape):
    """The rows of the ledger were deleted. They covered `num_days` days."""

    status: Literal["purged"]
    num_days: int


class EgressQuery(Query):
    """Selects the newest `limit` rows of the requests that began at or after `since_s`, in seconds since 1970."""

    model_config = ConfigDict(extra="forbid")

    since_s: Annotated[float, between(0, 1e11)] = 0.0
    limit: Annotated[int, between(1, 1000)] = 100


@routes.add("GET /edgeagent/egress", Scope.ADMIN, "daemon", answer=EgressRows, query=EgressQuery)
async def get_egress(request: Request) -> JSONResponse:
    """Return the newest rows of the egress ledger since a time, in the order of time. They have no content."""
    query = await read_fields(request, EgressQuery)
    folder = folder_of(context_of(request).config.state_dir)
    try:
        rows: deque[Row] = await asyncio.to_thread(lambda: deque(read_rows(folder, query.since_s), query.limit))
    except ConfigError as error:
        raise InternalError(error.message) from None
    return JSONResponse(EgressRows(rows=[report(row) for row in rows]))


@routes.add("POST /edgeagent/egress/purge", Scope.ADMIN, "daemon", answer=EgressPurged)
async def purge_egress(request: Request) -> JSONResponse:
    """Delete all rows of the egress ledger. What was spent today still counts for the budgets."""
    await read_fields(request, OwnerBody)
    try:
        num_days = await asyncio.to_thread(purge, folder_of(context_of(request).config.state_dir), time.time())
    except ConfigError as error:
        raise InternalError(error.message) from None
    return JSONResponse(EgressPurged(status="purged", num_days=num_days))


class RemoteChoice(OwnerBody):
    """`remote`: the name of a remote."""

    remote: Annotated[str, Field(max_length=MAX_NAME_CHARS)]


class RemoteTest(Shape):
    """The results of the test of a remote, with the daemon's own key, mode and policy."""

    remote: str
    endpoints: list[Annotated[Json, Reported(Checkup)]]


@routes.add("POST /edgeagent/egress/test", Scope.ADMIN, "daemon", answer=RemoteTest, fields=RemoteChoice)
async def test_remote(request: Request) -> JSONResponse:
    """Try a remote with a greeting: each endpoint's name, connection, TLS, models, and one token."""
    from edgeagent.router.checkup import check  # here, since it needs the HTTP client

    asked = await read_fields(request, RemoteChoice)
    remote_access = context_of(request).service.remote_access
    remote = (
        next((each for each in remote_access.remotes if each.name == asked.remote), None) if remote_access else None
    )
    if remote_access is None or remote is None:
        raise InvalidRequest(f"there is no remote {asked.remote!r} that may be used", param="remote")
    try:
        key = "" if remote.key is None else await asyncio.to_thread(KeyFinder(), remote.key)
        found = await check(remote, remote_access.mode, key, remote_access.ledger)
    except ConfigError as error:
        raise InvalidRequest(f"the daemon cannot use {remote.name}: {error.message}", param="remote") from None
    return JSONResponse({"remote": remote.name, "endpoints": found})


def route_report(context: Context) -> RouteReport:
    """Return the part of the status about remotes: the machine's mode, the status of each remote, and what is wrong."""
    remote_access = context.service.remote_access
    if remote_access is None:
        return {"mode": RouteMode.LOCAL_ONLY, "trouble": None, "ledger_trouble": None, "remotes": []}
    statuses = {status.name: status for status in context.service.remotes()}
    return {
        "mode": remote_access.mode,
        "trouble": remote_access.file.trouble or remote_access.policy.why_local or None,
        "ledger_trouble": remote_access.ledger.trouble or None,
        "remotes": [_remote(remote, remote_access, statuses.get(remote.name)) for remote in remote_access.file.remotes],
    }


def _remote(remote: Remote, remote_access: RemoteAccess, status: RemoteStatus | None) -> RemoteReport:
    # Just after the owner's file changed, `status` may still be that of the remote's earlier endpoints. Settings are
    # taken from the file.
    known = {} if status is None else {endpoint.url: shaped(EndpointReport, endpoint) for endpoint in status.endpoints}
    used = status if any(endpoint.url in known for endpoint in remote.endpoints) else None
    trouble = remote_access.policy.why_not(remote) or (used.trouble if used is not None else "")
    spent = remote_access.ledger.spent(remote.name)
    return {
        "name": remote.name,
        "trouble": trouble or None,
        "is_used": used is not None,
        "num_live": used.num_live if used is not None else 0,
        "num_tokens_today": spent.num_tokens,
        "money_today": round(spent.money, 9),
        "budget": report(remote.budget),
        "budget_trouble": remote_access.ledger.why_blocked(remote.name, ""),
        "endpoints": [
            {**known[endpoint.url], "region": endpoint.region}
            if endpoint.url in known
            else {"url": endpoint.url, "region": endpoint.region}
            for endpoint in remote.endpoints
        ],
    }
