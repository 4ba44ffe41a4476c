"""Predicted times of requests, from prompt sizes, cached tokens and the requests ahead."""

from __future__ import annotations

import pytest

from edgeagent.backends.local import Forecast, Rates
from edgeagent.backends.prompts import prompt_bytes
from edgeagent.types import (
    CachePolicy,
    ChatPrompt,
    GenerateRequest,
    Message,
    Started,
    TextPrompt,
    Tier,
    TokenPrompt,
    Tool,
    ToolCall,
    replace,
)

RATES = Rates(prefill_tokens_per_s=1000.0, token_s=0.01)
FIXED_S = 0.015  # overhead and one token


def chat(request_id: str, *texts: str, tier: Tier = Tier.INTERACTIVE, **cache: object) -> GenerateRequest:
    messages = tuple(Message("user", text) for text in texts)
    return GenerateRequest(request_id, "", ChatPrompt(messages), tier=tier, cache=CachePolicy(**cache))  # type: ignore[arg-type]


def test_the_size_of_a_prompt() -> None:
    call = Message("assistant", "ab", reasoning="c", tool_calls=(ToolCall("id", "now", "{}"),))
    prompt = ChatPrompt((Message("user", "ü"), call), (Tool("now", "tell", "{}"),))
    assert prompt_bytes(GenerateRequest("", "", prompt)) == 2 + 2 + 1 + 2 + 3 + 4 + 2
    assert prompt_bytes(GenerateRequest("", "", TextPrompt("abc", suffix="de"))) == 5
    assert prompt_bytes(GenerateRequest("", "", TokenPrompt((1, 2)))) == 8


def test_a_prompt_takes_its_tokens_and_those_ahead() -> None:
    forecast = Forecast()
    assert forecast.first_token_s(chat("a", "x" * 400), Rates(0.0, 0.01)) is None
    asked = chat("a", "x" * 400)
    assert forecast.first_token_s(asked, RATES) == pytest.approx(0.1 + FIXED_S)
    forecast.accept(chat("b", "y" * 4000))
    forecast.accept(chat("c", "z" * 4000, tier=Tier.BATCH))
    assert forecast.first_token_s(asked, RATES) == pytest.approx(1.1 + FIXED_S)
    assert forecast.first_token_s(replace(asked, tier=Tier.REALTIME), RATES) == pytest.approx(0.1 + FIXED_S)
    forecast.start(chat("b", "y" * 4000), Started(1000, 700))
    assert forecast.first_token_s(asked, RATES) == pytest.approx(0.4 + FIXED_S)
    forecast.end("b")
    assert forecast.first_token_s(asked, RATES) == pytest.approx(0.1 + FIXED_S)


def test_what_was_computed_before_is_cached_for_the_same_client() -> None:
    forecast = Forecast()
    forecast.start(chat("a", "x" * 400, "y" * 400), Started(200, 0))
    assert forecast.first_token_s(chat("b", "x" * 400, "y" * 400, "z" * 400), RATES) == pytest.approx(0.1 + FIXED_S)
    for other in (
        chat("b", "x" * 400, "w" * 400, partition="other"),
        chat("b", "x" * 400, "w" * 400, read=False),
    ):
        assert forecast.first_token_s(other, RATES) == pytest.approx(0.2 + FIXED_S)
    forecast.start(chat("c", "v" * 400, write=False), Started(100, 0))
    assert forecast.first_token_s(chat("d", "v" * 400), RATES) == pytest.approx(0.1 + FIXED_S)


def test_the_bytes_of_a_token_are_learned() -> None:
    forecast = Forecast()
    forecast.start(chat("a", "x" * 800), Started(400, 0))
    assert forecast.num_tokens(chat("b", "y" * 800)) == pytest.approx(400, rel=0.01), "the first prompt counts whole"
    for _ in range(60):
        forecast.start(chat("a", "x" * 800), Started(200, 0))
    assert forecast.num_tokens(chat("b", "y" * 800)) == pytest.approx(200, rel=0.01)


def test_of_an_idle_worker_the_best_rates_hold_and_bad_ones_are_doubted() -> None:
    forecast, none = Forecast(), Rates(0.0, 0.0)
    idle = {"is_proven": True, "is_busy": False, "idle_s": 0.0}
    assert forecast.known(Rates(1.0, 9.0), is_proven=False, is_busy=False, idle_s=0.0) == none
    assert forecast.known(RATES, **idle) == RATES  # type: ignore[arg-type]
    bad = Rates(10.0, 0.5)
    assert forecast.known(bad, **idle | {"is_busy": True}) == bad  # type: ignore[arg-type]
    assert forecast.known(bad, **idle) == RATES  # type: ignore[arg-type]
    assert forecast.known(none, is_proven=False, is_busy=False, idle_s=30.0) == Rates(2000.0, 0.005)
    assert forecast.known(none, is_proven=False, is_busy=False, idle_s=3e9) == Rates(32000.0, 0.01 / 32)
