"""The scenarios of speculation: a copied text, and tokens per second for several kinds of text and draft lengths.

A draft length is 0 (no drafts), a fixed length, or the server's own choice.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from edgeagent.bench.client import BenchRequest, Trace
from edgeagent.bench.scenarios import (
    LENGTH,
    RATE,
    MeasuredServer,
    Metric,
    Prompts,
    Round,
    Scenario,
    Workload,
    answer,
    joined,
    length,
    opened,
    tasks,
)

_TEXT_TOKENS = 96
_CODE = """def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    middle = mean(values)
    total = 0.0
    for value in values:
        total += (value - middle) ** 2
    return total / len(values)
"""


# A small model repeats these without an error, and random words with many.
_SENTENCES = (
    "The library opens at nine in the morning and closes at six in the evening.",
    "Please leave your coat and your umbrella at the entrance.",
    "The train to the coast leaves from the second platform every hour.",
    "My grandmother planted the apple tree in front of the house.",
    "The children played in the garden until it was dark.",
    "Fresh bread is sold in the small shop behind the church.",
    "In winter the lake is frozen, and people walk across it.",
    "The old bridge was built more than two hundred years ago.",
    "She writes a letter to her brother at the end of every month.",
    "The museum has a large collection of paintings and drawings.",
    "Water the plants twice a week, and more often in the summer.",
    "The meeting was moved to Thursday because the room was not free.",
)


def _chat(prompts: Prompts, name: str) -> str:
    return f"{prompts.text(name, 4)}: explain step by step how a letter travels from one country to another."


def _edit(prompts: Prompts, name: str) -> str:
    text = prompts.text(name, _TEXT_TOKENS)
    return f"Repeat this text word for word, but write the word river in capital letters:\n\n{text}"


def _copy(prompts: Prompts, name: str) -> str:
    first = prompts.text(name, 4)
    order = random.Random(first)
    return f"Repeat this text word for word:\n\n{' '.join(order.sample(_SENTENCES, 8))}"


def _code(prompts: Prompts, name: str) -> str:
    return f"# {prompts.text(name, 4)}\n{_CODE}\nWrite the same for the covariance of two lists, then the correlation."


def _random(prompts: Prompts, name: str) -> str:
    return prompts.cold(name, _TEXT_TOKENS)


_KINDS: dict[str, Callable[[Prompts, str], str]] = {"chat": _chat, "copy-edit": _edit, "code": _code, "random": _random}
# Draft tokens per step: none, fixed numbers, and the server's choice (None).
_DEPTHS = {"off": 0, "1": 1, "3": 3, "8": 8, "auto": None}


def _metric(kind: str, depth: str, streams: str) -> Metric:
    drafts = {"off": "without drafts", "auto": "with drafts as the server chooses"}.get(depth, f"drafts of {depth}")
    return Metric(f"{kind}, {depth}, {streams}", "tokens/s", f"{streams}, {drafts}", "higher")


ONE = {(kind, depth): _metric(kind, depth, "one stream") for kind in _KINDS for depth in _DEPTHS}
MANY = {(kind, depth): _metric(kind, depth, "many streams") for kind in _KINDS for depth in ("off", "auto")}


async def speculate(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Measure one stream for each kind of text and draft length, then several streams at once.

    Several streams are measured only without drafts and with the server's choice. Every stream has its own prompt,
    since a server could use its earlier answer to the same prompt as a draft.
    """
    found: dict[Metric, list[float]] = {}
    for (kind, depth), metric in ONE.items():
        found[metric] = await _rates(measured, workload, 1, kind, depth, round_id)
    for (kind, depth), metric in MANY.items():
        rates = await _rates(measured, workload, workload.parallel, kind, depth, round_id)
        found[metric] = [sum(rates)] if rates else []
    return found


async def _rates(
    measured: MeasuredServer, workload: Workload, num_streams: int, kind: str, depth: str, round_id: str
) -> list[float]:
    """Run streams in parallel, and return the tokens per second of each. Unknown rates are left out."""
    traces = [Trace() for _ in range(num_streams)]
    own = {} if depth == "auto" else {"edgeagent": {"draft_tokens": _DEPTHS[depth]}}

    async def run(number: int) -> None:
        prompt = _KINDS[kind](measured.prompts, f"speculate {kind} {depth} {number} of {num_streams} {round_id}")
        async with opened(measured) as connection:
            await connection.ask(BenchRequest(prompt, workload.max_tokens, own=own), traces[number])

    async with tasks() as group:
        for number in range(num_streams):
            group.create_task(run(number))
    return joined(trace.tokens_per_s for trace in traces)


async def copying(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Measure one stream whose answer copies the prompt."""
    async with opened(measured) as connection:
        trace = await answer(connection, _copy(measured.prompts, f"copying {round_id}"), workload.max_tokens)
    return {RATE: trace.tokens_per_s, LENGTH: length(trace)}


SCENARIOS = (
    Scenario("copying", "one stream that repeats a text", (RATE, LENGTH), copying),
    Scenario(
        "speculate",
        "drafts of fixed lengths and as the server chooses, over kinds of text",
        (*ONE.values(), *MANY.values()),
        speculate,
    ),
)
