"""GET /metrics: what the daemon measures of itself, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.metrics.exposition import CONTENT_TYPE, Snapshot, exposition

router = APIRouter()


@router.get("/metrics")
async def get_metrics(request: Request) -> Response:
    """Return every measurement in Prometheus's text format."""
    context = context_of(request)
    snapshot = Snapshot(context.service.models.statuses(), context.num_connections(), context.service.remotes())
    return Response(exposition(snapshot), media_type=CONTENT_TYPE)
