"""The daemon with weights that were trained: SmolLM2-135M-Instruct, as its package ships it.

Random weights never end an answer, repeat a text or keep to a subject. All answers here are greedy. One file has all
tests, since they share a daemon, whose start takes long.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import numpy as np
import pytest

from edgeagent import cache_folder
from edgeagent.config import EngineConfig
from edgeagent.engine.llama.model import Model
from edgeagent.remotes.file import remove_remote
from tests.integration.conftest import Daemon, serving
from tests.patience import patient
from tests.plain_loop import NEAR_TIE, PlainLoop
from tests.smollm2 import MODEL

CONTEXT = 768
QUESTION = "Why is the sky blue? Answer in three sentences."
ANSWER_TOKENS = 60
NUM_WORDS = 5
# llama-server's own words, and how they were recorded: tests/peer/words.py.
WORDS, NUM_RECORDED = Path(__file__).parent / "llama_server_words.json", 24
MAX_JSON_TOKENS = 160
PATIENCE_S = patient(60.0)
# Every word of a copy is much more likely than any other, so no difference between kernels changes it.
SENTENCE = "The harbour master counted nineteen grey barges, four tugs and one very old paddle steamer."
COPY = f"Repeat this text exactly, twice:\n{SENTENCE} {SENTENCE}"


@dataclass(slots=True)
class Answer:
    """A streamed chat completion."""

    text: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    edgeagent: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    call_parts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def num_cached(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])


def chat(
    daemon: Daemon,
    question: str,
    *,
    earlier: Sequence[dict[str, Any]] = (),
    begun: str = "",
    kill: Callable[[Daemon], None] | None = None,
    kill_after: int = 1,
    **fields: Any,
) -> Answer:
    """Ask for a greedy answer behind the messages `earlier`, or for the rest of one that has `begun`.

    `kill` is called after `kill_after` pieces of text.
    """
    messages: list[dict[str, Any]] = [*earlier, {"role": "user", "content": question}] if question else [*earlier]
    if begun:
        messages.append({"role": "assistant", "content": begun})
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    body = {"messages": messages, "model": MODEL.stem, "stream": True, "stream_options": {"include_usage": True}}
    body |= {"temperature": 0, "max_tokens": ANSWER_TOKENS, "edgeagent": {"draft_tokens": 0}, **fields}
    answer, num_pieces = Answer(), 0
    with httpx.stream(
        "POST", f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(120), trust_env=False
    ) as reply:
        assert reply.status_code == 200, reply.read()
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            answer.usage = event.get("usage") or answer.usage
            answer.edgeagent = event.get("edgeagent") or answer.edgeagent
            answer.timings = event.get("timings") or answer.timings
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                answer.text += piece
                answer.call_parts += choice["delta"].get("tool_calls") or ()
                answer.finish_reason = choice["finish_reason"] or answer.finish_reason
                num_pieces += bool(piece)
                if kill is not None and piece and num_pieces == kill_after:
                    kill(daemon)
    return answer


def running(state_dir: Path, *flags: str) -> AbstractContextManager[Daemon]:
    """Run a daemon with the trained weights under the conditions of docs/architecture/determinism.md."""
    return serving(state_dir, str(MODEL), "--ctx", str(CONTEXT), "--flash-attention", "off", *flags)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The daemon of most tests. It drafts where a request asks for it, and prefers remotes if it has any."""
    flags = ("--draft", "ngram", "--route", "prefer_remote")
    with running(tmp_path_factory.mktemp("real") / "state", *flags) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def undisturbed(real: Daemon) -> Answer:
    answer = chat(real, QUESTION)
    assert answer.finish_reason in ("stop", "length") and answer.usage["completion_tokens"] > 30
    return answer


@pytest.fixture(scope="module")
def copied(real: Daemon) -> Answer:
    return chat(real, COPY)


def test_an_answer_keeps_to_its_subject_and_ends(real: Daemon, undisturbed: Answer) -> None:
    assert "light" in undisturbed.text.lower()
    short = chat(real, "Say hello in one word.", max_tokens=200)
    assert short.finish_reason == "stop" and short.text


@pytest.mark.parametrize(
    ("at", "length"),
    [(47, 11), *(pytest.param(*each, marks=pytest.mark.slow(seconds=2)) for each in ((20, 1), (33, 4), (60, 24)))],
)
def test_a_stop_string_ends_the_answer_before_it(real: Daemon, undisturbed: Answer, at: int, length: int) -> None:
    """The strings begin and end anywhere in tokens."""
    stop = undisturbed.text[at : at + length]
    answer = chat(real, QUESTION, stop=[stop, "never said"])
    assert answer.text == undisturbed.text[: undisturbed.text.index(stop)]
    assert answer.finish_reason == "stop"


def test_a_long_conversation_loses_its_oldest_turns_and_goes_on(real: Daemon) -> None:
    previous, sizes = None, []
    for turn in range(4):
        words = "My name is Ada. " if turn == 0 else f"{SENTENCE} " * 13
        body = {"model": MODEL.stem, "input": f"{words}Say yes.", "truncation": "auto", "temperature": 0}
        body |= {"max_output_tokens": 16, "previous_response_id": previous}
        reply = httpx.post(f"{real.url}/v1/responses", json=body, timeout=patient(120), trust_env=False)
        assert reply.status_code == 200, reply.text
        response = reply.json()
        assert response["status"] in ("completed", "incomplete") and response["output"]
        previous = response["id"]
        sizes.append(response["usage"]["input_tokens"])
    assert max(sizes) <= CONTEXT
    assert any(later < earlier for earlier, later in itertools.pairwise(sizes)), sizes
    body["truncation"] = "disabled"
    body["input"] = f"{SENTENCE} " * 45
    refused = httpx.post(f"{real.url}/v1/responses", json=body, timeout=patient(120), trust_env=False)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_a_killed_worker_changes_no_word(real: Daemon, undisturbed: Answer) -> None:
    answer = chat(real, QUESTION, kill=Daemon.kill_worker, kill_after=17)
    assert (answer.text, answer.finish_reason) == (undisturbed.text, undisturbed.finish_reason)
    assert [move["reason"] for move in answer.edgeagent["handovers"]] == ["worker_killed"]


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_a_prompt_is_cached_after_a_kill_and_a_restart(tmp_path: Path) -> None:
    prompt = f"{SENTENCE} " * 14 + "How many tugs were there?"
    with running(tmp_path / "state") as daemon:
        before = chat(daemon, prompt, max_tokens=16)
        assert before.num_cached == 0
        again = chat(daemon, prompt, max_tokens=16)
        assert again.num_cached > 128
        wait_for_disk(tmp_path / "state" / "cache")
        daemon.kill()
    with running(tmp_path / "state") as daemon:
        after = chat(daemon, prompt, max_tokens=16)
    assert after.num_cached >= 128
    assert after.text == again.text == before.text


def test_drafts_from_the_text_copy_it_without_changing_a_word(real: Daemon, copied: Answer) -> None:
    drafted = chat(real, COPY, edgeagent={"draft_tokens": 8})  # asked for, so whatever a measurement says
    assert "draft_n" not in copied.timings
    assert drafted.text == copied.text and "nineteen grey barges" in copied.text
    assert drafted.timings["draft_n_accepted"] > 5


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_an_answer_goes_on_at_the_second_daemon_and_comes_home_when_that_dies(
    real: Daemon, tmp_path: Path, copied: Answer
) -> None:
    with running(tmp_path / "away") as away:
        for num_chars in (21, 64):
            rest = chat(away, COPY, begun=copied.text[:num_chars])
            assert (copied.text[:num_chars] + rest.text).startswith(copied.text)
        names = ("--model", f"{MODEL.stem}={MODEL.stem}")
        real.run("remote", "add", "desk", away.url, *names, "--yes")
        try:
            near = {"draft_tokens": 0, "route": "prefer_local"}
            there = chat(real, COPY, kill=Daemon.kill_worker, kill_after=9, edgeagent=near)
            back = chat(real, COPY, kill=lambda _: away.kill(), kill_after=9)
        finally:
            remove_remote(real.state_dir, "desk")
    for answer in (there, back):
        assert (answer.text, answer.finish_reason) == (copied.text, copied.finish_reason)
    # It continues where that is sooner: at the second daemon, or here with a new worker.
    assert [move["from"] for move in there.edgeagent["handovers"]] == ["local"]
    assert [(move["from"], move["to"]) for move in back.edgeagent["handovers"]] == [("remote:desk", "local")]


def of_weather(city: str, weather: str, call_id: str) -> list[dict[str, Any]]:
    """Return a call of the tool `get_weather` and its result."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    call = {"id": call_id, "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": call_id, "content": json.dumps({"weather": weather})}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, result]


def test_a_tool_that_it_may_call_is_called_and_its_result_is_told(real: Daemon) -> None:
    """With `tool_choice: auto`. So small a model needs examples: after three, the last bit of a logit may decide."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": "get_weather", "description": "Get the weather of a city.", "parameters": parameters}
    earlier: list[dict[str, Any]] = []
    known = {"Paris": "sunny", "Oslo": "cold", "Berlin": "rainy", "Madrid": "hot", "Vienna": "cloudy"}
    for number, (city, weather) in enumerate(known.items()):
        earlier.append({"role": "user", "content": f"What is the weather in {city}?"})
        earlier += of_weather(city, weather, f"call_{number}")
        earlier.append({"role": "assistant", "content": f"The weather in {city} is {weather}."})
    may_call: dict[str, Any] = {"tools": [{"type": "function", "function": function}], "tool_choice": "auto"}
    asked = chat(real, "What is the weather in Rome?", earlier=earlier, **may_call)
    first, *parts = asked.call_parts
    assert (asked.finish_reason, asked.text, first["function"]["name"]) == ("tool_calls", "", "get_weather")
    assert len(parts) > 1, "its arguments come as they are generated"
    arguments = "".join(part["function"].get("arguments", "") for part in asked.call_parts)
    assert json.loads(arguments) == {"city": "Rome"}
    earlier += [{"role": "user", "content": "What is the weather in Rome?"}, *of_weather("Rome", "windy", first["id"])]
    told = chat(real, "", earlier=earlier, **may_call)
    assert (told.finish_reason, told.call_parts) == ("stop", [])
    assert "Rome" in told.text and "windy" in told.text


@pytest.mark.slow(seconds=3)
def test_ollama_shortens_a_long_conversation_unless_it_must_not(real: Daemon) -> None:
    turns = [{"role": role, "content": f"{SENTENCE} " * 7} for role in ("user", "assistant") * 4]
    messages = [*turns, {"role": "user", "content": "Is the sky blue? Say yes or no."}]
    body = {"model": MODEL.stem, "messages": messages, "stream": False}
    body |= {"options": {"temperature": 0, "num_predict": 8}}
    said, refused = (
        httpx.post(f"{real.url}/api/chat", json={**body, **fields}, timeout=patient(120), trust_env=False)
        for fields in ({}, {"truncate": False})
    )
    assert said.status_code == 200 and said.json()["message"]["content"], said.text
    assert 0 < said.json()["prompt_eval_count"] <= CONTEXT
    assert refused.status_code == 400 and "context" in refused.json()["error"], refused.text


def wait_for_disk(folder: Path) -> None:
    """Wait until blocks of a prompt are on disk."""
    deadline = time.monotonic() + PATIENCE_S
    while not sum(part.num_tokens for part in cache_folder.list_parts(folder)):
        assert time.monotonic() < deadline, "no block was written"
        time.sleep(0.05)


PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time there was a small",
    "def fibonacci(n):\n    if n",
    "The opposite of hot is",
    "import numpy as np\n\nx = np.",
    "A triangle has three",
    "The largest planet in the solar system is",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 2, 3, 4, 5,",
    "Photosynthesis is the process by which plants",
    "In 1969, the first human being",
    "SELECT name, age FROM users WHERE",
    "To make bread, you need flour,",
    "The sum of the angles of a",
    "He opened the door and saw",
    "Shakespeare wrote the play Romeo and",
    "The heart pumps blood through the",
    "# Shopping list\n- apples\n- bananas\n-",
    "Il fait beau aujourd'hui, donc je",
)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = Model(MODEL, EngineConfig())
    yield loaded
    loaded.close()


def post(daemon: Daemon, path: str, **fields: Any) -> dict[str, Any]:
    """Return the answer to a request without drafts."""
    body = {"model": MODEL.stem, "temperature": 0, "edgeagent": {"draft_tokens": 0}, **fields}
    reply = httpx.post(f"{daemon.url}{path}", json=body, timeout=patient(120), trust_env=False)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def complete(daemon: Daemon, prompt: str) -> dict[str, Any]:
    return post(daemon, "/v1/completions", prompt=prompt, max_tokens=NUM_WORDS)


def check_words(model: Model, loop: PlainLoop, prompt: str, answer: dict[str, Any]) -> None:
    """Assert that each token of an answer is the likeliest one of the plain loop, or about as likely."""
    tokens = model.tokenize(prompt, parse_special=True)
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    rest = answer["choices"][0]["text"].encode()
    logits = loop.start(tokens)
    for _ in range(NUM_WORDS):
        good = np.flatnonzero(logits >= logits.max() - NEAR_TIE)
        good = good[np.argsort(-logits[good])]
        if not rest and any(model.is_end(int(token)) for token in good):
            break
        fitting = [int(token) for token in good if model.piece(int(token)) and rest.startswith(model.piece(int(token)))]
        pieces = [model.piece(int(token)) for token in good]
        assert fitting, f"after {prompt!r}: {rest!r} begins with none of the likeliest tokens {pieces}"
        rest = rest.removeprefix(model.piece(fitting[0]))
        logits = loop.go_on(fitting[:1])
    assert not rest, f"after {prompt!r}: {rest!r} remains"


@pytest.mark.parametrize("number", [6, pytest.param(len(PROMPTS), marks=pytest.mark.slow(seconds=5))])
def test_prompts_at_once_give_the_words_of_a_plain_loop(model: Model, real: Daemon, number: int) -> None:
    loop, prompts = PlainLoop(model), PROMPTS[-number:]
    with ThreadPoolExecutor(number) as pool:
        answers = list(pool.map(lambda prompt: complete(real, prompt), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        check_words(model, loop, prompt, answer)
    # Again from the cache, one after another.
    for prompt in prompts[:2]:
        check_words(model, loop, prompt, complete(real, prompt))
    loop.close()


def other_word(recorded: dict[str, Any], end: Sequence[int], tokens: Sequence[int]) -> str:
    """Return what differs from llama-server's words; "" if nothing does, up to the first near tie that ended otherwise.

    Behind another token, llama-server's next ones are not known. Its tokens include that of the end, if it is reached.
    """
    for at, expected in enumerate(recorded["tokens"]):
        token = tokens[at] if at < len(tokens) else end[0]
        if token != expected:
            near = recorded["near"].get(str(at), {})
            return "" if str(token) in near else f"token {at} is {token}, not {expected} or one of {near}"
    return ""


def test_twenty_prompts_at_once_give_the_words_of_llama_server(real: Daemon) -> None:
    recorded = json.loads(WORDS.read_text(encoding="utf-8"))
    assert [each["prompt"] for each in recorded["answers"]] == list(PROMPTS) and recorded["model"] == MODEL.name

    def tokens_after(prompt: str) -> list[int]:
        answer = post(real, "/completion", prompt=prompt, n_predict=NUM_RECORDED, return_tokens=True)
        tokens: list[int] = answer["tokens"]
        return tokens

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        found = list(pool.map(tokens_after, PROMPTS))
    others = {
        each["prompt"]: other
        for each, tokens in zip(recorded["answers"], found, strict=True)
        if (other := other_word(each, recorded["end"], tokens))
    }
    assert others == {}
    first = recorded["answers"][0]
    assert other_word(first, recorded["end"], [first["tokens"][0], 0]), "another word is seen"


def test_another_word_is_seen(model: Model) -> None:
    loop = PlainLoop(model)
    answer = {"usage": {"prompt_tokens": 5}, "choices": [{"text": " London, which is the capital of the"}]}
    with pytest.raises(AssertionError, match="begins with none of"):
        check_words(model, loop, PROMPTS[0], answer)
    loop.close()


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
TYPES: dict[str, tuple[str, dict[str, Any]]] = {
    "integer": ("How many minutes are in an hour?", object_of(minutes=INTEGER)),
    "number": ("What is half of five?", object_of(result=NUMBER)),
    "text": ("What is the capital of France?", object_of(capital=TEXT)),
    "boolean": ("Is the sky blue?", object_of(is_blue={"type": "boolean"})),
    "choice": ("Is this friendly? I love you.", object_of(mood={"enum": ["friendly", "neutral", "hostile"]})),
    "date": ("When was the first moon landing?", object_of(day={"type": "string", "format": "date"})),
    "list": ("Name three primary colours.", object_of(colours={"type": "array", "items": TEXT, "maxItems": 3})),
    "person": ("Ada Lovelace was a mathematician, born in 1815.", object_of(name=TEXT, born=INTEGER, job=TEXT)),
    "nested": ("A red car with four wheels.", object_of(car=object_of(colour=TEXT, wheels=INTEGER))),
    "or null": ("The book has no known author.", object_of(author={"anyOf": [TEXT, {"type": "null"}]}, title=TEXT)),
}
TOOLS = {
    "set_timer": object_of(minutes=INTEGER),
    "get_weather": object_of(city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
    "send_mail": object_of(to={"type": "string", "format": "email"}, is_urgent={"type": "boolean"}),
}


def choice_of(daemon: Daemon, question: str, **fields: Any) -> dict[str, Any]:
    fields = {"messages": [{"role": "user", "content": question}], "max_tokens": MAX_JSON_TOKENS, **fields}
    choice: dict[str, Any] = post(daemon, "/v1/chat/completions", **fields)["choices"][0]
    return choice


# The others are slow ones: the bundled model answers in each form every day (test_schemas_real.py).
DAILY = ("list", "or null")


@pytest.mark.parametrize(
    "name", [name if name in DAILY else pytest.param(name, marks=pytest.mark.slow(seconds=1)) for name in TYPES]
)
def test_an_answer_of_this_type_is_whole(real: Daemon, name: str) -> None:
    question, schema = TYPES[name]
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    choice = choice_of(real, question, response_format=wanted)
    assert choice["finish_reason"] == "stop", choice
    assert jsonschema_rs.is_valid(schema, json.loads(choice["message"]["content"]), validate_formats=True), choice


@pytest.mark.parametrize(
    "name", [name if name == "send_mail" else pytest.param(name, marks=pytest.mark.slow(seconds=1)) for name in TOOLS]
)
def test_a_call_fits_its_tool(real: Daemon, name: str) -> None:
    tools = [{"type": "function", "function": {"name": each, "parameters": TOOLS[each]}} for each in TOOLS]
    named = {"type": "function", "function": {"name": name}}
    asked = "Please do this: " + name.replace("_", " ")
    choice = choice_of(real, asked, tools=tools, tool_choice=named, parallel_tool_calls=False)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == name
    arguments = json.loads(call["function"]["arguments"])
    assert jsonschema_rs.is_valid(TOOLS[name], arguments, validate_formats=True), choice


@pytest.mark.slow
def test_any_object_ends_without_a_limit(real: Daemon) -> None:
    """A small model repeats itself. What it may repeat is bounded, so that it does not fill its context."""
    choice = choice_of(real, "Describe a cat as JSON.", response_format={"type": "json_object"}, max_tokens=None)
    assert choice["finish_reason"] == "stop", choice
    assert isinstance(json.loads(choice["message"]["content"]), dict)
