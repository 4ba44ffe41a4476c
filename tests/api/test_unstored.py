"""What a request that is not to be stored lets the caches do, on every wire."""

from __future__ import annotations

from typing import Any

import pytest

from edgeagent.types import AnswerPolicy
from tests.backends.fake import FakeBackend
from tests.daemon.running import running

pytestmark = pytest.mark.asyncio

MESSAGES = [{"role": "user", "content": "hello"}]
OWN, FIELDS = {"edgeagent": {"store": False}}, ({"store": False}, {"no_store": True})
BODIES: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {
    "/v1/responses": ({"input": "hello"}, (OWN, *FIELDS)),
    "/v1/chat/completions": ({"messages": MESSAGES}, (OWN, *FIELDS)),
    "/v1/completions": ({"prompt": "hello"}, (OWN, *FIELDS)),
    "/completion": ({"prompt": "hello"}, (OWN, *FIELDS)),
    "/v1/messages": ({"max_tokens": 9, "messages": MESSAGES}, (OWN,)),
    "/api/chat": ({"messages": MESSAGES, "stream": False}, (OWN, {"options": OWN})),
    "/api/generate": ({"prompt": "hello", "stream": False}, (OWN, {"options": OWN})),
}


@pytest.mark.parametrize("path", BODIES)
async def test_nothing_of_it_is_written_to_the_disk(path: str) -> None:
    body, all_fields = BODIES[path]
    backend = FakeBackend()
    async with running(backend) as daemon:
        for fields in ({}, {"edgeagent": {"store": True}}, *all_fields):
            reply = await daemon.http.post(f"{daemon.url}{path}", json={"model": "fake"} | body | fields)
            assert reply.status_code == 200, reply.text
            cache, is_kept = backend.requests[-1].cache, not fields or fields == {"edgeagent": {"store": True}}
            assert (cache.persist, cache.answers) == (is_kept, AnswerPolicy.USE if is_kept else AnswerPolicy.NONE)
            if path == "/v1/responses":
                assert reply.json()["store"] == is_kept
