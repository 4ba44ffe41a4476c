"""Tests a remote for its owner: name lookup, connection, TLS, models and one token, with the time of each.

The test sends a greeting and no client's data. Like any request, it needs a mode that lets requests leave the machine,
and it is recorded in the egress ledger.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

import msgspec
from msgspec import Struct

from edgeagent.backends.remote.access import quotes_key
from edgeagent.backends.remote.answer import usage_of
from edgeagent.backends.remote.dialect import dialect_of
from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.backends.remote.probe import recorded
from edgeagent.backends.remote.transport import Call, Exchange, Transport, tls_context
from edgeagent.egress.ledger import Ledger
from edgeagent.errors import ConfigError, EdgeAgentError
from edgeagent.remotes import Remote
from edgeagent.remotes.check import is_model_name
from edgeagent.types import Checkup, Permit, ProbePermit, RouteMode

MAX_ANSWER_BYTES = 4 << 20
MAX_QUOTED = 200
_GREETING = "Hello"


async def check(remote: Remote, mode: RouteMode, key: str, ledger: Ledger) -> list[dict[str, Any]]:
    """Try every endpoint of a remote, and return a Checkup for each, as a dict for JSON.

    `key` is the API key; empty if the remote has none. Raise ConfigError if the mode is local_only, or if a TLS file
    cannot be used.
    """
    if mode is RouteMode.LOCAL_ONLY:
        raise ConfigError(
            "the route is local_only, so nothing leaves this machine, not even a test; set another to try the remote "
            "(`edgeagent serve --route`, EDGEAGENT_ROUTE, or route in config.toml)"
        )
    context = tls_context(remote.tls)
    headers = (("Authorization", f"Bearer {key}"),) if key else ()
    found = []
    for endpoint in remote.endpoints:
        transport = Transport(remote, endpoint.url, context)
        checkup = Checkup(endpoint.url, endpoint.region)
        try:
            await _try(_Try(remote, mode, transport, headers, ledger, checkup))
        except Failure as failure:
            checkup.problem = failure.message
            if checkup.models_s is None:
                checkup.problem += _advice(failure, endpoint.url, remote)
        except TimeoutError:
            checkup.problem = f"no answer within {remote.limits.first_token_s:g} s (limits.first_token_s)"
        except EdgeAgentError as error:
            checkup.problem = error.message
        finally:
            await transport.drop()
        found.append(msgspec.to_builtins(checkup))
    return found


def _advice(failure: Failure, url: str, remote: Remote) -> str:
    """Return what the owner can do about a failed connection; empty if that is unknown.

    The text begins with "; ", so that it can be appended to the failure's message.
    """
    is_secure = url.startswith("https:")
    if failure.kind is Kind.UNTRUSTED and "not trusted" in failure.message and remote.tls.ca_file is None:
        return "; name its CA (--ca), or this one certificate (--pin)"
    if failure.kind is Kind.UNTRUSTED and "TLS" in failure.message:
        return "; does its URL begin with http://?"
    return "; does its URL begin with https://?" if failure.kind is Kind.CUT and not is_secure else ""


class _Try(Struct):
    remote: Remote
    mode: RouteMode
    transport: Transport
    headers: tuple[tuple[str, str], ...]
    ledger: Ledger
    checkup: Checkup


async def _try(this: _Try) -> None:
    owner = await _ask_for_models(this)
    model = _choose_model(this.remote, this.checkup)
    if model:
        await _ask_for_token(this, model, owner)


async def _ask_for_models(this: _Try) -> str:
    """Ask for the models, and record their names and the times. Return the first model's `owned_by`; "" if none."""
    began_s = time.monotonic()
    permit = ProbePermit(this.remote.name, this.mode)
    with recorded(this.ledger, permit, this.transport.host):
        exchange, content = await _exchange(this, permit, Call("/models", headers=this.headers))
    checkup, stages = this.checkup, exchange.stages.connection
    checkup.name_s, checkup.connect_s = stages.name_s, stages.connect_s
    checkup.tls_s = stages.tls_s if checkup.url.startswith("https:") else None
    checkup.models_s = time.monotonic() - began_s - stages.name_s - stages.connect_s - stages.tls_s
    _check_status(exchange, content, this)
    try:
        rows = [row for row in msgspec.json.decode(content)["data"] if _is_name(row["id"])]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        raise Failure(Kind.GARBLED, "its /models is not OpenAI's list: is the base URL right?") from None
    checkup.models = tuple(row["id"] for row in rows)
    return str(rows[0].get("owned_by", "")) if rows else ""


def _choose_model(remote: Remote, checkup: Checkup) -> str:
    """Return the name of the model that the check asks to generate one token; "" if there is none.

    Record configured models that the remote lacks.
    """
    missing = [name for name in remote.models.values() if name not in checkup.models]
    if missing:
        have = ", ".join(checkup.models[:10]) or "none"
        checkup.problem = f"it does not serve {', '.join(missing)}; it has {have}"
    wanted = [name for name in remote.models.values() if name in checkup.models]
    if not wanted and not checkup.models:
        checkup.problem = checkup.problem or "it serves no model"
    return (wanted or list(checkup.models) or [""])[0]


async def _ask_for_token(this: _Try, model: str, owner: str) -> None:
    messages = [{"role": "user", "content": _GREETING}]
    content = msgspec.json.encode({"model": model, "messages": messages, dialect_of(owner).max_tokens: 1})
    request_id = f"test-{secrets.token_hex(8)}"
    permit = Permit(request_id, this.remote.name, this.mode, "remote_test")
    began_s = time.monotonic()
    with recorded(this.ledger, permit, this.transport.host, model, len(content), 1) as usage:
        exchange, answer = await _exchange(this, permit, Call("/chat/completions", content, this.headers, request_id))
        _check_status(exchange, answer, this)
        usage += _usage(answer)
    this.checkup.model, this.checkup.token_s = model, time.monotonic() - began_s


async def _exchange(this: _Try, permit: Permit | ProbePermit, call: Call) -> tuple[Exchange, bytes]:
    async with asyncio.timeout(this.remote.limits.first_token_s):
        return await this.transport.fetch(permit, call, MAX_ANSWER_BYTES)


def _usage(content: bytes) -> tuple[int, int]:
    """Return the remote's token counts of the prompt and the answer; raise a Failure if `content` is no answer."""
    try:
        answer = msgspec.json.decode(content)
        if "choices" not in answer:
            raise KeyError
        usage = answer.get("usage") or {}
        counted = usage_of(int(usage.get("prompt_tokens", 0)), 0, int(usage.get("completion_tokens", 0)))
        return counted.num_prompt_tokens, counted.num_output_tokens
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError):
        raise Failure(Kind.GARBLED, "its answer is not OpenAI's") from None


def _check_status(exchange: Exchange, content: bytes, this: _Try) -> None:
    status, remote = exchange.status, this.remote
    if status < 300:
        return
    said = _quoted(content)
    said = "" if quotes_key(said, this.headers) else said
    match status:
        case 401 | 403:
            where = "no key is sent" if remote.key is None else f"the key is that in {remote.key.source}"
            raise Failure(Kind.REFUSED_KEY, f"it refuses the key (HTTP {status}); {where}{said}", status=status)
        case 404:
            raise Failure(Kind.NO_MODEL, f"it does not know the address (HTTP 404): is the base URL right?{said}")
        case _ if status < 400:
            raise Failure(Kind.REDIRECT, f"it redirects (HTTP {status}), which is never followed; give the last URL")
    raise Failure(Kind.SERVER_ERROR, f"it answers with HTTP {status}{said}", status=status)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and is_model_name(value)


def _quoted(content: bytes) -> str:
    """Return a remote's error message after "; it says: ", shortened and printable; "" if `content` has none."""
    try:
        error = msgspec.json.decode(content)["error"]
        text = error if isinstance(error, str) else error["message"]
    except (msgspec.DecodeError, RecursionError, KeyError, TypeError):
        return ""
    shown = "".join(char if char.isprintable() else " " for char in str(text)[:MAX_QUOTED])
    return f"; it says: {shown}"
