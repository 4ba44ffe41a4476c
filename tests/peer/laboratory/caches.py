"""Scenarios of the prefix cache: after the server was killed, with a shared system prompt, and with many conversations.

They measure the time to the first token (TTFT) and the cached tokens. `shared_prefix` also measures the growth of the
cache. The many conversations together need more tokens than fit into the KV cells.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from edgeagent.bench.client import BenchRequest, Connection, Server, Trace
from edgeagent.bench.scenarios import (
    FEW_TOKENS,
    SHORT_PROMPT_TOKENS,
    MeasuredServer,
    Metric,
    Prompts,
    Round,
    Scenario,
    Workload,
    joined,
    opened,
)
from edgeagent.errors import NotSupported
from tests.peer.laboratory.pages import read_page

NUM_WARM_REQUESTS = 3
TURN_TOKENS = 24
"""About how many tokens each message of a conversation has, except the first question."""
SETTLE_S = 7.0
"""How many seconds to wait until a server has written an answer's KV blocks."""
MAX_SETTLES = 6
STORED = {"store": True}
"""Makes an edgeagent store a prompt over the WebSocket too; over HTTP it always does."""
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The size of the prompts that an edgeagent caches in memory and on disk, outside its KV cells."""

    memory_bytes: int
    disk_bytes: int
    disk_tokens: int


async def read_cache_size(server: Server) -> CacheSize:
    """Ask an edgeagent for the size of its cache. Raise httpx.HTTPError if it does not answer."""
    status = json.loads(await read_page(server, "/edgeagent/status"))
    parts = json.loads(await read_page(server, "/edgeagent/cache"))["parts"]
    workers: list[dict[str, Any]] = [model.get("worker") or {} for model in status["models"]]
    return CacheSize(
        sum((worker.get("memory_cache") or {}).get("num_bytes", 0) for worker in workers),
        sum(part["num_bytes"] for part in parts),
        sum(part["num_tokens"] for part in parts),
    )


async def wait_for_stable_cache_size(server: Server) -> CacheSize:
    """Wait until the size of the cache stops changing, at most MAX_SETTLES times SETTLE_S, and return the size."""
    size = await read_cache_size(server)
    for _ in range(MAX_SETTLES):
        await asyncio.sleep(SETTLE_S)
        former, size = size, await read_cache_size(server)
        if size == former:
            break
    return size


COLD = Metric("cold TTFT", "ms", "prefix never seen before")
WARM = Metric("warm TTFT", "ms", "the same prefix, before the server is killed")
AFTER = Metric("TTFT after", "ms", "the same prefix, in the first request after the restart")
AFTER_PROMPT = Metric("prompt after", "tokens", "as the server counts", "neither")
AFTER_CACHED = Metric("cached after", "tokens", "found in the prefix cache", "neither")


async def restart(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Send prompts with one prefix, kill the server without a normal stop, and send one more after the restart.

    Raise NotSupported if the server has no `restart` function.
    """
    if measured.server.restart is None:
        raise NotSupported("`restart` kills the server, so it measures only a daemon that it starts itself: no URL")
    prompts = [
        measured.prompts.ending(f"restart {round_id}", f"{round_id} {turn}", workload.prompt_tokens)
        for turn in range(NUM_WARM_REQUESTS + 2)
    ]
    async with opened(measured) as connection:
        cold, *warm = [await _asked(connection, prompt) for prompt in prompts[:-1]]
    await asyncio.sleep(SETTLE_S)
    await asyncio.to_thread(measured.server.restart)
    async with opened(measured) as connection:
        after = await _asked(connection, prompts[-1])
    return {
        COLD: cold.ttft_ms,
        WARM: joined(trace.ttft_ms for trace in warm),
        AFTER: after.ttft_ms,
        AFTER_PROMPT: [float(after.counts.num_prompt)] if after.counts else [],
        AFTER_CACHED: [float(after.counts.num_cached)] if after.counts else [],
    }


FIRST = Metric("first TTFT", "ms", "of the first conversation: the system prompt is new")
OTHERS = Metric("others' TTFT", "ms", "of each further conversation")
OTHERS_CACHED = Metric("others' cached", "tokens", "found in the prefix cache", "neither")
MEMORY_SHARE = Metric("kept in memory", "x", "bytes; 1 is the system prompt once and all other tokens")
DISK_SHARE = Metric("kept on disk", "x", "bytes; 1 is the system prompt once and all other tokens")


async def shared_prefix(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Begin many conversations with the same system prompt.

    The cache's growth in memory and on disk is measured only on edgeagent, since other servers do not report it.
    """
    reports_cache = measured.server.kind == "edgeagent"
    system = message("system", measured.prompts.cold(f"system {round_id}", workload.prompt_tokens))
    questions = [
        measured.prompts.cold(f"question {round_id} {lane}", SHORT_PROMPT_TOKENS)
        for lane in range(workload.conversations)
    ]
    async with opened(measured) as connection:
        alone = await _asked(connection, questions[0])
        before = await wait_for_stable_cache_size(measured.server) if reports_cache else None
        first, *others = [await _asked(connection, question, system) for question in questions]
        after = await wait_for_stable_cache_size(measured.server) if reports_cache else None
    shares: Round = {MEMORY_SHARE: [], DISK_SHARE: []}
    if before and after:
        shares = _shares(before, after, _num_unique(alone, [first, *others]))
    return {
        FIRST: first.ttft_ms,
        OTHERS: joined(trace.ttft_ms for trace in others),
        OTHERS_CACHED: [float(trace.counts.num_cached) for trace in others if trace.counts],
        **shares,
    }


def _num_unique(alone: Trace, asked: list[Trace]) -> int:
    """Return the number of tokens of all conversations, with their shared system prompt counted once.

    `alone` is the trace of the first question when it was sent without the system prompt.
    """
    counts = [trace.counts for trace in asked if trace.counts]
    assert alone.counts is not None
    num_system = counts[0].num_prompt - alone.counts.num_prompt
    return num_system + sum(each.num_prompt - num_system + each.num_output for each in counts)


def _shares(before: CacheSize, after: CacheSize, num_unique: int) -> Round:
    """Return the growth of the cache in memory and on disk, as multiples of the size of `num_unique` tokens.

    The size of one token is estimated from the blocks on disk. Without blocks on disk, there are no samples.
    """
    if not after.disk_tokens:
        return {MEMORY_SHARE: [], DISK_SHARE: []}
    unique_bytes = num_unique * after.disk_bytes / after.disk_tokens
    memory, disk = after.memory_bytes - before.memory_bytes, after.disk_bytes - before.disk_bytes
    return {MEMORY_SHARE: [memory / unique_bytes], DISK_SHARE: [disk / unique_bytes]}


NEXT = Metric("next turn TTFT", "ms", "with a turn of every other conversation in between")
NEXT_PROMPT = Metric("next turn prompt", "tokens", "as the server counts", "neither")
NEXT_CACHED = Metric("next turn cached", "tokens", "found in the prefix cache", "neither")


async def conversations(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Send the next turn of each of many conversations, one after another."""
    turn = int(round_id) + 1
    async with opened(measured) as connection:
        asked = [
            await _asked(connection, *_turn(measured.prompts, workload, lane, turn))
            for lane in range(workload.conversations)
        ]
    return {
        NEXT: joined(trace.ttft_ms for trace in asked),
        NEXT_PROMPT: [float(trace.counts.num_prompt) for trace in asked if trace.counts],
        NEXT_CACHED: [float(trace.counts.num_cached) for trace in asked if trace.counts],
    }


async def _begin_conversations(measured: MeasuredServer, workload: Workload) -> None:
    async with opened(measured) as connection:
        for lane in range(workload.conversations):
            await _asked(connection, *_turn(measured.prompts, workload, lane, 0))


def message(role: str, text: str) -> Message:
    """Return a message of a conversation. `role` is system, user or assistant."""
    return {"role": role, "content": text}


def _turn(prompts: Prompts, workload: Workload, lane: int, number: int) -> tuple[str, *tuple[Message, ...]]:
    """Return the question of a turn, and then the earlier messages of the conversation.

    `lane` is the number of the conversation, and `number` that of the turn, from 0. The question of turn 0 is the long
    prompt.
    """
    said = [message("user", prompts.cold(f"conversation {lane}", workload.prompt_tokens))]
    for at in range(number):
        said.append(message("assistant", prompts.text(f"answer {lane} {at}", TURN_TOKENS)))
        said.append(message("user", prompts.text(f"question {lane} {at}", TURN_TOKENS)))
    return said[-1]["content"], *said[:-1]


async def _asked(connection: Connection, prompt: str, *earlier: Message) -> Trace:
    """Send a question that the server may store, and return the trace of the complete answer."""
    trace = Trace()
    await connection.ask(BenchRequest(prompt, FEW_TOKENS, earlier, STORED), trace)
    return trace


SCENARIOS = (
    Scenario(
        "restart",
        "the same prefix after a power cut",
        (COLD, WARM, AFTER, AFTER_PROMPT, AFTER_CACHED),
        restart,
    ),
    Scenario(
        "shared-prefix",
        "many conversations with one system prompt",
        (FIRST, OTHERS, OTHERS_CACHED, MEMORY_SHARE, DISK_SHARE),
        shared_prefix,
        is_once=True,
    ),
    Scenario(
        "conversations",
        "more conversations than fit into the KV cells",
        (NEXT, NEXT_PROMPT, NEXT_CACHED),
        conversations,
        prepare=_begin_conversations,
    ),
)
