"""Requests to a server and the arrival times of its answers, over server-sent events or over edgeagent's WebSocket."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import httpx2

from edgeagent.client import Address, Client
from edgeagent.client.address import is_loopback
from edgeagent.client.answer import wire_error
from edgeagent.errors import (
    BackendUnavailable,
    ConfigError,
    EdgeAgentError,
    ModelNotFound,
    NotFound,
    Overloaded,
    Unauthorized,
)


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A request: a prompt, and the maximum length of the answer. Sampling is greedy, so the answer is not random.

    `earlier` are the messages before the prompt, in a form that chat completions and the Responses API accept. `own`
    are further fields for an edgeagent, over the WebSocket or over HTTP. Servers of other kinds do not get them.
    """

    prompt: str
    max_tokens: int
    earlier: Sequence[dict[str, str]] = ()
    own: Mapping[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*self.earlier, {"role": "user", "content": self.prompt}]


@dataclass(frozen=True, slots=True)
class Counts:
    """The server's own token counts for one answer. `num_cached` is 0 if the server does not report it."""

    num_prompt: int
    num_cached: int
    num_output: int


@dataclass(slots=True)
class Trace:
    """The arrival times of one answer's events, in seconds of time.perf_counter.

    `texts` are the arrival times of events with text (reasoning included). `num_chars` has the number of characters in
    each of these events, since events can have different numbers of tokens. `counts` and `reported` are what the server
    says of the answer: its token counts, and the fields `timings` (llama-server's format) and `edgeagent`. `on_text` is
    called for each event with text.
    """

    on_text: Callable[[], None] | None = None
    sent_s: float = 0.0
    first_event_s: float | None = None
    texts: list[float] = field(default_factory=list)
    num_chars: list[int] = field(default_factory=list)
    counts: Counts | None = None
    reported: dict[str, Any] = field(default_factory=dict)

    def send(self) -> None:
        self.sent_s = time.perf_counter()

    def event(self, arrived_s: float, num_chars: int) -> None:
        """Record an event: its arrival time, and the number of characters of its text (0 if it has none)."""
        if self.first_event_s is None:
            self.first_event_s = arrived_s
        if num_chars:
            self.texts.append(arrived_s)
            self.num_chars.append(num_chars)
            if self.on_text is not None:
                self.on_text()

    @property
    def first_text_s(self) -> float | None:
        return self.texts[0] if self.texts else None

    @property
    def ttft_ms(self) -> list[float]:
        """The time to the first text, as a list of one value, or empty if the answer has no text."""
        return [1000 * (self.texts[0] - self.sent_s)] if self.texts else []

    def report(self, fields: Mapping[str, Any]) -> None:
        """Record what an event or the whole answer says of itself."""
        for name in ("timings", "edgeagent"):
            if isinstance(fields.get(name), dict):
                self.reported[name] = self.reported.get(name, {}) | fields[name]

    @property
    def gaps_ms(self) -> list[float]:
        """The milliseconds between consecutive events with text."""
        return [1000 * (later - earlier) for earlier, later in pairwise(self.texts)]

    @property
    def tokens_per_event(self) -> float | None:
        """The average number of tokens in an event with text; None if unknown."""
        return self.counts.num_output / len(self.texts) if self.counts and self.texts else None

    @property
    def tokens_per_s(self) -> list[float]:
        """The rate from the first text to the last, as a list of one value, or empty if it is unknown.

        The tokens of the first text are not counted, since they were generated before that period.
        """
        if not self.texts or self.texts[-1] <= self.texts[0]:
            return []
        tokens = self.tokens_between(self.texts[0], self.texts[-1])
        return [tokens / (self.texts[-1] - self.texts[0])] if tokens else []

    def tokens_between(self, after_s: float, until_s: float) -> float:
        """Return the estimated number of tokens that arrived after `after_s`, up to and including `until_s`.

        The server's count of all tokens is divided among the events by their number of characters. Without a count,
        return 0.
        """
        if self.counts is None or not self.texts:
            return 0.0
        arrived = zip(self.texts, self.num_chars, strict=True)
        chars = sum(num_chars for at_s, num_chars in arrived if after_s < at_s <= until_s)
        return self.counts.num_output * chars / sum(self.num_chars)


class Connection(Protocol):
    """A connection to a server. It streams one answer at a time."""

    @property
    def opening_ms(self) -> float:
        """The milliseconds that opening the connection took; 0 over HTTP, where the first request opens it."""
        ...

    async def open(self) -> None:
        """Open the connection if it is not open, so that opening it is not part of the next answer's times."""
        ...

    async def ask(self, request: BenchRequest, trace: Trace) -> None:
        """Send a request, and record its events in `trace` until the answer has ended.

        If the call is cancelled, the connection cannot be used any more. Raise EdgeAgentError if the server refuses the
        request or fails.
        """
        ...


def counts_of(usage: Mapping[str, Any] | None) -> Counts | None:
    """Return the counts in a usage object of chat completions or the Responses API; None if they are missing."""
    if not usage:
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    output = usage.get("completion_tokens", usage.get("output_tokens"))
    if prompt is None or output is None:
        return None
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return Counts(int(prompt), int(details.get("cached_tokens") or 0), int(output))


Transport = Literal["ws", "http"]

CONNECT_TIMEOUT_S = 10.0
# For each kind of server, the field that makes it generate past the model's own end of the answer. Other kinds would
# refuse the field.
IGNORE_EOS_FIELDS: dict[str, dict[str, Any]] = {
    "llamacpp": {"ignore_eos": True},
    "vllm": {"ignore_eos": True},
    "sglang": {"ignore_eos": True},
}
TEXT_FIELDS = ("content", "reasoning_content", "reasoning")
TEXT_EVENTS = frozenset({"response.output_text.delta", "response.reasoning_text.delta"})


@dataclass(frozen=True, slots=True)
class Server:
    """A server to measure. `kind` is the value of `owned_by` that the server reports for its model, or "unknown".

    If `model` is None, requests name no model.

    `restart` kills the server, as a power cut would, and starts it again under the same URL. If None, the server cannot
    be restarted.
    """

    address: Address
    transport: Transport
    model: str | None = None
    kind: str = "unknown"
    restart: Callable[[], None] | None = None

    @property
    def ignores_eos(self) -> bool:
        """Whether the server always generates the requested length, past the model's own end of the answer."""
        return self.transport == "http" and self.kind in IGNORE_EOS_FIELDS


async def find_server(
    address: Address, transport: Transport | Literal["auto"] = "auto", model: str | None = None
) -> Server:
    """Ask a server for its models, and return it with its transport.

    A ws:// or wss:// URL means the WebSocket. For other URLs, `auto` means the WebSocket if the server is an edgeagent.
    A URL without a scheme means http://. If `model` is None, the first model that the server lists is used.

    Raise EdgeAgentError if the URL is wrong, if the server does not answer or answers with an error, or if it lists
    models but not `model`.
    """
    address = replace(address, url=_checked(address.url))
    server = Server(address, "http", model)
    served = await _served_models(server)
    ids = [str(entry.get("id")) for entry in served]
    if model is not None and ids and model not in ids:
        raise ModelNotFound(f"{address.url} has no model {model!r}; it has {', '.join(ids)}", param="model")
    entry = next((entry for entry in served if model is None or entry.get("id") == model), {})
    kind = str(entry.get("owned_by") or "unknown")
    if urlsplit(address.url).scheme in ("ws", "wss"):
        transport = "ws"
    elif transport == "auto":
        transport = "ws" if kind == "edgeagent" else "http"
    return Server(address, transport, model or entry.get("id"), kind)


def _checked(url: str) -> str:
    """Return a URL with its scheme. Raise ConfigError if it is not a server's URL."""
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname and parts.port != 0:
            return full
    except ValueError:
        pass
    raise ConfigError(f"{url!r} is not a server's URL; an example is http://127.0.0.1:8080")


@asynccontextmanager
async def connection_to(server: Server) -> AsyncIterator[Connection]:
    """Yield a new connection. Over HTTP, no socket is opened until `open` or the first request."""
    if server.transport == "ws":
        began_s = time.perf_counter()
        async with Client(lambda: server.address) as client:
            yield WebSocketConnection(server, client, 1000 * (time.perf_counter() - began_s))
    else:
        async with _http(server) as http:
            yield HttpConnection(server, http)


@dataclass(frozen=True, slots=True)
class WebSocketConnection:
    """A WebSocket to /v1/responses, through the client that applications use."""

    server: Server
    client: Client
    opening_ms: float

    async def open(self) -> None:
        """Do nothing, since the WebSocket is already open."""

    async def ask(self, request: BenchRequest, trace: Trace) -> None:
        """Send a request and record its events. See Connection.ask."""
        model: dict[str, Any] = {"model": self.server.model} if self.server.model else {}
        fields = {
            "max_output_tokens": request.max_tokens,
            "temperature": 0.0,
            "store": False,
            **request.own,
            **model,
        }
        reply = self.client.respond(request.messages, **fields)
        trace.send()
        async for event in reply:
            if event["type"] != "error":  # a refusal is no event of the answer; the reply raises it
                trace.event(time.perf_counter(), len(event["delta"]) if event["type"] in TEXT_EVENTS else 0)
        trace.report({"timings": reply.answer.timings, "edgeagent": reply.answer.edgeagent})
        trace.counts = _must_count(counts_of(reply.answer.usage), self.server)


@dataclass(frozen=True, slots=True)
class HttpConnection:
    """A keep-alive HTTP connection, with requests to /v1/chat/completions for streamed answers."""

    server: Server
    http: httpx2.AsyncClient
    opening_ms: float = 0.0

    async def open(self) -> None:
        """Open the connection now. See Connection.open."""
        url = f"{self.server.address.http_url}/models"
        try:
            await self.http.get(url)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _unreachable(url, error) from None

    async def ask(self, request: BenchRequest, trace: Trace) -> None:
        """Send a request and record its events. See Connection.ask."""
        body = {
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"model": self.server.model} if self.server.model else {}),
            **IGNORE_EOS_FIELDS.get(self.server.kind, {}),
            **(request.own if self.server.kind == "edgeagent" else {}),
        }
        url = f"{self.server.address.http_url}/chat/completions"
        try:
            try:
                await self._stream(url, body, trace)
            except httpx2.RemoteProtocolError:
                if trace.first_event_s is not None:
                    raise
                # The server had closed the idle connection, as llama-server does. Retry once on a new one.
                await self.open()
                await self._stream(url, body, trace)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _unreachable(url, error) from None
        except ValueError as error:
            raise BackendUnavailable(f"{url} sent an event that is not JSON ({error})") from None
        trace.counts = _must_count(trace.counts, self.server)

    async def _stream(self, url: str, body: dict[str, Any], trace: Trace) -> None:
        events = EventReader()
        trace.send()
        async with self.http.stream("POST", url, json=body) as response:
            if response.status_code != httpx2.codes.OK:
                raise _refusal(url, response.status_code, await response.aread())
            async for chunk in response.aiter_raw():
                arrived_s = time.perf_counter()
                for event in events.feed(chunk):
                    if "error" in event:
                        raise wire_error(_error_object(event))
                    trace.event(arrived_s, _num_chars(event))
                    trace.report(event)
                    trace.counts = counts_of(event.get("usage")) or trace.counts
        if not events.is_done:
            raise BackendUnavailable(f"{url} ended its stream without [DONE]: the answer was cut short")


@dataclass(slots=True)
class EventReader:
    """Parses a stream of server-sent events, as far as chat completions use them: `data:` lines of JSON.

    `is_done` is True once the stream's last line, `data: [DONE]`, has arrived.
    """

    is_done: bool = False
    _rest: bytes = field(default=b"")

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Parse the next chunk, and return the JSON objects that it completes. Raise ValueError if one is not JSON."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        events = []
        for line in lines:
            name, _, content = line.strip().partition(b":")
            if name != b"data":
                continue
            if content.strip() == b"[DONE]":
                self.is_done = True
                continue
            event = json.loads(content)
            if isinstance(event, dict):
                events.append(event)
        return events


def _http(server: Server) -> httpx2.AsyncClient:
    key = server.address.token
    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **({"authorization": f"Bearer {key}"} if key else {})},
        # A long prompt may take any time, and the user can press Ctrl-C.
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S),
        # A proxy from the environment is for other machines, not for this one.
        trust_env=not is_loopback(server.address.http_url),
        # Without TLS there is nothing to verify, and reading the system's certificates takes 30 ms.
        verify=server.address.tls() or False,
    )


async def _page(server: Server, url: str) -> httpx2.Response:
    try:
        async with _http(server) as http:
            return await http.get(url, timeout=CONNECT_TIMEOUT_S)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _unreachable(url, error) from None


async def _served_models(server: Server) -> list[dict[str, Any]]:
    url = f"{server.address.http_url}/models"
    page = await _page(server, url)
    if page.status_code == httpx2.codes.NOT_FOUND:
        return []
    if page.status_code != httpx2.codes.OK:
        raise _refusal(url, page.status_code, page.content)
    try:
        listed = page.json()
    except ValueError:
        raise BackendUnavailable(
            f"{url} answers with something that is not JSON: is that an inference server?"
        ) from None
    models = listed.get("data") if isinstance(listed, dict) else None
    return [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []


def _num_chars(event: dict[str, Any]) -> int:
    deltas = (choice.get("delta") or {} for choice in event.get("choices") or ())
    return sum(len(delta.get(name) or "") for delta in deltas for name in TEXT_FIELDS)


def _must_count(counts: Counts | None, server: Server) -> Counts:
    if counts is None:
        raise BackendUnavailable(f"{server.address.url} sends no usage with its streams; token rates need its counts")
    return counts


def _refusal(url: str, status: int, body: bytes) -> EdgeAgentError:
    if status == httpx2.codes.UNAUTHORIZED:
        return Unauthorized(f"{url} asks for an API key; give it with --api-key")
    try:
        event = json.loads(body)
    except ValueError:
        event = None
    if isinstance(event, dict) and event.get("error"):
        error = _error_object(event)
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            return Overloaded(f"{url} answers with HTTP {status}: {error.get('message')}")
        return BackendUnavailable(f"{url} answers with HTTP {status}: {error.get('message')}")
    if status == httpx2.codes.NOT_FOUND:
        return NotFound(f"{url} does not exist (HTTP 404): is that an OpenAI-compatible server?")
    return BackendUnavailable(f"{url} answers with HTTP {status}")


def _error_object(event: dict[str, Any]) -> dict[str, Any]:
    error = event["error"]
    return error if isinstance(error, dict) else {"message": str(error)}


def _unreachable(url: str, error: Exception) -> BackendUnavailable:
    return BackendUnavailable(f"{url} cannot be reached ({str(error) or type(error).__name__}); does the server run?")
