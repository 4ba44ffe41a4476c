"""Asks an endpoint for its health, its models and its load, with small requests without content.

No server has all of the health paths. The first path that answers is remembered.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from edgeagent.backends.remote.control import Control, OutOfTime
from edgeagent.backends.remote.dialect import VLLM, dialect_of
from edgeagent.backends.remote.endpoints.context import listed_context
from edgeagent.backends.remote.endpoints.endpoint import Endpoint
from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.backends.remote.transport import Call
from edgeagent.remotes.check import is_model_name
from edgeagent.types import ProbePermit

_PROBE_S = 5.0
_MAX_BYTES = 1 << 20
_MAX_WAITING = 1_000_000
# vllm-router's /health fails as soon as one of its workers does; its /readiness says whether it can serve.
_HEALTH_PATHS = ("/readiness", "/health")
_METRIC = re.compile(
    rb"^vllm:(num_requests_waiting|kv_cache_usage_perc)(?:\{[^}\n]*\})? ([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)$",
    re.M,
)


class _Model(Struct):
    """An entry in a list of models.

    vLLM and SGLang give the context as `max_model_len`, llama-server in `meta`, and edgeagent in `edgeagent`.
    """

    id: str
    owned_by: str = ""
    max_model_len: Any = None
    context_length: Any = None
    meta: Any = None
    edgeagent: Any = None

    @property
    def num_context_tokens(self) -> int:
        """The model's context length in tokens; 0 if the entry has none."""
        named = (self.max_model_len, self.context_length)
        return listed_context(*named, _field(self.meta, "n_ctx"), _field(self.edgeagent, "context_length"))


class _Models(Struct):
    data: list[_Model] = field(default_factory=list)


class ProbeRecorder(Protocol):
    """Records each probe before it is sent."""

    def begin(self, permit: ProbePermit, host: str, model: str, num_bytes: int) -> int:
        """Write the row of a probe, and return its number; raise RemoteUnavailable if that fails."""
        ...

    def end(self, row: int, outcome: str) -> None:
        """Write the outcome of the row with this number."""
        ...


class Prober:
    """Probes one endpoint, and records each probe. The methods' `headers` carry the key.

    The key is sent only to list the models. Each method raises RemoteUnavailable, and sends nothing, if the probe
    cannot be recorded.
    """

    def __init__(self, endpoint: Endpoint, ledger: ProbeRecorder) -> None:
        self._endpoint = endpoint
        self._ledger = ledger
        self._health_path: str | None = None
        self._has_metrics = True

    async def check(self, permit: ProbePermit, headers: tuple[tuple[str, str], ...]) -> None:
        """Probe the endpoint's health, and the load if the server is vLLM.

        Also list the models if they are unknown, or if the endpoint has no health path. Raise a Failure if a request
        fails, or if the endpoint says that it cannot serve.
        """
        with self._recorded(permit):
            await self._check(permit, headers)

    async def _check(self, permit: ProbePermit, headers: tuple[tuple[str, str], ...]) -> None:
        status = await self._health(permit)
        if status is None or not self._endpoint.is_identified:
            await self._identify(permit, headers)
        if status is not None and status >= 500:
            raise Failure(Kind.SERVER_ERROR, f"it says that it cannot serve (HTTP {status})", status=status)
        if self._endpoint.dialect is VLLM and self._has_metrics:
            await self._read_metrics(permit)

    async def open_ahead(self, permit: ProbePermit, num_connections: int) -> None:
        """Open connections until there are `num_connections`, so that requests can use them. Ignore failures."""
        call = Call(self._health_path or _HEALTH_PATHS[0], is_at_root=True)
        if (num_missing := num_connections - self._endpoint.transport.num_connections) > 0:
            with self._recorded(permit):
                await asyncio.gather(*(self._get(permit, call) for _ in range(num_missing)), return_exceptions=True)

    async def identify(self, permit: ProbePermit, headers: tuple[tuple[str, str], ...], control: Control) -> None:
        """Ask which models the endpoint has, and learn the kind of server from their `owned_by`.

        Raise a Failure if the endpoint cannot be reached, refuses the key, fails, or sends no valid list.
        Raise RequestEnded if the request of `control` is ended meanwhile.
        """
        with self._recorded(permit):
            await self._identify(permit, headers, control)

    @contextmanager
    def _recorded(self, permit: ProbePermit) -> Iterator[None]:
        row, outcome = self._ledger.begin(permit, self._endpoint.transport.host, "", 0), "cancelled"
        try:
            yield
            outcome = "completed"
        except Failure as failure:
            outcome = failure.kind.value
            raise
        finally:
            self._ledger.end(row, outcome)

    async def _identify(
        self, permit: ProbePermit, headers: tuple[tuple[str, str], ...], control: Control | None = None
    ) -> None:
        status, body = await self._get(permit, Call("/models", headers=headers), control)
        if status in (401, 403):
            raise Failure(Kind.REFUSED_KEY, f"it refused the key (HTTP {status})", status=status)
        if status >= 500:
            raise Failure(Kind.SERVER_ERROR, f"it failed (HTTP {status})", status=status)
        endpoint = self._endpoint
        endpoint.is_identified = True
        if status != 200:
            return
        try:
            models = msgspec.json.decode(body, type=_Models).data
        except (ValueError, RecursionError):
            raise Failure(Kind.GARBLED, "its list of models is not valid") from None
        endpoint.models = tuple(model.id for model in models if is_model_name(model.id))
        for model in models:
            endpoint.note_context(model.id, model.num_context_tokens)
        endpoint.dialect = dialect_of(models[0].owned_by if models else "")

    async def _health(self, permit: ProbePermit) -> int | None:
        """Return the HTTP status of the first health path that exists; None if none exists."""
        paths = _HEALTH_PATHS if self._health_path is None else (self._health_path,)
        for path in paths:
            began_s = time.monotonic()
            status, body = await self._get(permit, Call(path, is_at_root=True))
            self._endpoint.round_trip_s = time.monotonic() - began_s
            if status == 200 and body.lstrip()[:1] == b"<":
                raise Failure(Kind.GARBLED, "a web page answers in its place (a network's sign-in page?)")
            if status in (200, 204) or status >= 500:
                self._health_path = path
                return status
        return None

    async def _read_metrics(self, permit: ProbePermit) -> None:
        status, body = await self._get(permit, Call("/metrics", is_at_root=True))
        found = _METRIC.findall(body) if status == 200 else []
        if not found:
            self._has_metrics = False
            return
        values: dict[bytes, list[float]] = {}
        for name, value in found:
            values.setdefault(name, []).append(float(value))
        # A remote may send any number, even one so large that it becomes infinity as a float.
        self._endpoint.num_waiting = int(min(sum(values.get(b"num_requests_waiting", [0])), _MAX_WAITING))
        self._endpoint.kv_usage = min(max(values.get(b"kv_cache_usage_perc", [0.0])), 1.0)

    async def _get(self, permit: ProbePermit, call: Call, control: Control | None = None) -> tuple[int, bytes]:
        until_s = asyncio.get_running_loop().time() + _PROBE_S
        try:
            return await (control or Control()).wait(until_s, partial(self._ask, permit, call))
        except OutOfTime:
            raise Failure(Kind.TIMEOUT, f"no answer to {call.path} within {_PROBE_S:g} s") from None

    async def _ask(self, permit: ProbePermit, call: Call) -> tuple[int, bytes]:
        exchange = await self._endpoint.transport.open(permit, call)
        try:
            body = await exchange.read_all(_MAX_BYTES)
            if 300 <= exchange.status < 400:
                raise Failure(Kind.REDIRECT, f"it redirects elsewhere (HTTP {exchange.status})", status=exchange.status)
            return exchange.status, body
        finally:
            await exchange.close()


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
