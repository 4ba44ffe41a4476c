"""Scenarios with conversations like those of applications: many new ones, and one with several turns.

The server may store these conversations.
"""

from __future__ import annotations

from edgeagent.bench.client import BenchRequest, Trace
from edgeagent.bench.scenarios import (
    FEW_TOKENS,
    ITL,
    LENGTH,
    RATE,
    SHORT_PROMPT_TOKENS,
    MeasuredServer,
    Metric,
    Round,
    Scenario,
    Workload,
    joined,
    length,
    opened,
)
from tests.peer.laboratory.caches import STORED, message

NUM_NEXT_TURNS = 3
ANSWER_TOKENS = 24
"""About how many tokens an answer has in later prompts. There it is random text, not the server's own answer."""

BEGINNING = Metric("beginning TTFT", "ms", "of each new conversation")
FIRST = Metric("first's TTFT", "ms", "of the first new conversation of a round")
LAST = Metric("last's TTFT", "ms", "of the last one, after all the others")
GROWTH = Metric("last of first", "x", "the last one's time as a multiple of the first's")


async def beginnings(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Begin conversations one after another, to see whether a server's work on earlier ones delays the later ones."""
    asked = [Trace() for _ in range(workload.conversations)]
    async with opened(measured) as connection:
        for lane, trace in enumerate(asked):
            prompt = measured.prompts.cold(f"beginning {round_id} {lane}", workload.prompt_tokens)
            await connection.ask(BenchRequest(prompt, FEW_TOKENS, own=STORED), trace)
    first, last = asked[0].ttft_ms, asked[-1].ttft_ms
    return {
        BEGINNING: joined(trace.ttft_ms for trace in asked),
        FIRST: first,
        LAST: last,
        GROWTH: [last[0] / first[0]] if first and last else [],
    }


OPENING = Metric("opening TTFT", "ms", "first turn: a long prompt never seen before")
NEXT = Metric("next turn TTFT", "ms", "each further turn, at once")


async def chat(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Ask a long question and then NUM_NEXT_TURNS short ones in one conversation, and measure each answer.

    The measured answers have up to `workload.max_tokens` tokens. In later prompts, each answer is replaced by a random
    text of ANSWER_TOKENS tokens, so that every server gets prompts of the same length.
    """
    said = [message("user", measured.prompts.cold(f"chat {round_id}", workload.prompt_tokens))]
    asked = []
    async with opened(measured) as connection:
        for number in range(1 + NUM_NEXT_TURNS):
            trace = Trace()
            await connection.ask(BenchRequest(said[-1]["content"], workload.max_tokens, said[:-1], STORED), trace)
            asked.append(trace)
            said.append(message("assistant", measured.prompts.text(f"answer {round_id} {number}", ANSWER_TOKENS)))
            said.append(message("user", measured.prompts.cold(f"turn {round_id} {number}", SHORT_PROMPT_TOKENS)))
    return {
        OPENING: asked[0].ttft_ms,
        NEXT: joined(trace.ttft_ms for trace in asked[1:]),
        RATE: joined(trace.tokens_per_s for trace in asked),
        ITL: joined(trace.gaps_ms for trace in asked),
        LENGTH: joined(length(trace) for trace in asked),
    }


SCENARIOS = (
    Scenario(
        "beginnings",
        "new conversations, one after another",
        (BEGINNING, FIRST, LAST, GROWTH),
        beginnings,
    ),
    Scenario(
        "chat",
        "one conversation that the server keeps",
        (OPENING, NEXT, RATE, ITL, LENGTH),
        chat,
    ),
)
