"""Scenarios of conversations that a server keeps, against a fake backend: their requests and their counts."""

from __future__ import annotations

from edgeagent.bench.scenarios import FEW_TOKENS, ITL, LENGTH, RATE, Workload
from tests.backends.fake import FakeBackend
from tests.bench.test_scenarios import measured_server
from tests.peer.laboratory import chats
from tests.peer.laboratory.test_caches import roles, texts

WORKLOAD = Workload(prompt_tokens=200, max_tokens=20, parallel=2, conversations=3)


async def test_each_conversation_begins_as_no_other_did() -> None:
    backend = FakeBackend()
    async with measured_server(backend) as measured:
        samples = [await chats.beginnings(measured, WORKLOAD, round_id) for round_id in ("0", "1")]
    asked = [texts(request)[0] for request in backend.requests]
    assert len({prompt.split()[0] for prompt in asked}) == 6
    assert {request.max_tokens for request in backend.requests} == {FEW_TOKENS}
    assert all(request.cache.persist for request in backend.requests), "conversations are kept"
    for each in samples:
        assert len(each[chats.BEGINNING]) == 3
        assert each[chats.FIRST] == each[chats.BEGINNING][:1]
        assert each[chats.LAST] == each[chats.BEGINNING][-1:]
        assert each[chats.GROWTH] == [each[chats.LAST][0] / each[chats.FIRST][0]]


async def test_a_chat_goes_on_from_all_that_was_said() -> None:
    backend = FakeBackend()
    async with measured_server(backend) as measured:
        samples = await chats.chat(measured, WORKLOAD, "0")
    assert [len(roles(request)) for request in backend.requests] == [1, 3, 5, 7]
    for earlier, later in zip(backend.requests, backend.requests[1:], strict=False):
        assert texts(later)[: len(texts(earlier))] == texts(earlier)
        assert roles(later)[-3:] == ["user", "assistant", "user"]
    assert all(request.cache.persist for request in backend.requests), "conversations are kept"
    assert len(samples[chats.OPENING]) == 1
    assert len(samples[chats.NEXT]) == len(samples[RATE]) - 1 == chats.NUM_NEXT_TURNS
    assert samples[LENGTH] == [20] * 4
    assert len(samples[ITL]) == 4 * 19
