"""POST /edgeagent/choose with the bundled model in its own domain: facts of the instructions, sums and small talk."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeagent.client import connect, sync
from edgeagent.config import EngineConfig
from edgeagent.engine.llama.model import Model
from edgeagent.errors import InvalidRequest
from tests.integration.conftest import Daemon, wait_until
from tests.patience import patient

BUILTIN = Path(__file__).parents[2] / "models/builtin/edgeagent-mini.gguf"
GUIDE = Path(__file__).parents[2] / "docs/guides/voice-assistant.md"
HOTEL = (
    "You are the assistant of a small hotel. The wifi code is 4471. The pool is on floor 3. A towel costs 5 euros. "
    "The shop is closed on Sunday."
)
ANSWERS = {
    "wifi": "The wifi code is 4471.",
    "other wifi": "The wifi code is 4472.",
    "pool": "The pool is on floor 3.",
    "towel": "A towel costs 5 euros.",
    "towels": "A towel costs 5 euros",
    "sum": "3 plus 4 is 7.",
    "thanks": "You are welcome!",
    "hello": "Hello! How can I help you?",
}
CHOICES = [{"id": choice_id, "text": text} for choice_id, text in ANSWERS.items()]
ASKED = {
    "What is the wifi code?": "wifi",
    "Where is the pool?": "pool",
    "What does a towel cost?": "towel",
    "What is 3 plus 4?": "sum",
    "Thanks!": "thanks",
}
# Many long choices, which take a while.
HEAVY = [f"number {number}: the pool is on floor {number}, and so on" for number in range(256)]
# What the order of cells and the size of a batch change with weights of 8 bits; a wrong token changes it by 3 and more.
TOLERANCE = 0.15


def choose(daemon: Daemon, message: str, **fields: Any) -> dict[str, Any]:
    reply = httpx.post(f"{daemon.url}/edgeagent/choose", json=asking(message, **fields), timeout=patient(60))
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def asking(message: str, **fields: Any) -> dict[str, Any]:
    return {"instructions": HOTEL, "input": message, "choices": CHOICES, **fields}


def logprobs(chosen: dict[str, Any], name: str = "logprob") -> dict[str, float]:
    return {each["id"]: each[name] for each in chosen["probabilities"]}


@pytest.mark.parametrize("calibrate", [False, True])
def test_the_right_answer_is_chosen(daemon: Daemon, calibrate: bool) -> None:
    # After an empty input, the answer without its full stop is very unlikely, so that calibration would favour it.
    choices = [each for each in CHOICES if each["id"] != "towels" or not calibrate]
    for message, right in ASKED.items():
        chosen = choose(daemon, message, calibrate=calibrate, choices=choices)
        chances = chosen["probabilities"]
        assert chosen["choice"] == chances[0]["id"] == right
        assert {each["id"]: each["text"] for each in chances} == {each["id"]: each["text"] for each in choices}
        assert math.isclose(math.fsum(each["probability"] for each in chances), 1.0, abs_tol=1e-9)
        scores = [each["logprob"] - each.get("empty_logprob", 0.0) for each in chances]
        assert scores == sorted(scores, reverse=True)
        ratio = math.log(chances[0]["probability"] / chances[1]["probability"])
        assert ratio == pytest.approx(scores[0] - scores[1], abs=1e-6)
        assert all(("empty_logprob" in each) == calibrate for each in chances)


def test_the_guide_s_example(daemon: Daemon) -> None:
    (written,) = re.findall(r"/edgeagent/choose -H .* -d '(.*?)'", GUIDE.read_text(encoding="utf-8"), re.S)
    example = json.loads(written)
    said = {
        example.pop("input"): "lights",
        "Set a timer for ten minutes": "timer",
        "What is the weather in Rome?": "forecast",
    }
    for message, right in said.items():
        chosen = choose(daemon, message, **example)
        assert chosen["choice"] == right and chosen["probabilities"][0]["probability"] > 0.8


def test_a_log_probability_is_that_of_the_separate_completion(daemon: Daemon) -> None:
    """The sum over the tokens of the choice, and over an end of the answer behind it."""
    ends = Model(BUILTIN, EngineConfig()).end_tokens

    def ask(path: str, **body: Any) -> Any:
        return httpx.post(f"{daemon.url}{path}", json=body, timeout=patient(60)).raise_for_status().json()

    def scored(tokens: Sequence[int], num: int) -> float:
        answer = ask("/v1/completions", prompt=list(tokens), max_tokens=0, echo=True, logprobs=0)
        return math.fsum(answer["choices"][0]["logprobs"]["token_logprobs"][-num:])

    chosen = logprobs(choose(daemon, "Where is the pool?", calibrate=True))
    empty = logprobs(choose(daemon, "Where is the pool?", calibrate=True), "empty_logprob")
    for message, found in (("Where is the pool?", chosen), ("", empty)):
        messages = [{"role": "system", "content": HOTEL}, {"role": "user", "content": message}]
        prompt = ask("/tokenize", content=ask("/apply-template", messages=messages)["prompt"], parse_special=True)
        for choice_id, text in ANSWERS.items():
            tokens = ask("/tokenize", content=text, parse_special=False)["tokens"]
            each = [scored([*prompt["tokens"], *tokens, end], len(tokens) + 1) for end in ends]
            expected = max(each) + math.log(math.fsum(math.exp(one - max(each)) for one in each))
            assert found[choice_id] == pytest.approx(expected, abs=TOLERANCE), (message, text)


def test_the_cached_prefix_is_used_and_tiers_and_targets_count(daemon: Daemon) -> None:
    for message in ("Is the pool cold?", "Is the pool open?"):
        chosen = choose(daemon, message, edgeagent={"tier": "realtime"})
    usage = chosen["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] > 0.7 * usage["input_tokens"]
    assert usage["output_tokens"] == 0
    assert usage["choice_tokens"] > 4 * len(CHOICES)
    assert chosen["edgeagent"]["route"] == "local"
    assert chosen["edgeagent"]["slo"]["tier"] == "realtime"
    assert chosen["edgeagent"]["stages_ms"]["first_token"] > 0
    metrics = httpx.get(f"{daemon.url}/metrics").text
    (count,) = re.findall(r'^edgeagent_first_token_seconds_count\{.*tier="realtime".*\} (\d+)', metrics, re.MULTILINE)
    assert int(count) >= 2


def test_a_later_turn_of_a_stored_conversation(daemon: Daemon) -> None:
    body = {"instructions": HOTEL, "input": "What is the wifi code?", "temperature": 0}
    first = httpx.post(f"{daemon.url}/v1/responses", json=body, timeout=patient(60)).json()
    chosen = choose(daemon, "Thanks!", previous_response_id=first["id"])
    assert chosen["choice"] == "thanks"
    assert chosen["usage"]["input_tokens"] > choose(daemon, "Thanks!")["usage"]["input_tokens"] + 8


def test_plain_texts_are_their_own_ids_and_spell_no_control_tokens(daemon: Daemon) -> None:
    texts = ["You are welcome!", "<|im_end|>", "é 👋"]
    chosen = choose(daemon, "Thanks!", choices=texts)
    assert {each["id"] for each in chosen["probabilities"]} == set(texts)
    assert chosen["choice"] == texts[0]
    assert logprobs(chosen)["<|im_end|>"] < -10


async def test_the_python_client_classifies(daemon: Daemon) -> None:
    async with connect(daemon.url) as client:
        found = await client.classify("Where is the pool?", CHOICES, instructions=HOTEL, calibrate=True)
        assert (found.id, found.chances[0].text) == ("pool", ANSWERS["pool"])
        assert found.chances[0].empty_logprob is not None
        assert math.fsum(chance.probability for chance in found.chances) == pytest.approx(1.0)
        assert found.body["usage"]["choice_tokens"] > 0
        with pytest.raises(InvalidRequest, match="the same id") as refused:
            await client.classify("Thanks!", ["a", "a"])
        assert refused.value.param == "choices[1]"


def test_it_does_without_an_event_loop(daemon: Daemon) -> None:
    with sync.connect(daemon.url) as client:
        assert client.classify("Thanks!", list(ANSWERS.values()), instructions=HOTEL).id == ANSWERS["thanks"]


def refusals() -> list[tuple[dict[str, Any], str, str]]:
    return [
        ({"choices": ["one"]}, "choices", "at least 2"),
        ({"choices": [str(number) for number in range(257)]}, "choices", "at most 256"),
        ({"choices": ["a", "b", "a"]}, r"choices\[2\]", r"the same id as choices\[0\]"),
        ({"choices": ["a", {"id": "b", "text": "a"}]}, r"choices\[1\]", r"the same text as choices\[0\]"),
        ({"choices": ["a", {"id": "b"}]}, r"choices\[1\].text", "is required"),
        ({"choices": ["a", 3]}, r"choices\[1\]", "a string or an object with id and text"),
        ({"choices": ["a", ""]}, r"choices\[1\]", "at least 1 character"),
        ({"choices": ["a", "x" * 301]}, r"choices\[1\]", "at most 300"),
        ({"choices": ["a", "word " * 40]}, r"choices\[1\]", "of this model; it must have 1 to 30"),
        ({"model": "nothing"}, "model", "not found"),
        ({"temperature": 1}, "temperature", "is unknown"),
        ({"input": [{"role": "assistant", "content": "x"}], "calibrate": True}, "calibrate", "a message of the user"),
        ({"input": "pool " * 3000}, "input", "the context holds"),
        ({"edgeagent": {"max_prompt_tokens": 100}}, "input", "max_prompt_tokens"),
    ]


@pytest.mark.parametrize(
    ("fields", "param", "text"), refusals(), ids=lambda each: None if isinstance(each, str) else ""
)
def test_what_is_wrong_is_named(daemon: Daemon, fields: dict[str, Any], param: str, text: str) -> None:
    reply = httpx.post(f"{daemon.url}/edgeagent/choose", json=asking("hi", **fields), timeout=patient(60))
    assert reply.status_code in (400, 404), reply.text
    error = reply.json()["error"]
    assert re.fullmatch(param, error["param"])
    assert re.search(text, error["message"])


async def test_several_at_once_beside_a_stream_change_nothing(daemon: Daemon) -> None:
    story = {"model": "builtin", "messages": [{"role": "user", "content": "What can you do?"}], "temperature": 0}
    async with httpx.AsyncClient(base_url=daemon.url, timeout=patient(60)) as http:

        async def ask(message: str) -> dict[str, float]:
            reply = await http.post("/edgeagent/choose", json=asking(message))
            return logprobs(reply.raise_for_status().json())

        async def tell() -> str:
            reply = await http.post("/v1/chat/completions", json=story)
            return str(reply.raise_for_status().json()["choices"][0]["message"]["content"])

        alone = [await ask(message) for message in ASKED]
        told = await tell()
        *beside, first, second = await asyncio.gather(*(ask(message) for message in ASKED), tell(), tell())
    assert first == second == told
    for before, after in zip(alone, beside, strict=True):
        assert isinstance(after, dict)
        assert after == pytest.approx(before, abs=TOLERANCE)


def num_live(daemon: Daemon) -> int:
    return int(httpx.get(f"{daemon.url}/edgeagent/status").json()["num_live_requests"])


def num_abandoned(daemon: Daemon) -> int:
    metrics = httpx.get(f"{daemon.url}/metrics").text
    counts = re.findall(r'^edgeagent_generations_total\{.*="abandoned".*\} (\d+)', metrics, re.MULTILINE)
    return sum(map(int, counts))


async def test_a_client_that_leaves_cancels_its_choice(daemon: Daemon) -> None:
    daemon.wait_until_idle()
    before = await asyncio.to_thread(num_abandoned, daemon)
    async with httpx.AsyncClient(base_url=daemon.url, timeout=patient(60)) as http:
        task = asyncio.create_task(http.post("/edgeagent/choose", json=asking("Where is the pool?", choices=HEAVY)))
        while await asyncio.to_thread(num_live, daemon) == 0:
            assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    wait_until(lambda: num_live(daemon) == 0)
    wait_until(lambda: num_abandoned(daemon) == before + 1)
    assert choose(daemon, "Where is the pool?")["choice"] == "pool"


@pytest.mark.slow(seconds=5)
async def test_a_worker_that_is_killed_costs_time_only(own_daemon: Daemon) -> None:
    choices = [*HEAVY, ANSWERS["pool"]][1:]
    async with httpx.AsyncClient(base_url=own_daemon.url, timeout=patient(60)) as http:
        asked = http.post("/edgeagent/choose", json=asking("Where is the pool?", choices=choices))
        task = asyncio.create_task(asked)
        while await asyncio.to_thread(num_live, own_daemon) == 0:
            assert not task.done()
        await asyncio.to_thread(own_daemon.kill_worker)
        answer = (await task).raise_for_status().json()
    assert answer["choice"] == ANSWERS["pool"]
    assert [move["from"] for move in answer["edgeagent"]["handovers"]] == ["local"]
    again = choose(own_daemon, "Where is the pool?", choices=choices)
    assert logprobs(again) == pytest.approx(logprobs(answer), abs=TOLERANCE)
    assert len(again["probabilities"]) == 256
