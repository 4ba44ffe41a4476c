"""Traces with OpenTelemetry's own SDK and its in-memory exporter: spans, times and names, and no content."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from websockets.asyncio.client import connect

from edgeagent.config import Config, TraceConfig
from edgeagent.daemon.traces import Tracer, stages, tracing
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.errors import ConfigError, Overloaded
from edgeagent.service.live_service import Trace
from edgeagent.types import Handover, Timings
from tests.backends.fake import FakeBackend, failing
from tests.daemon.running import Running, running
from tests.patience import patient
from tests.worker.support import eventually

CANARY = "c4n4ry"
CHAT = {
    "messages": [{"role": "user", "content": f"{CANARY} two"}],
    "max_tokens": 50,
    "temperature": 0.5,
    "stop": [f"{CANARY}!"],
}
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADERS = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Iterator[Tracer]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Tracer(provider)
    provider.shutdown()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    spans = exporter.get_finished_spans()
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def keep_all_here(machine_policy: Path) -> None:
    machine_policy.write_text("route = 'local_only'")
    machine_policy.chmod(0o644)


async def chat(server: Running) -> int:
    response = await server.http.post(f"{server.url}/v1/chat/completions", json=CHAT, headers=HEADERS)
    return response.status_code


async def test_the_spans_of_a_generation(tracer: Trace, exporter: InMemorySpanExporter) -> None:
    async with running(FakeBackend(), trace=tracer) as server:
        assert await chat(server) == 200
    spans = by_name(exporter)
    assert set(spans) == {"chat fake", "render", "queue", "cache", "prefill", "decode", "deliver"}
    root = spans.pop("chat fake")
    assert root.kind is SpanKind.SERVER
    assert root.context is not None and f"{root.context.trace_id:032x}" == TRACE_ID
    assert root.parent is not None and f"{root.parent.span_id:016x}" == PARENT_ID
    for span in spans.values():
        assert span.parent is not None and span.parent.span_id == root.context.span_id
        assert span.start_time is not None and span.end_time is not None
        assert span.start_time <= span.end_time
    attributes = dict(root.attributes or {})
    assert attributes.pop("gen_ai.response.id", "")
    assert str(attributes.pop("edgeagent.request_id", "")).startswith("req_")
    assert attributes.pop("gen_ai.response.time_to_first_chunk", -1.0) >= 0  # type: ignore[operator]
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "edgeagent",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.output.type": "text",
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.response.finish_reasons": ("stop",),
        "edgeagent.route": "local",
        "edgeagent.route.reason": "fake",
    }
    assert CANARY not in "".join(span.to_json() for span in exporter.get_finished_spans())


async def test_a_failure(tracer: Trace, exporter: InMemorySpanExporter) -> None:
    async with running(FakeBackend(failing(Overloaded(CANARY))), trace=tracer) as server:
        assert await chat(server) == 429
    [span] = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "queue_full"
    assert CANARY not in span.to_json()


async def test_a_websocket_s_turns_are_under_its_handshake_s_trace(
    tracer: Trace, exporter: InMemorySpanExporter
) -> None:
    async with running(FakeBackend(), trace=tracer) as server:
        address = f"{server.url.replace('http', 'ws')}/v1/responses"
        async with connect(address, additional_headers=HEADERS) as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "a b"}))
            while json.loads(await socket.recv())["type"] != "response.completed":
                pass
    assert {f"{span.context.trace_id:032x}" for span in exporter.get_finished_spans() if span.context} == {TRACE_ID}


async def test_without_a_parent_a_trace_begins(tracer: Trace, exporter: InMemorySpanExporter) -> None:
    async with running(FakeBackend(), trace=tracer) as server:
        for headers in ({}, {"traceparent": "nonsense"}):
            await server.http.post(f"{server.url}/v1/chat/completions", json=CHAT, headers=headers)
    roots = [span for span in exporter.get_finished_spans() if span.name == "chat fake"]
    assert [root.parent for root in roots] == [None, None]


def test_stages_are_in_order_and_the_rest_is_delivery() -> None:
    timings = Timings(
        queue_ms=5.0, load_ms=100.0, render_ms=2.0, cache_ms=1.0, prefill_ms=20.0, first_token_ms=130.0, decode_ms=50.0
    )
    found = {name: (round(begin - 10, 6), round(end - 10, 6)) for name, begin, end in stages(timings, 10.0, 10.2)}
    assert found == {
        "load": (0.0, 0.1),
        "render": (0.1, 0.102),
        "queue": (0.102, 0.107),
        "cache": (0.107, 0.108),
        "prefill": (0.11, 0.13),
        "decode": (0.13, 0.18),
        "deliver": (0.18, 0.2),
    }
    assert [name for name, _, _ in stages(Timings(queue_ms=3.0), 0.0, 1.0)] == ["queue"]
    resumed = Timings(first_token_ms=9.0, handovers=(Handover("local", "local", 3, "worker_killed"),))
    assert [name for name, _, _ in stages(resumed, 0.0, 1.0)] == ["decode", "deliver"]


def test_off_unless_asked_for(tmp_path: Path) -> None:
    with tracing(Config().trace, tmp_path) as off:
        assert off is None
    # FastAPI depends on OpenTelemetry's API; only the SDK and the exporter are expensive.
    script = "import sys, edgeagent.daemon.server as _; sys.exit('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=patient(100)).returncode == 0


async def test_the_web_framework_s_own_telemetry_is_off(
    monkeypatch: pytest.MonkeyPatch, exporter: InMemorySpanExporter
) -> None:
    """FastAPI's telemetry would record the texts of exceptions, and send them where the environment says."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    async with running(FakeBackend()) as server:
        assert await chat(server) == 200
    assert exporter.get_finished_spans() == ()
    provider.shutdown()


def test_an_endpoint_that_is_no_address(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"trace\.endpoint is 'localhost:4318'"),
        tracing(TraceConfig(endpoint="localhost:4318"), tmp_path),
    ):
        pass


def test_asked_for_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with (
        pytest.raises(ConfigError, match=r"pip install 'edgeagent\[otel\]'"),
        tracing(TraceConfig(endpoint="http://127.0.0.1:1"), tmp_path),
    ):
        pass


async def test_spans_reach_a_collector(tmp_path: Path, machine_policy: Path) -> None:
    """Spans go over OTLP/HTTP to a collector that is only a socket; the data names the spans and holds no content.

    It is on this machine, so a policy that keeps all here lets it have them.
    """
    keep_all_here(machine_policy)
    got = asyncio.Event()
    bodies: list[bytes] = []

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1]) for line in head.lower().splitlines() if line.startswith(b"content-length")
        )
        bodies.append(head + await reader.readexactly(length))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()
        got.set()

    collector = await asyncio.start_server(collect, "127.0.0.1", 0)
    endpoint = f"http://127.0.0.1:{collector.sockets[0].getsockname()[1]}"
    collecting = tracing(TraceConfig(endpoint=endpoint), tmp_path)
    trace = await asyncio.to_thread(collecting.__enter__)
    async with running(FakeBackend(), trace=trace) as server:
        assert await chat(server) == 200
    await asyncio.to_thread(collecting.__exit__, None, None, None)
    await asyncio.wait_for(got.wait(), patient(60))
    collector.close()
    sent = b"".join(bodies)
    assert sent.startswith(b"POST /v1/traces ")
    assert b"gen_ai.usage.output_tokens" in sent or b"gzip" in sent.lower()
    assert CANARY.encode() not in sent


async def test_what_the_policy_keeps_here_is_not_sent(
    tmp_path: Path, machine_policy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The policy may come while the daemon runs."""
    monkeypatch.setattr("edgeagent.daemon.traces.FLUSH_S", 0.0)
    collecting = tracing(TraceConfig(endpoint="http://collector.invalid:4318"), tmp_path)
    trace = await asyncio.to_thread(collecting.__enter__)
    async with running(FakeBackend(), trace=trace) as server:
        assert await chat(server) == 200
    keep_all_here(machine_policy)
    await asyncio.to_thread(collecting.__exit__, None, None, None)
    # The exporter's last attempts would use the global random numbers beside the next tests.
    await eventually(lambda: not any(thread.name == "traces" for thread in threading.enumerate()))
    assert f"({machine_policy}) says route = local_only" in caplog.text
    assert not list(read_rows(folder_of(tmp_path)))
