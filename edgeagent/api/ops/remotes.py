"""The remotes as their owner sees them, and the ledger of what left this machine, shown and purged."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from msgspec import structs

from edgeagent.api.context import Context, context_of
from edgeagent.api.wire.shape import Json
from edgeagent.egress import Row
from edgeagent.egress.rows import described, folder_of, purge, read_rows
from edgeagent.egress.spending import Spent
from edgeagent.errors import ConfigError, InternalError, InvalidRequest
from edgeagent.remotes import Remote
from edgeagent.types import RemoteStatus

MAX_ROWS = 1000

router = APIRouter(prefix="/edgeagent/egress")


@router.get("")
async def get_egress(request: Request, since_s: str = "0", limit: str = "100") -> JSONResponse:
    """Return rows of the ledger since a time, the oldest first: what left this machine, without its content."""
    since, most = _number(since_s, "since_s"), int(_number(limit, "limit"))
    if not 1 <= most <= MAX_ROWS:
        raise InvalidRequest(f"limit must be from 1 to {MAX_ROWS}, not {most}", param="limit")
    folder = folder_of(context_of(request).config.state_dir)
    try:
        rows: deque[Row] = await asyncio.to_thread(lambda: deque(read_rows(folder, since), most))
    except ConfigError as error:
        raise InternalError(error.message) from None
    return JSONResponse({"rows": [described(row) for row in rows]})


@router.post("/purge")
async def purge_egress(request: Request) -> JSONResponse:
    """Delete every row of the ledger; what was spent today still counts."""
    try:
        num_days = await asyncio.to_thread(purge, folder_of(context_of(request).config.state_dir), time.time())
    except ConfigError as error:
        raise InternalError(error.message) from None
    return JSONResponse({"status": "purged", "num_days": num_days})


def route_report(context: Context) -> Json:
    """Return where requests may run, and how each remote stands; `trouble` says why none is used."""
    outside = context.service.outside
    if outside is None:
        return {"mode": "local_only", "trouble": None, "ledger_trouble": None, "remotes": []}
    statuses = {status.name: status for status in context.service.remotes()}
    return {
        "mode": outside.mode.value,
        "trouble": outside.file.trouble or outside.policy.why_local or None,
        "ledger_trouble": outside.ledger.trouble or None,
        "remotes": [
            _remote(
                remote,
                outside.policy.why_not(remote),
                statuses.get(remote.name),
                outside.ledger.spent(remote.name),
                outside.ledger.budget_left(remote.name, ""),
            )
            for remote in outside.file.remotes
        ],
    }


def _remote(
    remote: Remote, why_not: str, status: RemoteStatus | None, spent: Spent, budget_trouble: str | None
) -> Json:
    # For a moment after a change the status is that of the remote before it: what the owner wrote comes from the file.
    known = {} if status is None else {endpoint.url: structs.asdict(endpoint) for endpoint in status.endpoints}
    used = status if any(endpoint.url in known for endpoint in remote.endpoints) else None
    trouble = why_not or (used.trouble if used is not None else "")
    return {
        "name": remote.name,
        "trouble": trouble or None,
        "is_used": used is not None,
        "num_live": used.num_live if used is not None else 0,
        "num_tokens_today": spent.num_tokens,
        "money_today": round(spent.money, 9),
        "budget": structs.asdict(remote.budget),
        "budget_trouble": budget_trouble,
        "endpoints": [
            known.get(endpoint.url, {}) | {"url": endpoint.url, "region": endpoint.region}
            for endpoint in remote.endpoints
        ],
    }


def _number(text: str, param: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e11:
        raise InvalidRequest(f"{param} must be a number from 0, not {text!r:.80}", param=param)
    return value
