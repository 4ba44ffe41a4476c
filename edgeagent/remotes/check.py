"""The checks of a remote's fields. An error names the remote, the field, the value, and what to write instead."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from msgspec.structs import asdict, replace

from edgeagent.errors import ConfigError
from edgeagent.remotes import Budget, EndpointConfig, Limits, Remote

MAX_ENDPOINTS = 16
MAX_MODELS = 1000
MAX_NAME_CHARS = 512
MAX_URL_CHARS = 2048
MAX_CONCURRENT = 4096
MAX_SECONDS = 86_400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_PIN = re.compile(r"[0-9a-f]{64}")
_API = "/v1"


def checked(remote: Remote) -> Remote:
    """Return a remote with its URLs and its pin in their normal form; raise ConfigError if a field is not valid."""
    check_name(remote.name)
    where = f"remote {remote.name!r}"
    if not 1 <= len(remote.endpoints) <= MAX_ENDPOINTS:
        raise ConfigError(f"{where}: endpoints: must be 1 to {MAX_ENDPOINTS} URLs, not {len(remote.endpoints)}")
    endpoints = tuple(
        _endpoint(endpoint, f"{where}: endpoints[{index}]", is_plaintext_allowed=remote.plaintext)
        for index, endpoint in enumerate(remote.endpoints)
    )
    for index, endpoint in enumerate(endpoints):
        if endpoint.url in (other.url for other in endpoints[:index]):
            raise ConfigError(f"{where}: endpoints[{index}].url: {endpoint.url} is given twice")
    _check_key(remote, where)
    _check_models(remote, where)
    _check_numbers(remote, where)
    for field, text in asdict(remote.terms).items():
        if not text.isprintable() or len(text) > MAX_NAME_CHARS:
            raise ConfigError(f"{where}: terms.{field}: must be printable, at most {MAX_NAME_CHARS} characters")
    if remote.proxy is not None:
        check_url(remote.proxy, f"{where}: proxy")
    return replace(remote, endpoints=endpoints, tls=_tls(remote, where))


def check_name(name: str) -> None:
    """Raise ConfigError if a text is not valid as a remote's name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"a remote's name is letters, digits and _.-, at most 64 of them, not {name!r:.80}")


def complete_url(text: str) -> str:
    """Return a base URL, with /v1 appended if it is missing; raise ConfigError if it is not valid as a base URL."""
    parts = check_url(text, "URL")
    path = parts.path.rstrip("/")
    path = path if path.endswith(_API) else f"{path}{_API}"
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{path}"


def is_model_name(text: str) -> bool:
    """Whether a text can be the name of a remote's model: 1 to MAX_NAME_CHARS printable characters."""
    return 1 <= len(text) <= MAX_NAME_CHARS and text.isprintable()


def host_of(url: str) -> str:
    """Return the host of a checked URL, with its port if the URL has one."""
    return urlsplit(url).netloc


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine: a loopback address, or the name localhost. One that is no URL is not."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _endpoint(endpoint: EndpointConfig, where: str, *, is_plaintext_allowed: bool) -> EndpointConfig:
    try:
        url = complete_url(endpoint.url)
    except ConfigError as error:
        raise ConfigError(f"{where}.url: {error.message.removeprefix('URL: ')}") from None
    if url.startswith("http:") and not is_plaintext_allowed and not is_loopback(url):
        raise ConfigError(
            f"{where}.url: {url} is not encrypted, and prompts, answers and the key could be read on the way; "
            "use https://, or allow it (plaintext: true, `edgeagent remote add --plaintext`)"
        )
    if not endpoint.region.isprintable() or len(endpoint.region) > MAX_NAME_CHARS:
        raise ConfigError(f"{where}.region: must be printable, at most {MAX_NAME_CHARS} characters")
    return replace(endpoint, url=url)


def check_url(text: str, where: str) -> SplitResult:
    """Return the parts of an http or https URL. `where` names the URL's field at the start of an error's text.

    Raise ConfigError if the URL is invalid or too long, or has a user name, a password, a query or a fragment.
    """
    if len(text) > MAX_URL_CHARS or not text.isascii() or any(not char.isprintable() or char == " " for char in text):
        raise ConfigError(f"{where}: must be a URL of at most {MAX_URL_CHARS} ASCII characters without blanks")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{where}: {_shown(text)} is not a URL: {error}") from None
    # Check this before any message that quotes the URL, since this part may be a secret.
    if "@" in parts.netloc:
        raise ConfigError(f"{where}: a URL must have no user name or password; say where the key is (--key-env)")
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"{where}: must begin with https:// (or http://), not {_shown(text)}")
    host = parts.hostname or ""
    if not (":" in host or _HOST.fullmatch(host)) or "%" in host:
        raise ConfigError(f"{where}: has no valid host: {_shown(text)}")
    if port == 0:
        raise ConfigError(f"{where}: 0 is not a port")
    if "?" in text or "#" in text:
        raise ConfigError(f"{where}: must have no query and no fragment; use {_shown(text)}")
    return parts


def _shown(text: str) -> str:
    return repr(re.split(r"[?#]", text, maxsplit=1)[0][:200])


def _check_key(remote: Remote, where: str) -> None:
    key = remote.key
    if key is None:
        return
    if key.source == "env" and not _VARIABLE.fullmatch(key.name):
        # The name may be the key itself, written here by mistake, so the message must not quote it.
        raise ConfigError(f"{where}: key.name: must be the name of an environment variable (not the key itself)")
    if key.source == "file" and not Path(key.name).is_absolute():
        raise ConfigError(f"{where}: key.name: must be an absolute path, not {key.name!r:.200}")
    if not key.name or not key.name.isprintable():
        raise ConfigError(f"{where}: key.name: must be printable text")


def _check_models(remote: Remote, where: str) -> None:
    if len(remote.models) > MAX_MODELS:
        raise ConfigError(f"{where}: models: at most {MAX_MODELS}, not {len(remote.models)}")
    for local, theirs in remote.models.items():
        for name in (local, theirs):
            if not is_model_name(name):
                raise ConfigError(
                    f"{where}: models: a name is 1 to {MAX_NAME_CHARS} printable characters, not {name!r:.80}"
                )


def _tls(remote: Remote, where: str) -> Any:
    tls = remote.tls
    for field in ("ca_file", "client_certificate", "client_key"):
        path = getattr(tls, field)
        if path is not None and not Path(path).is_absolute():
            raise ConfigError(f"{where}: tls.{field}: must be an absolute path, not {path!r:.200}")
    if tls.client_key is not None and tls.client_certificate is None:
        raise ConfigError(f"{where}: tls.client_key: needs tls.client_certificate, the certificate of this key")
    if tls.pin is None:
        return tls
    pin = tls.pin.replace(":", "").lower().removeprefix("sha256/")
    if not _PIN.fullmatch(pin):
        raise ConfigError(
            f"{where}: tls.pin: must be the SHA-256 of the certificate, 64 hexadecimal digits "
            "(openssl x509 -noout -fingerprint -sha256)"
        )
    return replace(tls, pin=pin)


def _check_numbers(remote: Remote, where: str) -> None:
    _check_each(f"{where}: price", asdict(remote.price), lambda value: value >= 0, "0 or more")
    check_budget(remote.budget, f"{where}: budget")
    _check_each(where, {"context_length": remote.context_length}, lambda value: value >= 0, "0 or more")
    limits = asdict(remote.limits)
    most = limits.pop("max_concurrent")
    _check_each(
        f"{where}: limits",
        {"max_concurrent": most},
        lambda value: 1 <= value <= MAX_CONCURRENT,
        f"1 to {MAX_CONCURRENT}",
    )
    in_range = f"more than 0, at most {MAX_SECONDS:g}"
    _check_each(f"{where}: limits", limits, lambda value: 0 < value <= MAX_SECONDS, in_range)
    _check_order(remote.limits, where)


def check_budget(budget: Budget, where: str) -> None:
    """Raise ConfigError if a budget is not valid. `where` names the field at the start of the error's text."""
    _check_each(where, asdict(budget), lambda value: value >= 0, "0 or more")


def _check_each(where: str, values: dict[str, float | None], is_right: Callable[[float], bool], wanted: str) -> None:
    separator = "." if ": " in where else ": "
    for field, value in values.items():
        if value is not None and not (math.isfinite(value) and is_right(value)):
            raise ConfigError(f"{where}{separator}{field}: must be {wanted}, not {value!r:.40}")


def _check_order(limits: Limits, where: str) -> None:
    if limits.total_s < limits.first_token_s:
        raise ConfigError(
            f"{where}: limits.total_s: {limits.total_s:g} s is less than limits.first_token_s "
            f"({limits.first_token_s:g} s)"
        )
