"""Takes each request to a backend: estimates, policy, admission, then the backend's own steps.

The wire calls it the service. The decisions are pure functions in policy and admission; here are their effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from edgeagent.backends.base import Backend, Estimate
from edgeagent.errors import BackendUnavailable, EdgeAgentError, ModelNotFound, Overloaded
from edgeagent.router.admission import Refused, admit
from edgeagent.router.outside import Outside
from edgeagent.router.policy import Route, choose_routes
from edgeagent.types import Delta, Finished, GenerateRequest, ModelStatus, RemoteStatus, Step, TextAnswer, TextQuery


class Router:
    """All backends as one; its `generate` and `cancel` keep the contract of backends.base.Backend."""

    def __init__(self, backends: Sequence[Backend], outside: Outside | None = None) -> None:
        """Without `outside` there are no remotes."""
        self._backends = {backend.name: backend for backend in backends}
        self.outside = outside

    async def start(self) -> None:
        """Start every backend; raise what keeps one from starting."""
        for backend in self._backends.values():
            await backend.start()

    async def stop(self) -> None:
        """End every request, then release everything."""
        await asyncio.gather(*(backend.stop() for backend in self._backends.values()))
        if self.outside is not None:
            self.outside.close()

    def remotes(self) -> list[RemoteStatus]:
        """Return how the remotes stand that requests may go to."""
        return []

    def models(self) -> list[ModelStatus]:
        """Return the models of every backend."""
        return [model for backend in self._backends.values() for model in backend.models()]

    def reload(self, model: str) -> None:
        """Load a model anew, which lifts a quarantine too; its live requests go on. Raise ModelNotFound."""
        unknown: ModelNotFound | None = None
        for backend in self._backends.values():
            try:
                return backend.reload(model)
            except ModelNotFound as error:
                unknown = unknown or error
        assert unknown is not None
        raise unknown

    def default_model(self) -> str:
        """Return the name of the model that serves a request which names none."""
        return next(iter(self._backends.values())).default_model()

    def find_model(self, name: str) -> str:
        """Return the one name of a model that clients call by several; raise ModelNotFound, or BackendUnavailable."""
        unknown: EdgeAgentError | None = None
        for backend in self._backends.values():
            try:
                return backend.find_model(name)
            except (ModelNotFound, BackendUnavailable) as error:
                unknown = unknown or error
        raise unknown or BackendUnavailable("there is no backend that could answer")

    async def ask(self, model: str, query: TextQuery) -> TextAnswer:
        """Answer a question about text where the model is; raise ModelNotFound."""
        unknown: ModelNotFound | None = None
        for backend in self._backends.values():
            try:
                return await backend.ask(model, query)
            except ModelNotFound as error:
                unknown = unknown or error
        raise unknown or BackendUnavailable("there is no backend that could answer")

    def cancel(self, request_id: str) -> None:
        """End a live request politely, wherever it runs; an unknown or finished id is ignored."""
        for backend in self._backends.values():
            backend.cancel(request_id)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Step, None]:
        """Run a request where the policy says; the terminal event says where that was, and why.

        From the decision to the backend's acceptance nothing is awaited, so that a burst is counted exactly.
        """
        route = self._choose(request)
        async with aclosing(self._backends[route.backend].generate(request)) as steps:
            async for step in steps:
                yield _with_route(step, route)

    def _choose(self, request: GenerateRequest) -> Route:
        estimates = self._estimates(request)
        routes = choose_routes(request, estimates)
        if not routes:
            raise BackendUnavailable(f"no backend may serve model {request.model!r}; this daemon is local only")
        decision = admit(routes, estimates)
        if isinstance(decision, Refused):
            raise Overloaded(
                f"{decision.num_live} requests are running or waiting and no more are taken; try again later",
                retry_after_s=decision.retry_after_s,
            )
        return decision.route

    def _estimates(self, request: GenerateRequest) -> list[Estimate]:
        estimates: list[Estimate] = []
        unknown: ModelNotFound | None = None
        for backend in self._backends.values():
            try:
                estimates.append(backend.estimate(request))
            except ModelNotFound as error:
                unknown = unknown or error
        if unknown is not None and not estimates:
            raise unknown
        return estimates


def _with_route(step: Step, route: Route) -> Step:
    if not step.deltas or not isinstance(step.deltas[-1], Finished):
        return step
    finished = step.deltas[-1]
    timings = replace(finished.timings, route=route.backend, reason=route.reason)
    deltas: tuple[Delta, ...] = (*step.deltas[:-1], replace(finished, timings=timings))
    return replace(step, deltas=deltas)
