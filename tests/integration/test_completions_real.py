"""Completions and text tools on a real daemon with a tiny model, compared with direct calls of llama.cpp."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from openai import AsyncOpenAI, BadRequestError
from openai.types import CompletionChoice
from pydantic import SecretStr

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.types import MemoryKind
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.models import INFILL_TOKENS, make_tiny_model
from tests.patience import patient

CONTEXT = 1024
PROMPT = "the boy and the other one in here wandered on over the hill to the town; "
# Logits still move by some thousandths with the order of the cells, and so with concurrent requests. Where answers are
# compared, each token leads by a tenth, so this does not matter.
EXACT: dict[str, Any] = {"threads": 1, "ctx": CONTEXT, "flash_attention": "on", "kv_type_k": "f32", "kv_type_v": "f32"}
TOLERANCE = 0.02
LEAD = 0.1


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return make_tiny_model(
        path, MemoryKind.FULL_ATTENTION, controls=INFILL_TOKENS, matrix_type=GGMLQuantizationType.F32
    )


@pytest.fixture(scope="module")
def tiny_daemon(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    flags = (text for name, value in EXACT.items() for text in (f"--{name.replace('_', '-')}", str(value)))
    running = start_daemon(tmp_path_factory.mktemp("completions") / "state", str(model_path), *flags)
    yield running
    stop_daemon(running)


@pytest.fixture
async def client(tiny_daemon: Daemon) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{tiny_daemon.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
async def http(tiny_daemon: Daemon) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=tiny_daemon.url, timeout=patient(60)) as made:
        yield made


class Direct:
    """llama.cpp itself, with one sequence at a time."""

    def __init__(self, path: Path) -> None:
        config = EngineConfig(**EXACT, parallel=1, batch=32)
        self.model = Model(path, config)
        self._runner = LlamaRunner(self.model, config)

    def logprobs(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the log probabilities of the next token after each token."""
        self._runner.clear(0)
        rows = []
        for start in range(0, len(tokens), 32):
            part = list(tokens[start : start + 32])
            self._runner.decode([Slice(0, start, part, len(part))])
            rows += [self._runner.logits(index).astype(np.float64) for index in range(len(part))]
        logits = np.array(rows)
        peak = logits.max(axis=1, keepdims=True)
        result: np.ndarray = logits - peak - np.log(np.exp(logits - peak).sum(axis=1, keepdims=True))
        return result

    def greedy(self, tokens: Sequence[int], num: int) -> list[int]:
        """Return the likeliest continuation."""
        tokens = list(tokens)
        for _ in range(num):
            tokens.append(int(self.logprobs(tokens)[-1].argmax()))
        return tokens[-num:]

    def name(self, token: int) -> str:
        try:
            return self.model.piece(token).decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.model.piece(token))


@pytest.fixture(scope="module")
def direct(model_path: Path) -> Direct:
    return Direct(model_path)


def check_scores(
    choice: CompletionChoice, direct: Direct, tokens: Sequence[int], first: int, num_alternatives: int
) -> None:
    """Compare a choice's scores of tokens[first:] with llama.cpp's own."""
    scores = choice.logprobs
    assert scores is not None and scores.tokens is not None and scores.token_logprobs is not None
    assert scores.top_logprobs is not None and scores.text_offset is not None
    assert scores.tokens == [direct.name(token) for token in tokens[first:]]
    expected = direct.logprobs(tokens)
    for index, position in enumerate(range(first, len(tokens))):
        if position == 0:
            assert scores.token_logprobs[0] is None
            continue
        row = expected[position - 1]
        assert scores.token_logprobs[index] == pytest.approx(row[tokens[position]], abs=TOLERANCE)
        rivals = scores.top_logprobs[index]
        assert num_alternatives <= len(rivals) <= num_alternatives + 1
        assert sorted(rivals.values(), reverse=True)[0] == pytest.approx(row.max(), abs=TOLERANCE)
    assert scores.text_offset == sorted(scores.text_offset)
    for name, start in zip(scores.tokens, scores.text_offset, strict=True):
        if not name.startswith("bytes:"):
            assert choice.text[start:].startswith(name)


def lead(rivals: dict[str, float]) -> float:
    """Return how far the likeliest of some tokens leads the second."""
    first, second, *_ = sorted(rivals.values(), reverse=True)
    return first - second


async def tokens_of(http: httpx.AsyncClient, text: str, **fields: Any) -> list[int]:
    reply = await http.post("/tokenize", json={"content": text, **fields})
    tokens: list[int] = reply.raise_for_status().json()["tokens"]
    return tokens


class TestCompletions:
    async def test_the_likeliest_text_is_what_llama_cpp_says(
        self, client: AsyncOpenAI, http: httpx.AsyncClient, direct: Direct
    ) -> None:
        tokens = await tokens_of(http, PROMPT)
        expected = direct.greedy(tokens, 10)
        answers = []
        for prompt in (PROMPT, tokens):
            completion = await client.completions.create(
                model="tiny", prompt=prompt, max_tokens=10, temperature=0, extra_body={"return_tokens": True}
            )
            extra = completion.choices[0].model_extra
            assert extra is not None
            answers.append(extra["tokens"])
            assert completion.choices[0].finish_reason == "length"
            assert completion.usage is not None
            assert completion.usage.prompt_tokens == len(tokens)
        assert answers == [expected, expected]

    async def test_scores_of_an_answer(self, client: AsyncOpenAI, http: httpx.AsyncClient, direct: Direct) -> None:
        tokens = await tokens_of(http, PROMPT)
        completion = await client.completions.create(
            model="tiny",
            prompt=PROMPT,
            max_tokens=10,
            temperature=1,
            seed=3,
            logprobs=4,
            extra_body={"return_tokens": True, "samplers": []},
        )
        (choice,) = completion.choices
        assert choice.model_extra is not None
        check_scores(choice, direct, [*tokens, *choice.model_extra["tokens"]], len(tokens), 4)

    @pytest.mark.parametrize("max_tokens", [0, 3])
    async def test_scores_of_a_prompt(
        self, client: AsyncOpenAI, http: httpx.AsyncClient, direct: Direct, max_tokens: int
    ) -> None:
        prompt = f"<|im_start|>é {PROMPT * 4}"
        tokens = await tokens_of(http, prompt)
        assert len(tokens) > 100
        completion = await client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=0,
            logprobs=2,
            echo=True,
            extra_body={"return_tokens": True},
        )
        (choice,) = completion.choices
        assert choice.text.startswith(prompt)
        assert choice.finish_reason == "length"
        assert choice.model_extra is not None
        assert len(choice.model_extra["tokens"]) == max_tokens
        check_scores(choice, direct, [*tokens, *choice.model_extra["tokens"]], 0, 2)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == max_tokens
        # With token ids and streaming, the result is the same.
        stream = await client.completions.create(
            model="tiny", prompt=tokens, max_tokens=max_tokens, temperature=0, logprobs=2, echo=True, stream=True
        )
        parts = [chunk.choices[0] async for chunk in stream]
        assert "".join(part.text for part in parts) == choice.text
        scored = [part.logprobs for part in parts if part.logprobs is not None]
        assert choice.logprobs is not None
        assert [offset for part in scored for offset in part.text_offset or []] == choice.logprobs.text_offset
        streamed = [value for part in scored for value in (part.token_logprobs or [])]
        assert streamed[1:] == pytest.approx((choice.logprobs.token_logprobs or [])[1:], abs=TOLERANCE)

    @pytest.mark.parametrize("max_tokens", [1, 5])
    async def test_an_echo_has_an_entry_for_the_token_that_ends_the_text(
        self, client: AsyncOpenAI, http: httpx.AsyncClient, max_tokens: int
    ) -> None:
        [end], tokens = await tokens_of(http, "<|im_end|>"), await tokens_of(http, PROMPT)
        completion = await client.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=max_tokens, logprobs=1, echo=True, logit_bias={str(end): 100}
        )
        (choice,) = completion.choices
        assert (choice.finish_reason, choice.text) == ("stop", PROMPT)
        assert choice.logprobs is not None and choice.logprobs.tokens is not None
        assert len(choice.logprobs.tokens) == len(tokens) + 1
        assert choice.logprobs.tokens[-1] == "<|im_end|>"
        assert choice.logprobs.text_offset is not None and choice.logprobs.text_offset[-1] == len(PROMPT)

    async def test_choices_of_several_prompts(self, client: AsyncOpenAI) -> None:
        alone = await client.completions.create(model="tiny", prompt="the town", max_tokens=3, temperature=0)
        several = await client.completions.create(
            model="tiny", prompt=["the town", "on the hill"], n=3, max_tokens=3, temperature=0
        )
        assert [choice.index for choice in several.choices] == list(range(6))
        assert {choice.text for choice in several.choices[:3]} == {alone.choices[0].text}
        assert len({choice.text for choice in several.choices[3:]}) == 1
        assert several.usage is not None
        assert several.usage.completion_tokens == 18

    async def test_choices_of_a_sampled_prompt_differ_and_the_best_are_shown(self, client: AsyncOpenAI) -> None:
        completion = await client.completions.create(model="tiny", prompt=PROMPT, n=4, max_tokens=12, seed=1)
        assert len({choice.text for choice in completion.choices}) > 1
        best = await client.completions.create(
            model="tiny", prompt=PROMPT, n=2, best_of=4, max_tokens=12, seed=1, logprobs=0
        )
        likelihoods = [fmean(choice.logprobs.token_logprobs) for choice in best.choices]
        assert len(likelihoods) == 2
        assert likelihoods == sorted(likelihoods, reverse=True)
        assert best.usage is not None
        assert best.usage.completion_tokens == 48

    async def test_a_stop_string_ends_the_text_before_it(self, client: AsyncOpenAI) -> None:
        whole = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=10, temperature=0)
        text = whole.choices[0].text
        stop = text[5:7]
        cut = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=10, temperature=0, stop=stop)
        assert cut.choices[0].text == text[: text.index(stop)]
        assert cut.choices[0].finish_reason == "stop"

    async def test_a_gap_is_what_its_tokens_say(self, client: AsyncOpenAI, direct: Direct) -> None:
        """The result equals that of the model's own infill tokens, placed around the two parts by hand."""
        marks = direct.model.infill_tokens
        assert marks is not None
        head, tail = (direct.model.tokenize(text, parse_special=False) for text in ("the boy ", " the town"))
        by_hand = [marks.prefix, *head, marks.suffix, *tail, marks.middle]
        filled = await client.completions.create(
            model="tiny", prompt="the boy ", suffix=" the town", max_tokens=8, temperature=0
        )
        expected = await client.completions.create(model="tiny", prompt=by_hand, max_tokens=8, temperature=0)
        assert filled.choices[0].text == expected.choices[0].text
        assert filled.usage is not None
        assert filled.usage.prompt_tokens == len(by_hand)

    async def test_llama_servers_own_routes(self, client: AsyncOpenAI, http: httpx.AsyncClient) -> None:
        fields = {"prompt": PROMPT, "n_predict": 10, "temperature": 0}
        whole = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=10, temperature=0)
        text = whole.choices[0].text
        body = (await http.post("/completion", json=fields)).json()
        assert (body["content"], body["stop_type"], body["tokens_predicted"]) == (text, "limit", 10)
        stop = text[5:7]
        body = (await http.post("/completion", json={**fields, "stop": [stop]})).json()
        assert (body["content"], body["stop_type"]) == (text[: text.index(stop)], "word")
        assert body["stopping_word"] == stop
        gap = {"input_prefix": "the boy ", "input_suffix": " the town", "n_predict": 8, "temperature": 0}
        filled = await client.completions.create(
            model="tiny", prompt="the boy ", suffix=" the town", max_tokens=8, temperature=0
        )
        reply = await http.post("/infill", json={**gap, "stream": True})
        events = [json.loads(event[6:]) for event in reply.text.split("\n\n")[:-1]]
        assert "".join(event["content"] for event in events) == filled.choices[0].text
        assert [event["stop"] for event in events].count(True) == 1
        assert sum(len(event["tokens"]) for event in events) == 8

    async def test_usage_tells_what_was_cached(self, client: AsyncOpenAI) -> None:
        prompt = "once more and again to the other side " * 4
        usages = []
        for _ in range(2):
            completion = await client.completions.create(model="tiny", prompt=prompt, max_tokens=2)
            assert completion.usage is not None and completion.usage.prompt_tokens_details is not None
            usages.append(completion.usage)
        assert usages[0].prompt_tokens_details is not None and usages[1].prompt_tokens_details is not None
        assert usages[1].prompt_tokens_details.cached_tokens == usages[1].prompt_tokens - 2

    async def test_progress_is_told(self, http: httpx.AsyncClient) -> None:
        fields = {"prompt": "a b c d " * 200, "max_tokens": 2, "stream": True, "return_progress": True}
        reply = await http.post("/v1/completions", json={**fields, "cache_prompt": False})
        events = [json.loads(event[6:]) for event in reply.text.split("\n\n")[:-2]]
        told = [event["prompt_progress"] for event in events if "prompt_progress" in event]
        assert told[0]["processed"] == told[0]["cache"] == 0
        assert told[-1]["processed"] == told[-1]["total"] > 512
        assert len(told) >= 3

    async def test_other_clients_read_the_answers(self, tiny_daemon: Daemon) -> None:
        """openai with strict validation, and LangChain's own completions."""
        from langchain_openai import OpenAI as LangChainOpenAI

        url = f"{tiny_daemon.url}/v1"
        strict = AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, _strict_response_validation=True)
        async with strict:
            completion = await strict.completions.create(model="tiny", prompt=["a", "b"], logprobs=2, max_tokens=3)
        assert len(completion.choices) == 2
        async with httpx.AsyncClient() as transport:
            chain = LangChainOpenAI(
                base_url=url,
                api_key=SecretStr("unused"),
                model="tiny",
                max_tokens=5,
                temperature=0,
                http_async_client=transport,
            )
            whole = await chain.ainvoke(PROMPT)
            assert "".join([part async for part in chain.astream(PROMPT)]) == whole != ""

    async def test_what_cannot_be_is_refused(self, client: AsyncOpenAI) -> None:
        for prompt in ("", [10**6], "the " * 3000):
            with pytest.raises(BadRequestError) as caught:
                await client.completions.create(model="tiny", prompt=prompt)
            assert caught.value.param == "prompt"


class TestTextTools:
    @pytest.mark.parametrize(
        "text", ["", "Hello  world\n", "é 漢字 👩‍👩‍👧", "<|im_start|>user <tool_call>", "\u0301" * 50]
    )
    async def test_text_comes_back_from_its_tokens(self, http: httpx.AsyncClient, text: str) -> None:
        for parse_special in (True, False):
            tokens = await tokens_of(http, text, parse_special=parse_special)
            reply = await http.post("/detokenize", json={"tokens": tokens})
            assert reply.json() == {"content": text}
        reply = await http.post("/tokenize", json={"content": text, "with_pieces": True})
        pieces = [token["piece"] for token in reply.json()["tokens"]]
        joined = b"".join(piece.encode() if isinstance(piece, str) else bytes(piece) for piece in pieces)
        assert joined.decode() == text

    async def test_tokens_are_those_that_a_completion_reads(self, http: httpx.AsyncClient, direct: Direct) -> None:
        text = f"<|im_start|>{PROMPT}"
        tokens = await tokens_of(http, text, add_special=True)
        assert tokens == direct.model.tokenize(text, parse_special=True, add_bos=True)

    async def test_the_template_is_the_models_own(self, http: httpx.AsyncClient) -> None:
        messages = [{"role": "user", "content": "Hi <|im_end|>"}]
        reply = await http.post("/apply-template", json={"messages": messages})
        assert reply.json() == {"prompt": "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"}
        props = (await http.get("/props")).json()
        assert "im_start" in props["chat_template"]

    async def test_unknown_tokens_are_refused(self, http: httpx.AsyncClient) -> None:
        reply = await http.post("/detokenize", json={"tokens": [1, 10**6]})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "tokens"

    async def test_questions_wait_for_no_stream_and_disturb_none(
        self, client: AsyncOpenAI, http: httpx.AsyncClient
    ) -> None:
        """Many queries are answered while one answer is generated, and that answer does not change."""
        fields: Any = {"model": "tiny", "prompt": "Over there ", "max_tokens": 600, "temperature": 0, "logprobs": 2}
        alone = (await client.completions.create(**fields)).choices[0].logprobs
        assert alone is not None and alone.tokens is not None
        stream = await client.completions.create(**fields, stream=True)
        chunks = [await anext(stream)]
        answers = await asyncio.gather(
            *(tokens_of(http, PROMPT * 20) for _ in range(10)),
            http.post("/apply-template", json={"messages": [{"role": "user", "content": PROMPT}]}),
        )
        assert len(answers) == 11
        chunks += [chunk async for chunk in stream]
        tokens = [token for chunk in chunks if (scores := chunk.choices[0].logprobs) for token in scores.tokens or ()]
        # After the first token with a small lead, the answers may differ.
        num_sure = next(index for index, rivals in enumerate(alone.top_logprobs or ()) if lead(rivals) < LEAD)
        assert tokens[:num_sure] == alone.tokens[:num_sure]
        assert len(tokens) == len(alone.tokens)

    @pytest.mark.parametrize("text", ["\u0301", "<|im_start|>"])
    async def test_a_mebibyte_of_anything_is_tokenized(self, http: httpx.AsyncClient, text: str) -> None:
        content = text * ((1 << 20) // len(text.encode()))
        tokens = await tokens_of(http, content)
        reply = await http.post("/detokenize", json={"tokens": tokens[:200_000]})
        assert content.startswith(reply.json()["content"])

    async def test_who_leaves_is_forgotten(self, http: httpx.AsyncClient) -> None:
        content = "a b" * 300_000
        with pytest.raises(httpx.ReadTimeout):
            await http.post("/tokenize", json={"content": content}, timeout=httpx.Timeout(patient(60), read=0.05))
        assert await tokens_of(http, "ab")
