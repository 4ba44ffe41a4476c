"""Which backends may serve a request, best first, and why. Pure: it sees estimates, never backends.

This is the one place that lets a request off the machine; it lets none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgeagent.backends.base import Estimate
from edgeagent.types import GenerateRequest


@dataclass(frozen=True, slots=True)
class Route:
    """A backend and the reason for its place in the order; the reason is told in the terminal event."""

    backend: str
    reason: str


def choose_routes(request: GenerateRequest, estimates: Sequence[Estimate]) -> tuple[Route, ...]:
    """Return the routes a request may take, best first; none where no backend may serve it."""
    del request  # every request is local only
    return tuple(Route(estimate.backend, "local_only") for estimate in estimates if estimate.is_local)
