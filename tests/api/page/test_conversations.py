"""Conversations: the list of a client's stored responses by their first, and all branches of one."""

from __future__ import annotations

from typing import Any

from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running


async def say(daemon: Running, text: str, previous_id: str | None = None, **fields: Any) -> str:
    body = {"input": text, "previous_response_id": previous_id, **fields}
    answer = await daemon.http.post(f"{daemon.url}/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def get(daemon: Running, path: str) -> Any:
    return (await daemon.http.get(f"{daemon.url}/edgeagent/conversations{path}")).json()


async def test_a_conversation_with_a_branch() -> None:
    async with running(FakeBackend()) as daemon:
        first = await say(daemon, "one\n two")
        second = await say(daemon, "three", first)
        branch = await say(daemon, "four", first)
        other = await say(daemon, "five")
        await say(daemon, "not kept", store=False)
        found = (await get(daemon, ""))["data"]
        assert [(each["id"], each["title"], each["num_responses"]) for each in found] == [
            (other, "five", 1),
            (first, "one two", 3),
        ]
        assert found[1]["created_at"] <= found[1]["last_at"]
        assert len((await get(daemon, "?limit=1"))["data"]) == 1
        turns = (await get(daemon, f"/{first}"))["turns"]
        assert [turn["response"]["id"] for turn in turns] == [first, second, branch]
        assert [turn["response"]["previous_response_id"] for turn in turns] == [None, first, first]
        assert [[item["content"][0]["text"] for item in turn["input"]] for turn in turns] == [
            ["one\n two"],
            ["three"],
            ["four"],
        ]


async def test_what_is_left_of_a_conversation_still_has_its_beginning() -> None:
    async with running(FakeBackend()) as daemon:
        first = await say(daemon, "one")
        second = await say(daemon, "two", first)
        await daemon.http.delete(f"{daemon.url}/v1/responses/{first}")
        assert [(each["id"], each["title"]) for each in (await get(daemon, ""))["data"]] == [(second, "two")]
        [turn] = (await get(daemon, f"/{second}"))["turns"]
        assert [item["role"] for item in turn["input"]] == ["user", "assistant", "user"]


async def test_a_response_that_is_not_stored() -> None:
    async with running(FakeBackend()) as daemon:
        answer = await daemon.http.get(f"{daemon.url}/edgeagent/conversations/resp_x")
        assert answer.status_code == 404
