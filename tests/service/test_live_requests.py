"""Each request in flight, once: what keeps it there, who finds it, and what a stop waits for."""

from __future__ import annotations

import asyncio

from edgeagent.service.live_requests import LiveRequest, LiveRequests


class Noting(LiveRequest):
    """Counts how often it was hidden."""

    num_hidden = 0

    def on_hidden(self) -> None:
        self.num_hidden += 1


def test_only_its_partition_finds_a_visible_request() -> None:
    live, request = LiveRequests(), LiveRequest("a", "kiosk")
    live.expect_delivery(request)
    assert live.find("a", "kiosk") is None
    live.show(request)
    assert live.find("a", "kiosk") is request
    assert live.find("a", "") is None and live.find("b", "kiosk") is None
    live.hide(request)
    assert live.find("a", "kiosk") is None


def test_a_request_that_is_shown_stands_for_the_one_that_runs() -> None:
    live, request = LiveRequests(), Noting("a")
    live.begin("a")
    live.show(request)
    assert live.running() == [request]
    live.hide(request)
    live.hide(request)
    assert (live.running(), request.num_hidden) == ([request], 1)
    live.end("a")
    assert live.num_running == 0


def test_it_stays_while_anything_is_to_be_done_for_it() -> None:
    live, request = LiveRequests(), LiveRequest("a")
    live.show(request)
    live.expect_delivery(request)
    live.begin("a")
    live.end("a")
    live.mark_delivered(request)
    assert live.find("a", "") is request
    live.hide(request)
    live.begin("a")
    assert live.running() != [request]  # another of the same id, as its compaction's


async def test_an_end_is_waited_for_but_not_that_of_what_hangs() -> None:
    live = LiveRequests()
    hanging, ended, following = (LiveRequest(name) for name in ("hangs", "ended", "next"))
    for request in (hanging, ended):
        live.expect_delivery(request)
    live.begin("hangs")
    waiting = asyncio.create_task(live.wait_delivered(60.0))
    await asyncio.sleep(0)
    live.mark_delivered(ended)
    live.expect_delivery(following)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    live.mark_delivered(following)
    await waiting
    assert live.running() == [hanging]


async def test_it_is_idle_once_nothing_runs() -> None:
    live = LiveRequests()
    live.begin("a")
    await live.wait_idle(0.0)
    assert live.num_running == 1
    waiting = asyncio.create_task(live.wait_idle(60.0))
    await asyncio.sleep(0)
    live.end("a")
    live.end("unknown")
    await waiting
    assert live.num_running == 0
