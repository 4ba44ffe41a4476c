"""The order in which requests' prompts are prepared."""

from __future__ import annotations

from collections.abc import Callable

from edgeagent.types import CachePolicy, Tier
from edgeagent.worker.child.generator.loop import PrepareQueue
from edgeagent.worker.child.generator.media import OnRead, Reading
from edgeagent.worker.protocol import Submit
from tests.worker.support import request


def submit(name: str, client: str, tier: Tier = Tier.INTERACTIVE) -> Submit:
    return Submit(request("", name, tier=tier, cache=CachePolicy(partition=client)), 0.0)


def names(queue: PrepareQueue, num: int) -> list[str]:
    return [queue.get()[0].request.id for _ in range(num)]


def test_one_client_is_served_in_order() -> None:
    queue = PrepareQueue()
    for index in range(3):
        queue.put(submit(f"r{index}", "one"))
    assert names(queue, 3) == ["r0", "r1", "r2"]


def test_clients_take_turns_and_the_urgent_go_first() -> None:
    queue = PrepareQueue()
    for index in range(3):
        queue.put(submit(f"greedy {index}", "greedy"))
    assert names(queue, 1) == ["greedy 0"]
    queue.put(submit("batch", "idle", Tier.BATCH))
    queue.put(submit("polite", "polite"))
    queue.put(submit("now", "greedy", Tier.REALTIME))
    assert names(queue, 5) == ["now", "polite", "greedy 1", "greedy 2", "batch"]


def test_a_cancelled_one_is_not_prepared_and_its_id_can_be_used_again() -> None:
    queue = PrepareQueue()
    for index in range(3):
        queue.put(submit(f"r{index}", "one"))
        queue.drop(f"r{index}")
    queue.drop("unknown")
    queue.put(submit("last", "one"))
    again = submit("r1", "one")
    queue.put(again)
    assert names(queue, 1) == ["last"]
    assert queue.get()[0] is again


class Reads:
    """The reads that were begun, in order. A test ends them."""

    def __init__(self) -> None:
        self.begun: list[tuple[OnRead, Callable[[], bool]]] = []

    def begin(self, on_read: OnRead, is_wanted: Callable[[], bool]) -> None:
        self.begun.append((on_read, is_wanted))

    def end(self, reading: Reading) -> None:
        self.begun[-1][0](reading)

    @property
    def is_wanted(self) -> bool:
        return self.begun[-1][1]()


def test_one_whose_image_is_read_lets_others_go_first() -> None:
    queue, reads = PrepareQueue(), Reads()
    for client in ("album", "polite"):
        queue.put(submit(client, client))
    album, reading = queue.get()
    assert reading is None
    queue.set_aside(album, None, reads.begin)
    assert names(queue, 1) == ["polite"]
    first, second = Reading(3, ()), Reading(4, ())
    reads.end(first)
    assert queue.get() == (album, first)
    queue.set_aside(album, first, reads.begin)
    assert reads.is_wanted
    queue.drop("album")
    reads.end(second)
    again = submit("album", "album")
    queue.put(again)
    assert queue.get() == (again, None), "a cancelled one begins again"
    assert not reads.is_wanted


def test_one_image_is_read_at_a_time_in_the_order_of_the_prompts() -> None:
    queue, reads = PrepareQueue(), Reads()
    for index in range(4):
        queue.put(submit(f"batch {index}", "batch", Tier.BATCH))
    read, earlier = Reading(1, ()), Reading(2, ())
    first, _ = queue.get()
    queue.set_aside(first, None, reads.begin)
    for reading in (None, earlier, None):
        queue.set_aside(queue.get()[0], reading, reads.begin)
    assert len(reads.begun) == 1
    for name, tier in (("text", Tier.INTERACTIVE), ("polite", Tier.BATCH), ("now", Tier.REALTIME)):
        queue.put(submit(name, name, tier))
    now, _ = queue.get()
    assert now.request.id == "now"
    queue.set_aside(now, None, reads.begin)
    assert names(queue, 1) == ["text"], "others are prepared meanwhile"
    polite, _ = queue.get()
    queue.set_aside(polite, None, reads.begin)
    reads.end(read)
    assert queue.get() == (now, None)
    queue.set_aside(now, None, reads.begin)
    queue.drop("batch 1")
    queue.drop("polite")
    assert queue.get() == (first, read), "it needs no further image"
    reads.end(read)
    assert queue.get() == (now, read)
    assert [queue.get()[1], queue.get()[1]] == [earlier, None], "batch 2 and 3, and nothing that is cancelled"
    assert len(reads.begun) == 2


def test_a_cancelled_read_holds_the_next_one_until_its_end() -> None:
    queue, reads = PrepareQueue(), Reads()
    for index in range(2):
        queue.put(submit(f"r{index}", "one"))
        queue.set_aside(queue.get()[0], None, reads.begin)
    queue.drop("r0")
    queue.put(submit("text", "one"))
    assert names(queue, 1) == ["text"]
    assert len(reads.begun) == 1 and not reads.is_wanted
    reads.end(Reading(1, ()))
    assert names(queue, 1) == ["r1"]
