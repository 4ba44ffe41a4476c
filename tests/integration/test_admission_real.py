"""A real daemon whose queue is long: what misses its limit is refused at once, and what waits learns for how long."""

from __future__ import annotations

import itertools
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from typing import Any
from urllib.error import HTTPError

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect

from edgeagent.config import DEFAULT_PARALLEL
from tests.integration.conftest import Daemon, wait_until
from tests.patience import patient

LONG = {"prompt": "Once upon a time", "n_predict": 400, "ignore_eos": True, "stream": True}


def post(daemon: Daemon, path: str, **body: object) -> HTTPResponse:
    request = urllib.request.Request(
        f"{daemon.url}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    response: HTTPResponse = urllib.request.urlopen(request, timeout=patient(60))
    return response


def sent(daemon: Daemon, path: str, **body: object) -> HTTPConnection:
    """Send a request, and do not wait for its answer."""
    connection = HTTPConnection("127.0.0.1", daemon.port)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    return connection


def num_live(daemon: Daemon) -> int:
    with urllib.request.urlopen(f"{daemon.url}/edgeagent/status", timeout=patient(60)) as status:
        return int(json.load(status)["num_live_requests"])


@contextmanager
def halted_worker(daemon: Daemon) -> Iterator[None]:
    """Halt the worker of the daemon's model meanwhile."""
    children = psutil.Process(daemon.process.pid).children(recursive=True)
    (worker,) = [each for each in children if "edgeagent.worker.child.process" in each.cmdline()]
    worker.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):  # on a slow machine, it was replaced after so long without a sign of life
            worker.resume()


def num_late_in_queue(daemon: Daemon) -> float:
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=patient(60)) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples if sample.name == "edgeagent_answers_total"]
    return sum(sample.value for sample in samples if sample.labels["outcome"] == "queue")


def test_a_deadline_that_passes_in_the_queue_is_a_late_answer(daemon: Daemon) -> None:
    daemon.wait_until_idle()
    num_before = num_late_in_queue(daemon)
    with halted_worker(daemon), pytest.raises(HTTPError) as refused:
        post(daemon, "/v1/responses", input="hi", edgeagent={"deadline_ms": 2000})
    error = json.load(refused.value)["error"]
    assert (refused.value.code, error["code"], error["late_stage"]) == (504, "request_timeout", "queue")
    wait_until(lambda: num_late_in_queue(daemon) == num_before + 1)


async def test_a_create_whose_limit_passes_on_its_lane_is_a_late_answer(daemon: Daemon) -> None:
    daemon.wait_until_idle()
    num_before = num_late_in_queue(daemon)
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
        for need in ({}, {"ttft_ms": 1}, {"deadline_ms": 1}, {}):
            own = {"tier": "batch", **need}  # its target is kept on a slow machine too
            made = {"type": "response.create", "input": "Tell me a story.", "temperature": 0, "edgeagent": own}
            await socket.send(json.dumps(made))
        ends = list[dict[str, Any]]()
        while len(ends) < 4:
            event = json.loads(await socket.recv())
            if event["type"] in ("error", "response.completed"):
                ends.append(event)
    codes = [end["error"]["code"] if end["type"] == "error" else "" for end in ends]
    assert codes == ["", "deadline_unreachable", "request_timeout", ""]
    wait_until(lambda: num_late_in_queue(daemon) == num_before + 2)
    first, *_, last = (end["response"]["edgeagent"] for end in ends if "response" in end)
    assert last["stages_ms"]["first_token"] >= first["stages_ms"]["decode"], "it waited for the first one"


def test_a_full_machine_refuses_what_it_cannot_keep_and_queues_the_rest(daemon: Daemon) -> None:
    measured: dict[str, float] = {}
    for number in itertools.count():  # the daemon learns the worker's rates once a second
        with post(daemon, "/completion", prompt=f"{number} {'a longer text ' * 80}", n_predict=2) as first:
            measured = json.load(first)["edgeagent"]
        if "expected_ms" in measured:
            break
    with ExitStack() as streams:
        streams.enter_context(halted_worker(daemon))  # so that no stream ends before the others have come
        for number in range(DEFAULT_PARALLEL):
            streams.enter_context(closing(sent(daemon, "/completion", **LONG | {"prompt": f"Story {number}"})))
        until_s = time.monotonic() + patient(20)
        while num_live(daemon) < DEFAULT_PARALLEL:
            assert time.monotonic() < until_s
        with pytest.raises(HTTPError) as refused:
            post(daemon, "/v1/responses", input="hi", edgeagent={"ttft_ms": 1})
        waiting = streams.enter_context(post(daemon, "/v1/responses", input="hi", stream=True, max_output_tokens=8))
        events = list[dict[str, Any]]()
        while not events or events[-1]["type"] != "response.queued":
            line = waiting.readline()
            assert line, "the stream has ended"
            if line.startswith(b"data: "):
                events.append(json.loads(line.removeprefix(b"data: ")))
    error = json.load(refused.value)["error"]
    assert (refused.value.code, error["code"]) == (429, "deadline_unreachable")
    assert int(refused.value.headers["retry-after"]) >= 1
    assert int(refused.value.headers["x-edgeagent-expected-ms"]) > 1
    assert [event["type"] for event in events] == ["response.created", "response.queued"]
    assert events[1]["edgeagent"]["place"] == DEFAULT_PARALLEL and events[1]["edgeagent"]["expected_ms"] > 0
    assert int(waiting.headers["x-edgeagent-expected-ms"]) > 0
