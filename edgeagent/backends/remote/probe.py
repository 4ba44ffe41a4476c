"""Asks an endpoint for its health, its models and its load, with small requests without content.

No server has all of the health paths. The first path that answers is remembered.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import Struct, field

from edgeagent.backends.remote.access import Headers
from edgeagent.backends.remote.dialect import VLLM, dialect_of
from edgeagent.backends.remote.endpoint import Endpoint
from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.backends.remote.transport import Call
from edgeagent.egress.ledger import Ledger
from edgeagent.remotes.check import is_model_name
from edgeagent.types import Permit, ProbePermit

_PROBE_S = 5.0
_MAX_BYTES = 1 << 20
_MAX_WAITING = 1_000_000
# vllm-router's /health fails as soon as one of its workers does; its /readiness says whether it can serve.
_HEALTH_PATHS = ("/readiness", "/health")
_METRIC = re.compile(
    rb"^vllm:(num_requests_waiting|kv_cache_usage_perc)(?:\{[^}\n]*\})? ([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)$",
    re.M,
)
# The largest plausible context, in tokens.
_MAX_CONTEXT = 1 << 24
_TOO_LONG = re.compile(r"context.{0,40}(length|window|size)|maximum.{0,20}(context|tokens|model length)|too long", re.I)
_TOLD = re.compile(r"(?:context|model)(?:['\u2019]s)? (?:length|window|size)\D{0,20}(\d{1,12})", re.I)


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
        return _context_of(*named, _field(self.meta, "n_ctx"), _field(self.edgeagent, "context_length"))


class _Models(Struct):
    data: list[_Model] = field(default_factory=list)


async def check(endpoint: Endpoint, ledger: Ledger, permit: ProbePermit, headers: Headers) -> None:
    """Probe an endpoint's health, and the load if the server is vLLM.

    Also list the models if they are unknown, or if the endpoint has no health path; only this request has `headers`,
    which carry the key. Raise a Failure if a request fails, or if the endpoint says that it cannot serve. Raise
    RemoteUnavailable, and send nothing, if the probe cannot be recorded.
    """
    with recorded(ledger, permit, endpoint.transport.host):
        status = await _health(endpoint, permit)
        if status is None or not endpoint.is_identified:
            await _identify(endpoint, permit, headers)
        if status is not None and status >= 500:
            raise Failure(Kind.SERVER_ERROR, f"it says that it cannot serve (HTTP {status})", status=status)
        if endpoint.dialect is VLLM and endpoint.has_metrics:
            await _read_metrics(endpoint, permit)


async def identify(endpoint: Endpoint, ledger: Ledger, permit: ProbePermit, headers: Headers) -> None:
    """Ask which models an endpoint has, and learn the kind of server from their `owned_by`.

    Raise a Failure if the endpoint cannot be reached, refuses the key, fails, or sends no valid list; RemoteUnavailable
    if the probe cannot be recorded.
    """
    with recorded(ledger, permit, endpoint.transport.host):
        await _identify(endpoint, permit, headers)


@contextmanager
def recorded(
    ledger: Ledger, permit: Permit | ProbePermit, host: str, model: str = "", num_bytes: int = 0, num_reserved: int = 0
) -> Iterator[list[int]]:
    """Record in the ledger what is sent within this context. Yield a list: add the number of the prompt's tokens
    to it, then that of the answer's.

    `num_reserved` tokens are reserved for the prompt, and as many for the answer.
    """
    row = ledger.begin(permit, host, model, num_bytes, num_reserved, num_reserved)
    outcome, usage = "cancelled", list[int]()
    try:
        yield usage
        outcome = "completed"
    except Failure as failure:
        outcome = failure.kind.value
        raise
    except TimeoutError:
        outcome = Kind.TIMEOUT.value
        raise
    finally:
        ledger.end(row, outcome, *usage)


async def _identify(endpoint: Endpoint, permit: ProbePermit, headers: Headers) -> None:
    status, body = await _get(endpoint, permit, Call("/models", headers=headers))
    if status in (401, 403):
        raise Failure(Kind.REFUSED_KEY, f"it refused the key (HTTP {status})", status=status)
    if status >= 500:
        raise Failure(Kind.SERVER_ERROR, f"it failed (HTTP {status})", status=status)
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


async def _health(endpoint: Endpoint, permit: ProbePermit) -> int | None:
    """Return the HTTP status of the first health path that exists; None if none exists."""
    for path in _HEALTH_PATHS if endpoint.health_path is None else (endpoint.health_path,):
        began_s = time.monotonic()
        status, body = await _get(endpoint, permit, Call(path, is_at_root=True))
        endpoint.round_trip_s = time.monotonic() - began_s
        if status == 200 and body.lstrip()[:1] == b"<":
            raise Failure(Kind.GARBLED, "a web page answers in its place (a network's sign-in page?)")
        if status in (200, 204) or status >= 500:
            endpoint.health_path = path
            return status
    return None


async def _read_metrics(endpoint: Endpoint, permit: ProbePermit) -> None:
    status, body = await _get(endpoint, permit, Call("/metrics", is_at_root=True))
    found = _METRIC.findall(body) if status == 200 else []
    if not found:
        endpoint.has_metrics = False
        return
    values: dict[bytes, list[float]] = {}
    for name, value in found:
        values.setdefault(name, []).append(float(value))
    # A remote may send any number, even one so large that it becomes infinity as a float.
    endpoint.num_waiting = int(min(sum(values.get(b"num_requests_waiting", [0])), _MAX_WAITING))
    endpoint.kv_usage = min(max(values.get(b"kv_cache_usage_perc", [0.0])), 1.0)


async def _get(endpoint: Endpoint, permit: ProbePermit, call: Call) -> tuple[int, bytes]:
    try:
        async with asyncio.timeout(_PROBE_S):
            exchange, body = await endpoint.transport.fetch(permit, call, _MAX_BYTES)
    except TimeoutError:
        raise Failure(Kind.TIMEOUT, f"no answer to {call.path} within {_PROBE_S:g} s") from None
    if 300 <= exchange.status < 400:
        raise Failure(Kind.REDIRECT, f"it redirects elsewhere (HTTP {exchange.status})", status=exchange.status)
    return exchange.status, body


def is_too_long(refusal: str) -> bool:
    """Whether a refusal says that the prompt and the requested output tokens do not fit the context."""
    return _TOO_LONG.search(refusal) is not None


def told_context(refusal: str) -> int:
    """Return the context length in tokens that a refusal of a prompt names; 0 if it names none."""
    told = _TOLD.search(refusal)
    return 0 if told is None else _context_of(int(told[1]))


def _context_of(*values: Any) -> int:
    """Return the first value that can be a context length in tokens; 0 if none can. The remote sent the values."""
    return next((value for value in values if type(value) is int and 0 < value <= _MAX_CONTEXT), 0)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
