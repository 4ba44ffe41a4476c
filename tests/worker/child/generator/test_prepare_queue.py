"""The order in which requests' prompts are prepared."""

from __future__ import annotations

from edgeagent.types import CachePolicy, Tier
from edgeagent.worker.child.generator.loop import PrepareQueue
from edgeagent.worker.child.generator.media import Reading
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


def test_one_whose_image_is_read_lets_others_go_first() -> None:
    queue = PrepareQueue()
    for client in ("album", "polite"):
        queue.put(submit(client, client))
    album, reading = queue.get()
    assert reading is None
    queue.set_aside(album)
    assert names(queue, 1) == ["polite"]
    first, second = Reading(3, ()), Reading(4, ())
    queue.put_back(album, first)
    assert queue.get() == (album, first)
    queue.set_aside(album)
    queue.drop("album")
    queue.put_back(album, second)
    again = submit("album", "album")
    queue.put(again)
    assert queue.get() == (again, None), "a cancelled one begins again"
