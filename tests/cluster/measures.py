"""The measurements behind docs/cluster.md: each breaks or overloads a real daemon and its real remotes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
from msgspec import Struct

from edgeagent.router.policy import TARGETS
from edgeagent.types import Tier
from tests.cluster.client import Answer, Client
from tests.cluster.findings import difference, moves, percentile, places, silence
from tests.cluster.llama_server import LlamaServer
from tests.cluster.prompts import CERTAIN, NAMES
from tests.cluster.stage import Engine, Stage
from tests.cluster.story import LOCAL_FIRST, LOCAL_ONLY, NOTICE_LIMIT_S

# The daemon runs at most 64 streams at a time, so a hundred are broken in two rounds.
NUM_STREAMS, NUM_ROUNDS = 50, 2
# Long enough to break all streams midway, short enough that two cores compute them in seconds.
BROKEN_TOKENS = 96
NUM_UNDISTURBED = 2
GREETINGS = (
    "Hello",
    "Hi",
    "Good morning",
    "Good evening",
    "Hey",
    "Hello there",
    "Greetings",
    "Good day",
    "Good afternoon",
    "Hi there",
)
WARM_TOKENS = 8
MAX_GAP_S = 1.5
# When to break the streams: this share of them has this many pieces, and none is near its end.
LEAST_BEGUN, BEGUN = 3, 0.8

# Long prompts and short answers: reading a prompt costs this machine a core, and clients and pipes almost nothing.
PARALLEL = 2
ARRIVAL_WORDS, ARRIVAL_TOKENS = 400, 16
FLOOD = 3.0
FLOOD_S = 60.0
CAPACITY_S = 8.0
MIN_ON_TIME = 0.95

NUM_DECISIONS = 1000
MAX_DECISION_S = 0.001

HANG_LIMIT_S = 2.0
HANG_S = 80.0


class Figure(Struct):
    """One line: a measurement in words and numbers, and whether it meets its bar, if it has one."""

    title: str
    measured: str
    values: dict[str, float]
    bar: str = ""
    is_met: bool | None = None


Kill = Callable[[Sequence[Answer]], None]


async def killed_worker(stage: Stage, engine: Engine, prompts: Sequence[str], *, has_bar: bool) -> list[Figure]:
    """Kill the model's process while all streams run, then its successor in the same way."""

    def kill(_: Sequence[Answer]) -> None:
        os.kill(stage.daemon.worker_pid(), signal.SIGKILL)

    title = f"kill -9 of the worker, with a warm {engine.name}"
    return await _rounds(stage, title, prompts, [kill] * NUM_ROUNDS, has_bar=has_bar, edgeagent=LOCAL_FIRST)


async def killed_remotes(
    stage: Stage, engine: Engine, prompts: Sequence[str], kills: Sequence[Kill], *, has_bar: bool
) -> list[Figure]:
    """Kill one remote after another, each while all streams run."""
    return await _rounds(stage, f"kill -9 of {engine.name}", prompts, kills, has_bar=has_bar)


async def steady_prompts(stage: Stage) -> list[str]:
    """Return prompts whose greedy answers can be compared.

    - The answer's text tokenizes to the answer's own tokens. Another place continues from the text; if the model wrote
      two tokens where the text has one, the prefix differs. After its natural end the bundled model often does this.
    - The answer is the same each time, here and at the remote. Results depend on the rest of the batch, so an answer
      with two almost equally likely tokens may change.
    """
    candidates = [*CERTAIN, *(f"{greeting}, my name is {name}." for greeting in GREETINGS for name in NAMES)]
    steady: list[str] = []
    async with stage.client() as client:
        for start in range(0, len(candidates), NUM_STREAMS):
            prompts = candidates[start : start + NUM_STREAMS]
            first = await _all(client, prompts, edgeagent=LOCAL_ONLY)
            texts = {prompt: answer.text for prompt, answer in zip(prompts, first, strict=True)}
            prompts = [prompt for prompt in prompts if await _num_tokens(stage, texts[prompt]) == BROKEN_TOKENS]
            ways: list[dict[str, Any]] = [{"edgeagent": LOCAL_ONLY}, {}]
            for fields in (way for way in ways for _ in range(NUM_UNDISTURBED)):
                again = await _all(client, prompts, **fields)
                prompts = [p for p, answer in zip(prompts, again, strict=True) if answer.text == texts[p]]
            steady += prompts
            print(f"   {len(steady)} of {start + len(texts)} answers can be compared", flush=True)
            if len(steady) >= NUM_STREAMS:
                break
    return steady[:NUM_STREAMS]


async def _rounds(
    stage: Stage, title: str, prompts: Sequence[str], kills: Sequence[Kill], *, has_bar: bool, **fields: object
) -> list[Figure]:
    """Break the answers to the same prompts in several ways, one after another."""
    found: list[Answer] = []
    gaps: list[float] = []
    async with stage.client() as client:
        undisturbed = await _all(client, prompts, edgeagent=LOCAL_ONLY)
        again = await _all(client, prompts, edgeagent=LOCAL_ONLY)
        num_again = sum(one.text == other.text for one, other in zip(undisturbed, again, strict=True))
        for index, kill in enumerate(kills):
            await _until_away(client, f"Warm {index}")
            answers, done_s = await _broken(client, prompts, kill, **fields)
            gaps += [silence(answer, done_s) for answer in answers if answer.handovers]
            found += answers
    title = f"{title}, under {len(kills)} x {len(prompts)} streams"
    return judged(title, found, gaps, list(undisturbed) * len(kills), num_again, has_bar=has_bar)


def judged(
    title: str,
    found: Sequence[Answer],
    gaps: Sequence[float],
    undisturbed: Sequence[Answer],
    num_again: int,
    *,
    has_bar: bool,
) -> list[Figure]:
    """Return the figures of broken answers: their ends, the silences of those that moved, and their texts."""
    num_right = sum(map(_is_whole, found))
    middle, most = percentile(gaps, 0.5), percentile(gaps, 0.95)
    for answer in found:
        if not _is_whole(answer):
            print(f"   {answer.error or answer.finish_reason}, {answer.num_tokens} tokens", flush=True)
    same = 0
    for answer, other in zip(found, undisturbed, strict=True):
        same += answer.text == other.text
        if answer.text != other.text:
            print(f"   {difference(answer, other.text)}", flush=True)
    return [
        Figure(
            f"{title}: streams that end right",
            f"{num_right} of {len(found)} ({moves(found)})",
            {"num_right": num_right, "num": len(found), "num_moved": len(gaps)},
            "all",
            num_right == len(found),
        ),
        Figure(
            f"{title}: gap between two tokens",
            f"p50 {middle:.2f} s, p95 {most:.2f} s, longest {max(gaps):.2f} s",
            {"p50_s": middle, "p95_s": most, "max_s": max(gaps)},
            f"p95 ≤ {MAX_GAP_S:g} s",
            most <= MAX_GAP_S,
        ),
        Figure(
            f"{title}: greedy text as undisturbed",
            f"{same} of {len(found)} (undisturbed a second time: {num_again} of {len(set(map(id, undisturbed)))})",
            {"num_same": same, "num": len(found), "num_again": num_again},
            "all" if has_bar else "",
            same == len(found) if has_bar else None,
        ),
    ]


async def arrivals(stage: Stage, engine: Engine) -> list[Figure]:
    """Send requests at three times this machine's rate, without and with the remote."""
    target_s = TARGETS[Tier.INTERACTIVE].first_token_s
    async with stage.client() as client:
        await client.ask_all(_long_prompts(4, "Warm"), WARM_TOKENS)
        await _all(client, _long_prompts(PARALLEL, "Begin"), ARRIVAL_TOKENS, edgeagent=LOCAL_ONLY)
        rate = await _capacity(client)
        alone = await _flood(client, FLOOD * rate, "Alone", edgeagent=LOCAL_ONLY)
        helped = await _flood(client, FLOOD * rate, "Helped", edgeagent=LOCAL_FIRST)
    figures = []
    for name, answers in (("alone", alone), (f"with {engine.name}", helped)):
        errors = sum(not _is_whole(answer, ARRIVAL_TOKENS) for answer in answers)
        good = sum(not answer.error and answer.first_token_s <= target_s for answer in answers) / len(answers)
        waits = [answer.first_token_s for answer in answers if not answer.error]
        middle, most = percentile(waits, 0.5), percentile(waits, 0.95)
        away = sum(answer.is_remote for answer in answers)
        print(f"   {name}: {places(answers)}", flush=True)
        has_bar = answers is helped
        title = f"arrivals at {FLOOD:g} x this machine's {rate:.1f} a second for {FLOOD_S:.0f} s, {name}"
        values = {"rate": rate, "num": len(answers), "num_errors": errors, "on_time": good, "num_away": away}
        figures += [
            Figure(
                f"{title}: first token within {target_s:g} s",
                f"{good:.1%} of {len(answers)} (p50 {middle:.2f} s, p95 {most:.2f} s; {away} went over)",
                values | {"p50_s": middle, "p95_s": most},
                f"≥ {MIN_ON_TIME:.0%}" if has_bar else "",
                good >= MIN_ON_TIME if has_bar else None,
            ),
            Figure(f"{title}: errors", str(errors), values, "0" if has_bar else "", not errors if has_bar else None),
        ]
    return figures


async def deciding(stage: Stage) -> list[Figure]:
    """Request many short answers, some here and some remotely, and read how long the daemon took to decide."""
    async with stage.client() as client:
        await client.ask_all(_prompts(4, "Warm"), WARM_TOKENS)
        before = await _buckets(stage)
        for start in range(0, NUM_DECISIONS, 8):
            prompts = _prompts(8, f"Number {start},")
            fields = {"edgeagent": LOCAL_FIRST} if start % 16 else {}
            await client.ask_all(prompts, 1, **fields)
        after = await _buckets(stage)
    counts = {bound: after[bound] - before[bound] for bound in after}
    middle, most = (quantile(counts, share) for share in (0.5, 0.99))
    measured = f"p50 {middle * 1000:.2f} ms, p99 {most * 1000:.2f} ms, of {max(counts.values()):.0f}"
    bar = f"p50 ≤ {MAX_DECISION_S * 1000:g} ms"
    values = {"p50_s": middle, "p99_s": most}
    return [Figure("deciding where a request runs", measured, values, bar, middle <= MAX_DECISION_S)]


async def hang(stage: Stage, engine: LlamaServer) -> list[Figure]:
    """Suspend the remote and send requests one after another, for longer than the breaker's pause."""
    async with stage.client() as client:
        await client.ask_all(_prompts(4, "Warm"), WARM_TOKENS)
        engine.pause()
        try:
            answers = []
            began_s = time.monotonic()
            for prompt in _prompts(10_000, "Hang"):
                answers.append(await client.ask(prompt, WARM_TOKENS))
                if time.monotonic() - began_s > HANG_S:
                    break
                await asyncio.sleep(0.25)
        finally:
            engine.resume()
        resumed_s = time.monotonic()
        back_s = None
        for prompt in _prompts(10_000, "Back"):
            if (await client.ask(prompt, WARM_TOKENS)).is_remote:
                back_s = time.monotonic() - resumed_s
                break
            await asyncio.sleep(0.25)
    waits = [answer.first_token_s for answer in answers]
    paid = [wait for wait in waits if wait >= HANG_LIMIT_S / 2]
    rest = [wait for wait in waits if wait < HANG_LIMIT_S / 2]
    errors = sum(not _is_whole(answer, WARM_TOKENS) for answer in answers)
    assert back_s is not None
    print(f"   paid: {[(index, round(wait, 2)) for index, wait in enumerate(waits) if wait in paid]}", flush=True)
    values = {"num": len(waits), "num_paid": len(paid), "max_rest_s": max(rest), "errors": errors, "back_s": back_s}
    measured = f"{len(paid)} of {len(waits)} in {HANG_S:.0f} s waited {percentile(paid, 0.5):.2f} s, the others at most"
    measured += f" {max(rest):.2f} s; {errors} errors; requests went over {back_s:.0f} s after it went on"
    title = f"{engine.name} hangs, with a limit of {HANG_LIMIT_S:g} s for the first byte: requests that pay it"
    return [Figure(title, measured, values, "1", len(paid) == 1 and not errors)]


def _prompts(number: int, greeting: str = "Hello") -> list[str]:
    """Return different prompts."""
    numbered = ((index, NAMES[index % len(NAMES)]) for index in range(number))
    return [f"{greeting} {index}, my name is {name} and I am {index}." for index, name in numbered]


def _long_prompts(number: int, greeting: str) -> list[str]:
    """Return different prompts; no two share a prefix."""
    return [f"{prompt} {'word ' * ARRIVAL_WORDS}" for prompt in _prompts(number, greeting)]


def _is_whole(answer: Answer, num_tokens: int = BROKEN_TOKENS) -> bool:
    return not answer.error and answer.finish_reason == "length" and answer.num_tokens == num_tokens


async def _all(
    client: Client, prompts: Sequence[str], num_tokens: int = BROKEN_TOKENS, **fields: object
) -> list[Answer]:
    """Return the answers to all prompts, requested at the same time."""
    answers = await client.ask_all(prompts, num_tokens, **fields)
    for answer in answers:
        if not _is_whole(answer, num_tokens):
            raise SystemExit(f"an undisturbed answer failed: {answer.error or answer.finish_reason}")
    return answers


async def _broken(
    client: Client, prompts: Sequence[str], destroy: Kill, **fields: object
) -> tuple[list[Answer], float]:
    """Break something once most answers have begun; return the answers and the time of the break."""
    answers = [Answer() for _ in prompts]
    asking = [
        asyncio.create_task(client.ask(prompt, BROKEN_TOKENS, into=answer, **fields))
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    while True:
        await asyncio.sleep(0.005)
        if sum(len(answer.came_s) >= LEAST_BEGUN or bool(answer.error) for answer in answers) >= BEGUN * len(answers):
            break
    num_over = sum(bool(answer.finish_reason) for answer in answers)
    done_s = time.monotonic()
    destroy(answers)
    print(f"   {num_over} had ended; after {[len(answer.came_s) for answer in answers[::10]]} pieces", flush=True)
    await asyncio.gather(*asking)
    return answers, done_s


async def _num_tokens(stage: Stage, text: str) -> int:
    """Return the number of tokens of a text."""
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(f"{stage.daemon.url}/tokenize", json={"content": text})
    return len(answer.json()["tokens"])


async def _until_away(client: Client, greeting: str) -> None:
    """Wait until requests that prefer a remote are sent there; give up after a while, since no remote may be left."""
    began_s = time.monotonic()
    for prompt in _prompts(10_000, greeting):
        answer = await client.ask(prompt, WARM_TOKENS)
        if answer.is_remote or time.monotonic() - began_s > NOTICE_LIMIT_S:
            return
        await asyncio.sleep(0.1)


async def _capacity(client: Client) -> float:
    """Return how many requests per second this machine answers alone, with every slot always in use."""
    began_s = time.monotonic()
    prompts = iter(_long_prompts(10_000, "Capacity"))

    async def ask_on() -> int:
        num = 0
        while time.monotonic() - began_s < CAPACITY_S:
            await _all(client, [next(prompts)], ARRIVAL_TOKENS, edgeagent=LOCAL_ONLY)
            num += 1
        return num

    done = await asyncio.gather(*(ask_on() for _ in range(PARALLEL)))
    return sum(done) / (time.monotonic() - began_s)


async def _flood(client: Client, rate: float, greeting: str, **fields: Any) -> list[Answer]:
    """Send requests at random times, `rate` per second on average; return the answers."""
    chance = random.Random(1)
    asking = []
    began_s = due_s = time.monotonic()
    for prompt in _long_prompts(10_000, greeting):
        due_s += chance.expovariate(rate)
        if due_s - began_s > FLOOD_S:
            break
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        asking.append(asyncio.create_task(client.ask(prompt, ARRIVAL_TOKENS, **fields)))
    return list(await asyncio.gather(*asking))


async def _buckets(stage: Stage) -> dict[float, float]:
    """Return how many decisions took at most each bucket's bound, in seconds."""
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"{stage.daemon.url}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("edgeagent_placement_seconds_bucket")]
    return {float(line.partition('le="')[2].partition('"')[0]): float(line.rpartition(" ")[2]) for line in lines}


def quantile(counts: dict[float, float], share: float) -> float:
    """Return a quantile of a histogram with cumulative counts, interpolated within its bucket."""
    wanted = share * max(counts.values())
    below, num_below = 0.0, 0.0
    for bound, num in counts.items():
        if num >= wanted:
            return (
                below if bound == float("inf") else below + (bound - below) * (wanted - num_below) / (num - num_below)
            )
        below, num_below = bound, num
    raise AssertionError("the last bucket has all")
