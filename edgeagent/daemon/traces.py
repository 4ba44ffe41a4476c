"""OpenTelemetry traces of generations, if configured.

The spans are created at the end of a generation, from times that are measured anyway, so they add no cost to a token.
They have no content, only names, counts and times, under OpenTelemetry's GenAI conventions. Each batch has a row in the
egress ledger before it is sent. Only this module imports opentelemetry and requests (the extra `otel`), and only if an
endpoint is configured.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeagent import __version__
from edgeagent.api.wire.request_id import REQUEST_ID, TRACE_HEADERS
from edgeagent.egress import TRACES
from edgeagent.egress.ledger import Ledger
from edgeagent.errors import ConfigError, StoreError
from edgeagent.machine_policy import QuietPolicyFile
from edgeagent.remotes.check import is_loopback
from edgeagent.types import ChatPrompt, GenerateRequest, JsonObjectFormat, JsonSchemaFormat, Timings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from requests import PreparedRequest, Response, Session

    from edgeagent.config import TraceConfig
    from edgeagent.metrics.meter import Meter

PATH = "/v1/traces"
# How long a stopping daemon waits until the last spans are sent. With a dead collector it would wait longer.
FLUSH_S = 2.0

Attributes = dict[str, str | bool | int | float | list[str]]


class Tracer:
    """Records the spans of each generation. Implements service.live_service.Trace."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer = provider.get_tracer("edgeagent", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)
        self._under = set_span_in_context

    def __call__(self, request: GenerateRequest, meter: Meter, end: str) -> None:
        """Record a generation that has ended.

        Its span is a child of the span that the client's traceparent header names, if there is one. `end` is the finish
        reason, the code of the error, or "abandoned" if the client left.
        """
        epoch_s = time.time() - time.monotonic()
        operation = "chat" if isinstance(request.prompt, ChatPrompt) else "text_completion"
        span = self._tracer.start_span(
            f"{operation} {meter.model}",
            self._propagator.extract(TRACE_HEADERS.get()),
            self._kind,
            attributes={"gen_ai.operation.name": operation, **_asked(request, meter), **_answered(request, meter, end)},
            start_time=_nanoseconds(epoch_s + meter.began_s),
        )
        if meter.finished is None:
            span.set_attribute("error.type", end)
            span.set_status(self._failed)
        elif span.is_recording():
            self._stages(span, meter, epoch_s)
        span.end(_nanoseconds(epoch_s + meter.ended_s))

    def _stages(self, span: Span, meter: Meter, epoch_s: float) -> None:
        assert meter.finished is not None
        context = self._under(span)
        for name, begin_s, end_s in stages(meter.finished.timings, meter.began_s, meter.ended_s):
            stage = self._tracer.start_span(name, context, start_time=_nanoseconds(epoch_s + begin_s))
            stage.end(_nanoseconds(epoch_s + end_s))


def stages(timings: Timings, began_s: float, ended_s: float) -> Iterator[tuple[str, float, float]]:
    """Yield the name, begin and end of each stage that took place. All times are in seconds of the same clock.

    The order is always load, render, queue, cache, prefill, decode, deliver. Begin and end are computed from measured
    durations, so there may be gaps between stages. If an answer was resumed, stages of unknown length are left out.
    """
    at_s = began_s
    for name, milliseconds in (("load", timings.load_ms), ("render", timings.render_ms), ("queue", timings.queue_ms)):
        if milliseconds > 0 or (name == "queue" and not timings.is_resumed):
            yield name, at_s, at_s + milliseconds / 1000
        at_s += milliseconds / 1000
    if timings.cache_ms > 0:
        yield "cache", at_s, at_s + timings.cache_ms / 1000
    if timings.first_token_ms <= 0:
        return
    first_s = began_s + timings.first_token_ms / 1000
    last_s = first_s + timings.decode_ms / 1000
    if not timings.is_resumed:
        yield "prefill", first_s - timings.prefill_ms / 1000, first_s
    yield "decode", first_s, last_s
    yield "deliver", last_s, max(last_s, ended_s)


def _asked(request: GenerateRequest, meter: Meter) -> Attributes:
    sampling = request.sampling
    wanted = {
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
    }
    is_json = isinstance(request.format, JsonObjectFormat | JsonSchemaFormat)
    return {
        "gen_ai.provider.name": "edgeagent",
        "gen_ai.request.model": meter.model,
        "gen_ai.output.type": "json" if is_json else "text",
        **{name: value for name, value in wanted.items() if value is not None},
    }


def _answered(request: GenerateRequest, meter: Meter, end: str) -> Attributes:
    usage = meter.usage
    attributes: Attributes = {
        "gen_ai.response.id": request.id,
        "gen_ai.response.model": meter.model,
        "gen_ai.usage.input_tokens": usage.num_prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.num_cached_tokens,
        "gen_ai.usage.output_tokens": usage.num_output_tokens,
        "edgeagent.request_id": REQUEST_ID.get(),
    }
    if meter.finished is not None:
        attributes["gen_ai.response.finish_reasons"] = [end]
        attributes["edgeagent.route"] = meter.finished.timings.route
        attributes["edgeagent.route.reason"] = meter.finished.timings.reason
    if meter.first_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = meter.first_s - meter.began_s
    return attributes


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


@contextmanager
def tracing(config: TraceConfig, state_dir: Path) -> Iterator[Tracer | None]:
    """Yield the Tracer, or None if no endpoint is configured. Send the last traces at the end, within FLUSH_S.

    Each batch is recorded in the egress ledger in the state folder. If that cannot be written, nothing is sent. While
    the machine's policy keeps all here, nothing is sent to another machine.

    Raise ConfigError if the endpoint is not an HTTP address, or if the extra is not installed.
    """
    if config.endpoint is None:
        yield None
        return
    if not config.endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"trace.endpoint is {config.endpoint!r:.200}; give an address such as http://127.0.0.1:4318")
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigError("trace.endpoint needs OpenTelemetry; install it with: pip install 'edgeagent[otel]'")
    provider = _provider(config, state_dir)
    try:
        yield Tracer(provider)
    finally:
        # Use a thread, since a dead collector must not delay the daemon's end.
        closing = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(FLUSH_S)


def _provider(config: TraceConfig, state_dir: Path) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    assert config.endpoint is not None
    base = config.endpoint.rstrip("/")
    # With the default sampler, every generation is recorded unless the client's own trace is not sampled.
    resource = Resource({"service.name": "edgeagent", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    endpoint = base if base.endswith(PATH) else base + PATH
    exporter = OTLPSpanExporter(endpoint=endpoint, session=_recorded_session(state_dir))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _recorded_session(state_dir: Path) -> Session:
    """Return an HTTP session that sends a request, a repeated or redirected one too, only if the policy allows it.

    The ledger then has its row.
    """
    import requests

    class Recorded(requests.Session):
        def __init__(self) -> None:
            super().__init__()
            self._ledger = Ledger(state_dir)
            self._policy = QuietPolicyFile()

        def send(self, request: PreparedRequest, **options: Any) -> Response:
            url = str(request.url)
            if not is_loopback(url) and (why := self._policy.why_local):
                # The exporter repeats what fails with a ConnectionError, for up to ten seconds.
                raise requests.RequestException(why)
            try:
                num_bytes = len(request.body) if isinstance(request.body, bytes) else 0
                row = self._ledger.begin_own(TRACES, url, num_bytes=num_bytes)
            except StoreError as error:
                raise requests.RequestException(error.message) from None
            outcome = "failed"
            try:
                answer = super().send(request, **options)
                outcome = "completed" if answer.ok else "failed"
                return answer
            finally:
                self._ledger.end(row, outcome)

        def close(self) -> None:
            super().close()
            self._ledger.close()

    return Recorded()
