"""Work that a client makes for the daemon: each kind has a bound in count and bytes, and none of it delays a stream.

The members are tried one after another on a real daemon, while a canary stream runs and /health is asked. Each must be
answered as its bound says, the canary must go on, and the daemon's memory must come back. How long the canary paused is
a figure in the test's output, since a busy machine pauses it too. The worker sleeps before each step.
"""

from __future__ import annotations

import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import psutil
import pytest

from edgeagent.api.llama_server.completion import MAX_FILES
from edgeagent.api.openai.embeddings import MAX_DOCUMENTS, MAX_INPUTS
from edgeagent.api.openai.text_body import MAX_PROMPTS
from edgeagent.api.page.markdown import MAX_CELLS, MAX_CHARS
from edgeagent.api.realtime.body import MAX_ITEMS as REALTIME_ITEMS
from edgeagent.api.responses.body import MAX_REFERENCES
from edgeagent.api.responses.choose import MAX_CHOICES
from edgeagent.api.responses.socket.lanes import MAX_NAMED_LANES
from edgeagent.api.responses.socket.outbox import MAX_PENDING_BYTES
from edgeagent.api.responses.socket.session import MAX_REFUSALS, MAX_WAITING
from edgeagent.api.responses.socket.steering import MAX_STEERS
from edgeagent.api.routes import ROUTES
from edgeagent.api.wire.fields import MAX_LOGIT_BIASES, MAX_MESSAGES, MAX_STOPS
from edgeagent.config import ServerConfig
from edgeagent.conversation.history import MAX_CONVERSATION_BYTES, MAX_ITEMS
from edgeagent.credentials.keys import Scope
from edgeagent.daemon.transport import (
    FRAMES_BURST,
    FRAMES_PER_S,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_TARGET_BYTES,
    PIECE_BYTES,
)
from edgeagent.strict_json import MAX_JSON_DEPTH, MAX_JSON_OBJECTS, MAX_JSON_VALUES
from edgeagent.types import MAX_MEDIA, MAX_SCHEMA_BYTES, MAX_TOOLS
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.media import RED, data_url
from tests.patience import patient
from tests.robust.frames import CLOSE, CONTINUATION, FIN, PING, PONG, TEXT, frame, text
from tests.slow_worker import slow_program

KIB, MIB = 1 << 10, 1 << 20
SERVER = ServerConfig()
TIMEOUT_S = patient(60)
STEP_S = 0.02
MAX_KEPT_MIB = 20.0
# What sockets may hold: the larger of the bounds of all, and what is being read and written.
MAX_HELD_MIB = SERVER.max_in_flight_bytes / MIB + 192.0
CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
CHOOSE = "/edgeagent/choose"
HANDSHAKE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==\r\n\r\n"
)

Outcome = int | str
Send = Callable[[Daemon], Outcome | set[Outcome]]


def connected(daemon: Daemon) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", daemon.port), timeout=TIMEOUT_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def head(daemon: Daemon, line: str, *fields: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", f"Host: 127.0.0.1:{daemon.port}", *fields, "", ""]).encode()


def status(opened: socket.socket) -> int:
    """Return the status of the next answer."""
    answer = http.client.HTTPResponse(opened)
    answer.begin()
    answer.read()
    return answer.status


def sent(line: str, *fields: str, body: bytes = b"") -> Send:
    """Return a member that sends one request, and whose outcome is its status."""

    def send(daemon: Daemon) -> int:
        with closing(connected(daemon)) as opened:
            quietly(opened, head(daemon, line, *fields) + body)
            return status(opened)

    return send


POSTED: set[str] = set()
"""The routes to which `posted` members send a body."""


def posted(path: str, body: bytes | dict[str, Any], *fields: str) -> Send:
    """Return a member that sends a JSON body."""
    POSTED.add(path)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = fields or ("Content-Type: application/json",)
    return sent(f"POST {path}", *fields, f"Content-Length: {len(content)}", body=content)


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **fields}


def tools(number: int, schema_bytes: int = 0) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {}, "description": "d" * schema_bytes}
    return [{"type": "function", "function": {"name": f"f{n}", "parameters": schema}} for n in range(number)]


def chunked(daemon: Daemon) -> int:
    """Send a body in chunks of one byte."""
    body = json.dumps(chat(user="u" * 200 * KIB)).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with closing(connected(daemon)) as opened:
        fields = ("Content-Type: application/json", "Transfer-Encoding: chunked")
        opened.sendall(head(daemon, f"POST {CHAT}", *fields) + chunks)
        return status(opened)


NUM_PIPELINED = 300


def pipelined(daemon: Daemon) -> set[Outcome]:
    """Send many requests at once."""
    with closing(connected(daemon)) as opened:
        threading.Thread(
            target=opened.sendall, args=(head(daemon, "GET /health") * NUM_PIPELINED,), daemon=True
        ).start()
        with opened.makefile("rb") as stream:
            return {status_of(stream) for _ in range(NUM_PIPELINED)}


def status_of(stream: Any) -> int:
    """Return the status of the next answer in a stream of answers with Content-Length."""
    number, length = int(stream.readline().split()[1]), 0
    while line := stream.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    stream.read(length)
    return number


def half_bodies(daemon: Daemon) -> set[Outcome]:
    """Send 7 MiB of each of 24 bodies of 16 MiB, and no more; return what those that are cut get."""
    fields = ("Content-Type: application/json", f"Content-Length: {SERVER.max_body_bytes}")
    return cut_early(
        daemon, head(daemon, f"POST {CHAT}", *fields) + b" " * (7 * MIB), 24, lambda opened: status(opened)
    )


def half_frames(daemon: Daemon) -> set[Outcome]:
    """Send 15 MiB of each of 24 frames of 16 MiB, and no more; return how those that are cut are closed."""
    size = SERVER.max_frame_bytes
    begun = bytes([FIN | TEXT, 0xFF]) + struct.pack("!Q", size) + bytes(4) + b" " * (size - MIB)
    return cut_early(daemon, begun, 24, lambda opened: Socket(opened).until_closed(), is_socket=True)


def cut_early(
    daemon: Daemon, begun: bytes, number: int, end: Callable[[socket.socket], Outcome], *, is_socket: bool = False
) -> set[Outcome]:
    held = []
    try:
        for _ in range(number):
            held.append(Socket.open(daemon).opened if is_socket else connected(daemon))
            held[-1].sendall(begun)
        # At least this many of the oldest are cut, since no more than the limit fits.
        return {end(opened) for opened in held[: number - SERVER.max_in_flight_bytes // (7 * MIB) - 1]}
    finally:
        for opened in held:
            opened.close()


@dataclass
class Socket:
    """A WebSocket on a blocking socket."""

    opened: socket.socket

    @classmethod
    def open(cls, daemon: Daemon, path: str = RESPONSES) -> Socket:
        opened = connected(daemon)
        opened.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n{HANDSHAKE}".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += opened.recv(1)
        assert answer.startswith(b"HTTP/1.1 101")
        return cls(opened)

    def _read(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            if not (more := self.opened.recv(size - len(content))):
                raise EOFError
            content += more
        return content

    def receive(self) -> tuple[int, bytes]:
        first, size = self._read(2)
        if size == 126:
            (size,) = struct.unpack("!H", self._read(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._read(8))
        return first, self._read(size)

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events until the socket is closed; that is the last one."""
        while True:
            first, payload = self.receive()
            if first == FIN | CLOSE:
                yield {"type": "close", "code": int.from_bytes(payload[:2], "big")}
                return
            if first == FIN | TEXT:
                yield json.loads(payload)

    def until_closed(self) -> int:
        *_, last = self.events()
        return int(last["code"])


def terminal(event: dict[str, Any]) -> bool:
    return event["type"] in ("response.completed", "response.incomplete", "response.failed", "error", "close")


def framed(*payloads: bytes) -> Send:
    """Return a member that sends frames; the outcome is the kind of the first terminal event, or the close code."""

    def send(daemon: Daemon) -> Outcome:
        client = Socket.open(daemon)
        with closing(client.opened):
            threading.Thread(target=quietly, args=(client.opened, b"".join(payloads)), daemon=True).start()
            last = next(filter(terminal, client.events()))
            return int(last["code"]) if last["type"] == "close" else str(last["type"])

    return send


def quietly(opened: socket.socket, content: bytes) -> None:
    """Send as much as the daemon takes before it refuses the rest."""
    with suppress(OSError):
        opened.sendall(content)


def created(**fields: Any) -> bytes:
    return text(json.dumps({"type": "response.create", "input": "x", "store": False, "max_output_tokens": 1, **fields}))


NUM_FLOOD = 1000
# The daemon reads the flood in pieces, which hold up to 350 frames, and pauses after a piece.
LEAST_FLOOD_S = (NUM_FLOOD - FRAMES_BURST - 350) / FRAMES_PER_S


def paced(one: bytes, begin: bytes = b"") -> Send:
    """Return a member that floods; the outcome tells whether the frames were read at their pace."""

    def send(daemon: Daemon) -> Outcome:
        client = Socket.open(daemon)
        with closing(client.opened):
            began_s = time.monotonic()
            flood = begin + one * NUM_FLOOD + frame(FIN | PING, b"last")
            threading.Thread(target=quietly, args=(client.opened, flood), daemon=True).start()
            while (received := client.receive()) != (FIN | PONG, b"last"):
                if received[0] == FIN | CLOSE:
                    return f"closed: {received[1]!r}"
            took_s = time.monotonic() - began_s
            return "paced" if took_s >= LEAST_FLOOD_S else f"{NUM_FLOOD} frames in {took_s:.2f} s"

    return send


def cancel_storm(daemon: Daemon) -> set[Outcome]:
    """Begin and cancel a hundred responses; each ends once."""
    client = Socket.open(daemon)
    with closing(client.opened):
        storm = b"".join(
            created(stream_id=f"l{n % 20}", max_output_tokens=50)
            + text(json.dumps({"type": "response.cancel", "stream_id": f"l{n % 20}"})) * 3
            for n in range(100)
        )
        threading.Thread(target=quietly, args=(client.opened, storm), daemon=True).start()
        return {event["type"] for event in islice(filter(terminal, client.events()), 100)}


def steer_storm(daemon: Daemon) -> Outcome:
    """Steer one response hundreds of times at once; another lane goes on."""
    client = Socket.open(daemon)
    with closing(client.opened):
        client.opened.sendall(created(max_output_tokens=200, logit_bias={"2041": -100}))
        first = next(event for event in client.events() if event["type"] == "response.created")["response"]["id"]
        steer = {"type": "response.steer", "previous_response_id": first, "input": "no, " * 500}
        storm = text(json.dumps(steer)) * 400 + created(stream_id="other")
        threading.Thread(target=quietly, args=(client.opened, storm), daemon=True).start()
        ends = (event for event in client.events() if terminal(event) and event.get("stream_id") == "other")
        return str(next(ends)["type"])


def lanes(daemon: Daemon) -> set[Outcome]:
    """Name more lanes than may be open; return the ends of the creates."""
    client = Socket.open(daemon)
    with closing(client.opened):
        threading.Thread(
            target=quietly, args=(client.opened, b"".join(created(stream_id=f"l{n}") for n in range(300))), daemon=True
        ).start()
        return {event["type"] for event in islice(filter(terminal, client.events()), 300)}


def realtime_storm(daemon: Daemon) -> Outcome:
    """Change a conversation and its settings again and again, and ask for responses to as many items as may be."""
    client = Socket.open(daemon, "/v1/realtime")
    with closing(client.opened):
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
        events: list[dict[str, Any]] = [
            {"type": "response.create", "response": {"conversation": "none", "input": [item] * REALTIME_ITEMS}}
        ] * 20
        for number in range(300):
            events += (
                {"type": "conversation.item.create", "item": {**item, "id": f"i{number}"}},
                {"type": "conversation.item.delete", "item_id": f"i{number // 2}"},
                {"type": "session.update", "session": {"instructions": "x" * number}},
            )
        events.append({"type": "conversation.item.retrieve", "item_id": "i299", "event_id": "last"})
        storm = b"".join(text(json.dumps(event)) for event in events)
        threading.Thread(target=quietly, args=(client.opened, storm), daemon=True).start()
        ends = ("conversation.item.retrieved", "close")
        return str(next(event for event in client.events() if event["type"] in ends)["type"])


def references_to_copies(daemon: Daemon) -> Outcome | set[Outcome]:
    """Store the same items with many responses, and refer to all of them."""
    ids = [f"copy_{number}" for number in range(MAX_REFERENCES)]
    stored = {"input": [{"type": "reasoning", "id": each} for each in ids], "generate": False}
    notes = {f"k{number}": "v" * 500 for number in range(16)}
    for _ in range(64):
        assert posted(RESPONSES, {**stored, "metadata": notes})(daemon) == 200
    return posted(RESPONSES, {"input": [{"type": "item_reference", "id": each} for each in ids], "generate": False})(
        daemon
    )


def stored_chain(daemon: Daemon) -> Outcome | set[Outcome]:
    """Store a conversation of many turns, with more text than the context holds, and continue it."""
    text = [{"type": "reasoning_text", "text": "a" * 200 * KIB}]
    body: dict[str, Any] = {"generate": False, "truncation": "auto"}
    for number in range(40):
        sent = [{"type": "reasoning", "id": f"t{number}", "content": text}, {"role": "user", "content": "x"}]
        body["previous_response_id"] = answer_of(daemon, {**body, "input": sent})["id"]
    return posted(RESPONSES, {**body, "input": "x"})(daemon)


def answer_of(daemon: Daemon, body: dict[str, Any]) -> dict[str, Any]:
    """Return the response to a request, as JSON."""
    client = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=TIMEOUT_S)
    with closing(client):
        client.request("POST", RESPONSES, json.dumps(body), {"Content-Type": "application/json"})
        answered: dict[str, Any] = json.loads(client.getresponse().read())
    return answered


def half_open(daemon: Daemon) -> Outcome:
    """Open sockets and leave them, neither reading nor closing."""
    opened = [Socket.open(daemon) for _ in range(100)]
    for each in opened:
        each.opened.close()
    return "opened"


def unread(one: bytes) -> Send:
    """Return a member that sends a frame again and again on six sockets, and reads no answer."""

    def send(daemon: Daemon) -> Outcome:
        def flood(opened: socket.socket) -> None:
            with suppress(OSError):
                while True:
                    opened.sendall(one)

        def hold(clients: list[Socket]) -> None:
            for client in clients:
                client.opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                threading.Thread(target=flood, args=(client.opened,), daemon=True).start()
            time.sleep(4.0)

        return held_on_sockets(daemon, 6, hold)

    return send


def kept_histories(daemon: Daemon) -> Outcome:
    """Have each of many sockets keep a long response, and leave them idle."""
    text = [{"type": "reasoning_text", "text": "a" * 15 * MIB}]
    kept = created(input=[{"type": "reasoning", "content": text}], generate=False, truncation="auto")

    def hold(clients: list[Socket]) -> None:
        for client in clients:
            client.opened.sendall(kept)
            next(filter(terminal, client.events()))

    return held_on_sockets(daemon, 20, hold)


def waiting_creates(daemon: Daemon) -> Outcome:
    """Have long creates wait on many sockets, each behind one that runs."""
    long = created(max_output_tokens=400, logit_bias={"2041": -100}) + created(input="y" * 15 * MIB) * 2

    def hold(clients: list[Socket]) -> None:
        for client in clients:
            threading.Thread(
                target=lambda opened: list(iter(partial(some, opened), b"")), args=(client.opened,)
            ).start()
            quietly(client.opened, long)

    return held_on_sockets(daemon, 16, hold)


def some(opened: socket.socket) -> bytes:
    """Return what a socket receives next; nothing at its end."""
    try:
        return opened.recv(64 * KIB)
    except OSError:
        return b""


def held_on_sockets(daemon: Daemon, number: int, hold: Callable[[list[Socket]], None]) -> Outcome:
    """Return "bounded" if the daemon takes little more memory while sockets hold something."""
    process = psutil.Process(daemon.process.pid)
    before_mib = process.memory_info().rss / MIB
    clients = [Socket.open(daemon) for _ in range(number)]
    try:
        hold(clients)
        grown_mib = process.memory_info().rss / MIB - before_mib
    finally:
        for client in clients:
            with suppress(OSError):
                client.opened.shutdown(socket.SHUT_RDWR)
            client.opened.close()
    return "bounded" if grown_mib <= MAX_HELD_MIB else f"{grown_mib:.0f} MiB"


@dataclass(frozen=True)
class Member:
    """A kind of work. `bound` says what limits it. `outcomes` are the outcomes that the bound allows."""

    name: str
    bound: str
    send: Send
    outcomes: frozenset[Outcome] = field(default_factory=frozenset)


def member(name: str, bound: object, send: Send, *outcomes: Outcome) -> Member:
    return Member(name, str(bound), send, frozenset(outcomes))


def reference(number: int) -> dict[str, Any]:
    return {"type": "item_reference", "id": f"item_{number}"}


CHAT_TURN = {"role": "user", "content": "x"}
MODEL = {"model": "builtin"}
LONG = "word " * (MIB // 5)
LISTS: list[tuple[str, str, object, int, dict[str, Any]]] = [
    ("/v1/embeddings", "input", "x", MAX_INPUTS, MODEL),
    ("/embedding", "content", "x", MAX_INPUTS, {}),
    ("/v1/rerank", "documents", "x", MAX_DOCUMENTS, {"query": "x"}),
    ("/completion", "prompt", "x", MAX_PROMPTS, {}),
    (CHOOSE, "choices", "x", MAX_CHOICES, {"input": "x"}),
    ("/infill", "input_extra", {"text": "x"}, MAX_FILES, {"input_prefix": "x", "input_suffix": "x"}),
    ("/apply-template", "messages", CHAT_TURN, MAX_MESSAGES, {}),
    ("/v1/responses/compact", "input", CHAT_TURN, MAX_ITEMS, {}),
    ("/v1/responses/input_tokens", "input", CHAT_TURN, MAX_ITEMS, {}),
    ("/api/chat", "messages", CHAT_TURN, MAX_MESSAGES, MODEL),
    ("/api/embed", "input", "x", MAX_INPUTS, MODEL),
    ("/v1/messages", "messages", CHAT_TURN, MAX_MESSAGES, {**MODEL, "max_tokens": 8}),
    ("/v1/messages/count_tokens", "messages", CHAT_TURN, MAX_MESSAGES, MODEL),
]
TEXTS: list[tuple[Any, ...]] = [
    ("/tokenize", "content", {}, 200, 400),
    ("/api/generate", "prompt", {**MODEL, "truncate": False, "raw": True}, 400),
    ("/api/embeddings", "prompt", MODEL, 200),  # shortened, as Ollama does
    (CHOOSE, "input", {"choices": ["yes", "no"]}, 400),
    ("/api/show", "model", {}, 400),
    ("/api/copy", "source", {"destination": "x"}, 400),
    ("/api/pull", "model", {}, 400),
    ("/v1/models/pull", "model", {}, 400),
    ("/detokenize", "tokens", {}, 400),
]


STEER = {"type": "response.steer", "previous_response_id": "r", "input": "x" * 15 * MIB}


def echoed_tools() -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": {f"k{number}": {"type": "string"} for number in range(33)}}
    return [{"type": "function", "name": f"f{number}", "parameters": schema} for number in range(128)]


LARGE = RED[:8] + bytes(11 * MIB)


def images(data: bytes, number: int) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": data_url(data)}}
    return {"role": "user", "content": [part] * number}


def members() -> list[Member]:
    """Return every member. They are made here, since their content takes 50 MB."""
    return [
        member("headers", MAX_HEADERS, sent("GET /health", *["X: y"] * (MAX_HEADERS + 1)), 431),
        member("header bytes", MAX_HEADER_BYTES, sent("GET /health", "X: " + "y" * MAX_HEADER_BYTES), 431),
        member("target", MAX_TARGET_BYTES, sent("GET /health?" + "a" * MAX_TARGET_BYTES), 414),
        member("query", MAX_TARGET_BYTES, sent("GET /v1/models?" + "a=1&" * 2000), 200),
        member(
            "multipart",
            "no media type but JSON",
            posted(CHAT, b"--x\r\n" * 99, "Content-Type: multipart/form-data"),
            415,
        ),
        member(
            "compressed",
            "no encoding",
            posted(CHAT, b"x" * 99, "Content-Type: application/json", "Content-Encoding: gzip"),
            415,
        ),
        member("body", SERVER.max_body_bytes, posted(CHAT, b" " * (SERVER.max_body_bytes + 1)), 413),
        member("chunks of one byte", PIECE_BYTES, chunked, 200),
        member("pipelined requests", "one at a time", pipelined, 200),
        member("half-sent bodies", SERVER.max_in_flight_bytes, half_bodies, 429),
        member("half-sent frames", SERVER.max_in_flight_bytes, half_frames, 1013),
        member("JSON depth", MAX_JSON_DEPTH, posted(CHAT, b"[" * MIB), 400),
        member("JSON values", MAX_JSON_VALUES, posted(CHAT, b'{"x":[' + b"0," * MAX_JSON_VALUES + b"0]}"), 400),
        member("JSON objects", MAX_JSON_OBJECTS, posted(CHAT, b'{"x":[' + b"{}," * MAX_JSON_OBJECTS + b"{}]}"), 400),
        member("JSON integer", "64 bits", posted(CHAT, b'{"seed":' + b"9" * MIB + b"}"), 400),
        member("JSON escapes", SERVER.max_body_bytes, posted(CHAT, b'{"model":"' + b"\\u00e9" * MIB + b'"}'), 400),
        member(
            "content parts",
            MAX_JSON_OBJECTS,
            posted(CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 80_000}])),
            400,
        ),
        member("images", MAX_MEDIA, posted(CHAT, chat(messages=[images(RED, MAX_MEDIA + 1)])), 400),
        member(
            "an image's bytes", SERVER.max_body_bytes, posted(CHAT, chat(messages=[images(bytes(15 * MIB), 1)])), 413
        ),
        member("images no model reads", SERVER.max_body_bytes, posted(CHAT, chat(messages=[images(LARGE, 1)])), 400),
        member("messages", MAX_MESSAGES, posted(CHAT, chat(messages=chat()["messages"] * (MAX_MESSAGES + 1))), 400),
        member("tools", MAX_TOOLS, posted(CHAT, chat(tools=tools(MAX_TOOLS + 1))), 400),
        member(
            "tools' bytes",
            MAX_SCHEMA_BYTES,
            posted(CHAT, chat(tools=tools(MAX_TOOLS, MAX_SCHEMA_BYTES - 200))),
            400,
            413,
        ),
        member("schema", MAX_SCHEMA_BYTES, posted(CHAT, chat(tools=tools(1, MAX_SCHEMA_BYTES))), 400),
        member("stops", MAX_STOPS, posted(CHAT, chat(stop=["x"] * (MAX_STOPS + 1))), 400),
        member(
            "logit biases",
            MAX_LOGIT_BIASES,
            posted(CHAT, chat(logit_bias={str(n): 1 for n in range(MAX_LOGIT_BIASES + 1)})),
            400,
        ),
        member("prompts", MAX_PROMPTS, posted(COMPLETIONS, {"prompt": ["x"] * (MAX_PROMPTS + 1)}), 400),
        member(
            "references",
            MAX_REFERENCES,
            posted(RESPONSES, {"input": [reference(n) for n in range(MAX_REFERENCES + 1)]}),
            400,
        ),
        member(
            "references to nothing",
            MAX_REFERENCES,
            posted(RESPONSES, {"input": [reference(n) for n in range(900)]}),
            400,
            404,
        ),
        # Those that no other member tries. What is not a length is bounded as JSON, which B4 tries on every route.
        *(
            member(f"{path} {field}", most, posted(path, {**fields, field: [item] * (most + 1)}), 400)
            for path, field, item, most, fields in LISTS
        ),
        *(
            member(
                f"{path} {field}", SERVER.max_body_bytes, posted(path, {**fields, field: "word " * (MIB // 5)}), *ends
            )
            for path, field, fields, *ends in TEXTS
        ),
        member(
            "choices of many tokens",
            MAX_CHOICES,
            posted(CHOOSE, {"input": "x", "choices": [f"{n:04}" * 75 for n in range(MAX_CHOICES)]}),
            400,
        ),
        member(
            "choices, compared with an empty input",
            MAX_CHOICES,
            posted(CHOOSE, {"input": "x", "choices": [f"c{n}" for n in range(MAX_CHOICES)], "calibrate": True}),
            200,
        ),
        member("metadata", 16, posted(RESPONSES, {"input": "x", "metadata": {f"k{n}": "v" for n in range(17)}}), 400),
        member("references to copies", "each response is read once", references_to_copies, 200),
        member("a stored chain, continued", MAX_CONVERSATION_BYTES, stored_chain, 200),
        member(
            "a long id", "of a response", posted(RESPONSES, {"input": "x", "previous_response_id": "r" * MIB}), 400, 404
        ),
        member("markdown", MAX_CHARS, posted("/edgeagent/page/markdown", {"text": "[" * MAX_CHARS}), 200),
        member("cells", MAX_CELLS, posted("/edgeagent/page/markdown", {"text": "|\n" * (MAX_CHARS // 2)}), 200),
        member("much markdown", MAX_CHARS, posted("/edgeagent/page/markdown", {"text": "a" * MIB}), 400),
        member("markdown for a kiosk", MAX_CHARS, posted("/edgeagent/kiosk/markdown", {"text": "[" * MAX_CHARS}), 200),
        member("a long secret", "of a link", posted("/edgeagent/page/token", {"secret": "x" * MIB}), 413),
        member("a frame", SERVER.max_frame_bytes, framed(frame(FIN | TEXT, b" " * (SERVER.max_frame_bytes + 1))), 1009),
        member(
            "frame with many items",
            MAX_JSON_OBJECTS,
            framed(created(input=[reference(n) for n in range(40_000)])),
            "error",
        ),
        member("pings", FRAMES_BURST, paced(frame(FIN | PING, b"x" * 125)), "paced"),
        member("pongs", FRAMES_BURST, paced(frame(FIN | PONG, b"")), "paced"),
        member("empty messages", FRAMES_BURST, paced(text("{}")), "paced"),
        member("empty fragments", FRAMES_BURST, paced(frame(CONTINUATION, b""), frame(TEXT, b"{")), "paced"),
        member("creates", MAX_WAITING, framed(created() * 500), "response.incomplete", "response.completed"),
        member("cancels", MAX_REFUSALS, cancel_storm, "response.completed", "response.incomplete", "error"),
        member("steers", MAX_STEERS, steer_storm, "response.incomplete", "response.completed"),
        member("lanes", MAX_NAMED_LANES, lanes, "response.completed", "response.incomplete", "error", "close"),
        member("realtime", REALTIME_ITEMS, realtime_storm, "conversation.item.retrieved"),
        member("refusals that are not read", MAX_PENDING_BYTES, unread(text(json.dumps(STEER))), "bounded"),
        member(
            "echoes that are not read",
            MAX_PENDING_BYTES,
            unread(created(input=[], generate=False, tools=echoed_tools())),
            "bounded",
        ),
        member("idle histories", SERVER.max_in_flight_bytes, kept_histories, "bounded"),
        member("creates that wait on many sockets", SERVER.max_in_flight_bytes, waiting_creates, "bounded"),
        member("half-open sockets", SERVER.max_connections, half_open, "opened"),
    ]


WARM_UP = frozenset({"body", "half-sent frames", "creates", "messages", "tools' bytes"})
"""The members that load everything which is loaded lazily."""
STORMS = frozenset(
    {
        "refusals that are not read",
        "echoes that are not read",
        "idle histories",
        "creates that wait on many sockets",
    }
)
"""The members that take seconds each."""


class Canary:
    """A stream that runs all the while, and the time between its tokens."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._is_over = False
        self._gaps_s: list[float] = []
        self.num_tokens = 0
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Canary:
        self._thread.start()
        self.wait_for_token()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def wait_for_token(self) -> None:
        """Wait until another token has come; fail if none does."""
        before, deadline_s = self.num_tokens, time.monotonic() + TIMEOUT_S
        while self.num_tokens == before:
            assert not self.errors and time.monotonic() < deadline_s, self.errors
            time.sleep(0.005)

    def largest_gap_s(self) -> float:
        """Return the largest gap since the last call."""
        gaps, self._gaps_s = self._gaps_s, []
        return max(gaps, default=0.0)

    def _run(self) -> None:
        # The bundled model's token of the end is forbidden, so that the answers are long.
        body = json.dumps(
            {"prompt": "once upon a time", "max_tokens": 1000, "stream": True, "logit_bias": {"2041": -100}}
        ).encode()
        fields = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
        while not self._is_over:
            try:
                with closing(connected(self._daemon)) as opened:
                    opened.sendall(head(self._daemon, f"POST {COMPLETIONS}", *fields) + body)
                    self._read(opened)
            except OSError as error:
                self.errors.append(repr(error))
                return

    def _read(self, opened: socket.socket) -> None:
        last_s = None
        with opened.makefile("rb") as stream:
            if b" 200 " not in (line := stream.readline()):
                self.errors.append(line.decode())
            while not self._is_over and (line := stream.readline()):
                if line.startswith(b"data: {"):
                    now_s = time.monotonic()
                    if last_s is not None:
                        self._gaps_s.append(now_s - last_s)
                    last_s = now_s
                    self.num_tokens += 1
                    if b'"error"' in line:
                        self.errors.append(line.decode())


# It gives memory back sooner than usual, since each member waits for that; the second time when a busy machine too has
# freed what the member took.
FREES_SOON = """
from edgeagent import freed_memory
freed_memory.DELAY_S, freed_memory.AGAIN_S = 0.1, 3.0
"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    state_dir = tmp_path_factory.mktemp("work") / "state"
    running = start_daemon(state_dir, "builtin", program=slow_program(STEP_S, FREES_SOON))
    yield running
    stop_daemon(running)


@pytest.mark.timeout(patient(200))
@pytest.mark.parametrize("with_storms", [False, pytest.param(True, marks=pytest.mark.slow(seconds=30))])
def test_no_work_of_a_client_is_without_a_bound(
    daemon: Daemon, record_property: Callable[[str, object], None], with_storms: bool
) -> None:
    process = psutil.Process(daemon.process.pid)
    answers: dict[str, set[Outcome]] = {}
    with Canary(daemon) as canary:
        tried = [each for each in members() if with_storms or each.name not in STORMS]
        for each in tried:  # what is loaded lazily is not what a member keeps
            if each.name in WARM_UP:
                each.send(daemon)
        for each in tried:
            before_mib = process.memory_info().rss / MIB
            canary.largest_gap_s()
            outcome = each.send(daemon)
            canary.wait_for_token()
            answers[each.name] = outcome if isinstance(outcome, set) else {outcome}
            record_property(f"largest gap of the canary, {each.name}", round(canary.largest_gap_s(), 3))
            assert sent("GET /health")(daemon) == 200
            if kept_mib(process, before_mib, wait_s=10.0) > MAX_KEPT_MIB:
                # Python's allocator keeps pieces between objects that live on, and the next one of its kind uses them:
                # the number of live blocks is as before. A leak grows with each.
                before_mib = process.memory_info().rss / MIB
                each.send(daemon)
                assert kept_mib(process, before_mib) <= MAX_KEPT_MIB, each.name
        assert not canary.errors
    bodies = (name for name, route in ROUTES.items() if route.body and route.scope is not Scope.ADMIN)
    posts = {name.removeprefix("POST ") for name in bodies if name.startswith("POST ")}
    assert posts <= POSTED, "a route that no member tries"
    assert {each.name: found for each in tried if not (found := answers[each.name]) <= each.outcomes} == {}


def kept_mib(process: psutil.Process, before_mib: float, wait_s: float = TIMEOUT_S) -> float:
    """Return how much more memory is in use than before, once it is below the limit, or after a while."""
    deadline_s = time.monotonic() + wait_s
    kept: float
    while (kept := process.memory_info().rss / MIB - before_mib) > MAX_KEPT_MIB and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return kept
