"""Predicted times of requests, from prompt sizes, cached tokens, the requests ahead, and earlier errors."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from edgeagent.backends.forecast import MAX_WAITING_TOKENS, Forecast, Rates
from edgeagent.backends.prompts import message_bytes, prompt_bytes
from edgeagent.types import (
    CachePolicy,
    ChatPrompt,
    Finished,
    FinishReason,
    GenerateRequest,
    Message,
    Started,
    Target,
    TextPrompt,
    Tier,
    Timings,
    TokenPrompt,
    Tool,
    ToolCall,
    Usage,
    replace,
)
from edgeagent.worker.parent.pool.known_prefixes import KnownPrefixes

RATES = Rates(prefill_tokens_per_s=1000.0, prefill_tokens_per_s_beside=500.0, token_s=0.01)
FIXED_S = 0.015  # overhead and one token
PARALLEL = 4


def chat(
    request_id: str, *texts: str, tier: Tier = Tier.INTERACTIVE, max_tokens: int | None = None, **cache: object
) -> GenerateRequest:
    messages = tuple(Message("assistant" if text.startswith("A") else "user", text) for text in texts)
    policy = CachePolicy(**cache)  # type: ignore[arg-type]
    return GenerateRequest(request_id, "", ChatPrompt(messages), tier=tier, max_tokens=max_tokens, cache=policy)


def forecast_at(rates: Rates = RATES, prefixes: KnownPrefixes | None = None) -> Forecast:
    forecast = Forecast(prefixes)
    forecast.note_rates(rates)
    return forecast


def about(seconds: float) -> object:
    """Approximately: what is seen moves the estimates for other sizes a little."""
    return pytest.approx(seconds, rel=0.06)


@pytest.mark.parametrize(("context_length", "most_bytes"), [(None, 5 << 20), (1000, 1 << 20)])
def test_digests_are_made_of_a_limited_part_of_a_prompt(
    monkeypatch: pytest.MonkeyPatch, context_length: int | None, most_bytes: int
) -> None:
    forecast, digested = forecast_at(), list[object]()
    digests = forecast._prefixes.digests

    def noted(client: str, parts: Iterable[object]) -> Iterator[bytes]:
        return digests(client, (digested.append(part) or part for part in parts))  # type: ignore[func-returns-value]

    monkeypatch.setattr(forecast._prefixes, "digests", noted)
    if context_length is not None:
        forecast.context_length = context_length
    long = chat("a", *["x" * (1 << 20)] * 16)
    assert forecast.num_bytes(long) == prompt_bytes(long)
    assert 0 < sum(len(str(part)) for part in digested) <= most_bytes
    whole = chat("b", "x" * (16 << 20))
    digested.clear()
    assert forecast.num_bytes(whole) == prompt_bytes(whole)
    assert sum(len(str(part)) for part in digested) < 1000


def first_token_s(forecast: Forecast, request: GenerateRequest, now_s: float = 0.0) -> float:
    seconds = forecast.predict(request, PARALLEL, now_s).first_token_s
    assert seconds is not None
    return seconds


def stream(forecast: Forecast, request_id: str, *, at_s: float = 0.0, **fields: object) -> None:
    """Let a request get its first token."""
    request = chat(request_id, "s" * 40, **fields)  # type: ignore[arg-type]
    forecast.accept(request, at_s)
    forecast.start(request, Started(10, 0), at_s)
    forecast.add_tokens(request_id, 1, at_s)


def compute(forecast: Forecast, request: GenerateRequest) -> None:
    """Let a request get its first token at once, and end."""
    forecast.accept(request, 0.0)
    forecast.add_tokens(request.id, 1, 0.0)
    forecast.end(request.id, 0.0)


def test_the_size_of_a_prompt() -> None:
    call = Message("assistant", "ab", reasoning="c", tool_calls=(ToolCall("id", "now", "{}"),))
    prompt = ChatPrompt((Message("user", "ü"), call), (Tool("now", "tell", "{}"),))
    assert prompt_bytes(GenerateRequest("", "", prompt)) == 2 + 2 + 1 + 2 + 3 + 4 + 2
    assert prompt_bytes(GenerateRequest("", "", TextPrompt("abc", suffix="de"))) == 5
    assert prompt_bytes(GenerateRequest("", "", TokenPrompt((1, 2)))) == 8


def test_without_rates_only_the_place_is_known() -> None:
    forecast = Forecast()
    assert forecast.predict(chat("a", "x" * 400), PARALLEL, 0.0).first_token_s is None
    for number in range(PARALLEL):
        assert not forecast.predict(chat("a", "x" * 400), PARALLEL, 0.0).waits
        forecast.accept(chat(str(number), "y" * 400), 0.0)
    found = forecast.predict(chat("a", "x" * 400), PARALLEL, 0.0)
    assert (found.first_token_s, found.place, found.waits) == (None, PARALLEL, True)


def test_a_prompt_takes_its_tokens_and_those_ahead() -> None:
    forecast, asked = forecast_at(), chat("a", "x" * 400)
    assert first_token_s(forecast, asked) == about(0.1 + FIXED_S)
    for number in range(20):  # so that a prompt that is partly cached by surprise changes the estimates little
        forecast.accept(chat(f"{number}", f"{number:400}"), 0.0)
        forecast.start(chat(f"{number}", f"{number:400}"), Started(100, 0), 0.0)
        forecast.end(f"{number}", 0.0)
    forecast.accept(chat("b", "y" * 4000), 0.0)
    forecast.accept(chat("c", "z" * 4000, tier=Tier.BATCH), 0.0)
    # The prompt of `b` is computed first. Then `b` is a stream, beside which prompts take twice as long.
    assert first_token_s(forecast, asked) == about(1.01 + 0.2 + FIXED_S)
    assert first_token_s(forecast, replace(asked, tier=Tier.REALTIME)) == about(0.1 + FIXED_S)
    forecast.start(chat("b", "y" * 4000), Started(1000, 700), 0.0)
    assert first_token_s(forecast, asked) == about(0.31 + 0.2 + FIXED_S)
    assert first_token_s(forecast, asked, now_s=0.2) == about(0.11 + 0.2 + FIXED_S), "it goes on"
    forecast.end("b", 0.2)
    assert first_token_s(forecast, asked, now_s=0.2) == about(0.1 + FIXED_S)


def test_a_request_waits_for_a_slot() -> None:
    forecast = forecast_at()
    for number in range(PARALLEL):
        stream(forecast, str(number), max_tokens=100 if number else 50, tier=Tier.BATCH)
    asked = chat("a", "x" * 400, tier=Tier.BATCH)
    # The first stream has 49 more tokens of 10 ms. Beside the others, 100 tokens take 0.2 s.
    found = forecast.predict(asked, PARALLEL, 0.0)
    assert (found.place, found.waits) == (0, True)
    assert found.first_token_s == about(0.49 + 0.2 + FIXED_S)
    urgent = forecast.predict(replace(asked, tier=Tier.INTERACTIVE), PARALLEL, 0.0)
    assert not urgent.waits and urgent.first_token_s == about(0.2 + FIXED_S), "a batch stream gives way"


def test_due_times_and_turns_of_clients_are_the_order() -> None:
    forecast = forecast_at()
    for number in range(3):
        asked = replace(chat(f"b{number}", f"{number}" * 4000, partition="b"), target=Target(100.0, 1.0))
        forecast.accept(asked, 0.0)

    def place(client: str, due_s: float) -> int:
        asked = replace(chat("a", "x" * 400, partition=client), target=Target(due_s, 1.0))
        return forecast.predict(asked, PARALLEL, 0.0).place

    assert (place("b", 200.0), place("b", 50.0), place("other", 200.0)) == (3, 0, 1)
    assert place("b", 0.01) == 3, "one that is late in any case delays no other"


def test_what_would_be_late_is_served_behind_all_that_are_due() -> None:
    forecast = forecast_at()

    def asked(name: str, due_s: float) -> GenerateRequest:
        return replace(chat(name, name * 4000), target=Target(due_s, 1.0))

    def accept(request: GenerateRequest) -> bool:
        prediction = forecast.predict(request, PARALLEL, 0.0)
        if prediction.is_late:
            request = replace(request, target=Target(math.inf, 1.0))
        forecast.accept(request, 0.0, prediction)
        return prediction.is_late

    # The first takes a second, each one behind it two.
    assert [accept(asked(name, 4.0)) for name in "abcd"] == [False, False, True, True]
    found = forecast.predict(asked("e", 9.0), PARALLEL, 0.0)
    assert (found.place, found.is_late) == (2, False), "it goes before those that are not due"
    compute(forecast, chat("f", "f" * 40_000))
    assert not forecast.predict(replace(chat("g", "f" * 40_000, "g"), target=Target(6.0, 1.0)), PARALLEL, 0.0).is_late


def test_what_would_be_late_but_has_a_limit_goes_before_what_has_none() -> None:
    forecast = forecast_at()
    forecast._overtaken = 4.0
    for name, due_s in (("a", 2.9), ("b", 2.95), ("c", 100.0)):
        forecast.accept(replace(chat(name, name * 8000), target=Target(due_s, 1.0)), 0.0)
    asked = replace(chat("new", "x" * 400), target=Target(3.0, 1.0))
    free = forecast.predict(asked, PARALLEL, 0.0)
    limited = forecast.predict(replace(asked, timeout_s=10.0), PARALLEL, 0.0)
    assert (free.is_late, free.place) == (True, 3)
    assert (limited.is_late, limited.place) == (True, 2)
    assert limited.latest_s is not None and 3.0 < limited.latest_s < 10.0, "newer ones delay it until its limit only"


def test_what_was_computed_before_is_cached_for_the_same_client() -> None:
    forecast = forecast_at()
    first = chat("a", "x" * 400, "y" * 400)
    forecast.accept(first, 0.0)
    forecast.add_tokens("a", 1, 0.0)
    forecast.end("a", 0.0)
    further = chat("b", "x" * 400, "y" * 400, "A" * 400, "z" * 400)
    assert first_token_s(forecast, further) == about(0.1 + FIXED_S), "the model's own answer is cached too"
    for other in (
        chat("b", "x" * 400, "w" * 400, partition="other"),
        chat("b", "x" * 400, "w" * 400, read=False),
    ):
        assert first_token_s(forecast, other) == about(0.2 + FIXED_S)
    forecast.accept(chat("c", "v" * 400, write=False), 0.0)
    forecast.add_tokens("c", 1, 0.0)
    forecast.end("c", 0.0)
    assert first_token_s(forecast, chat("d", "v" * 400)) == about(0.1 + FIXED_S)


def test_what_was_cancelled_before_its_first_token_is_not_taken_for_cached() -> None:
    forecast = forecast_at()
    forecast.accept(chat("a", "x" * 400), 0.0)
    forecast.end("a", 0.0)
    assert first_token_s(forecast, chat("b", "x" * 400)) == about(0.1 + FIXED_S)
    for request_id in ("c", "d"):  # one of two computes what they share
        forecast.accept(chat(request_id, "x" * 400), 0.0)
    forecast.add_tokens("d", 1, 0.0)
    for request_id in ("c", "d"):
        forecast.end(request_id, 0.0)
    assert first_token_s(forecast, chat("b", "x" * 400)) < 0.05 + FIXED_S


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("num_cached", [20, 1990])
async def test_what_the_disk_has_lost_is_not_expected_of_it_again(
    tmp_path: Path, num_cached: int, *, is_restarted: bool
) -> None:
    """The oldest is evicted first. After an update, or with other settings, nothing that is on disk fits.

    That is seen after a restart of the daemon, and after a model was unloaded.
    """
    forecast = forecast_at(prefixes=(prefixes := KnownPrefixes(b"s", tmp_path)))
    forecast.note_worker(1)
    for topic in "xyz":
        compute(forecast, chat(topic, topic * 8000))
    await prefixes.save()
    if is_restarted:
        forecast = forecast_at(prefixes=KnownPrefixes(b"s", tmp_path))
    for pid in (None, 2):
        forecast.note_worker(pid)
    old, asked, new = (chat(topic, topic * 8000, "A", "more") for topic in "xyz")
    assert first_token_s(forecast, asked) < 0.2
    forecast.accept(asked, 0.0)
    forecast.start(asked, Started(2010, num_cached), 0.0)
    forecast.add_tokens("y", 1, 2.0)
    forecast.end("y", 2.0)
    assert (first_token_s(forecast, old) < 0.2) == (num_cached > 1000)
    assert first_token_s(forecast, new) < 0.2
    assert first_token_s(forecast, chat("b", "y" * 8000, "A", "more", "A", "even more")) < 0.2


@pytest.mark.parametrize("pids", [(1, 2), (1, None), (1, None, 2)])
def test_what_only_an_ended_worker_had_is_not_taken_for_cached(pids: tuple[int | None, ...]) -> None:
    forecast = forecast_at()
    for pid in (None, 1, 1):
        forecast.note_worker(pid)
        compute(forecast, chat("a", "x" * 400))
    forecast.accept(chat("c", "y" * 400), 0.0)
    for pid in pids:
        forecast.note_worker(pid)
    forecast.add_tokens("c", 1, 0.0)
    forecast.end("c", 0.0)
    assert first_token_s(forecast, chat("b", "x" * 400)) == about(0.1 + FIXED_S)
    assert first_token_s(forecast, chat("b", "y" * 400)) < 0.05 + FIXED_S, "the next worker has computed it"


def test_what_an_adapter_computed_is_not_cached_for_the_model_or_another_one() -> None:
    forecast = forecast_at()
    own, model, other = (replace(chat("a", "x" * 400), model=name) for name in ("m+one", "m", "m+two"))
    compute(forecast, own)
    assert first_token_s(forecast, own) < 0.05 + FIXED_S
    for without in (model, other):
        assert first_token_s(forecast, without) == about(0.1 + FIXED_S)


def test_the_tokens_of_a_text_and_of_the_template_are_learned() -> None:
    forecast = forecast_at()
    for _ in range(30):
        for size in (80, 800, 80000):
            forecast.start(chat("a", "x" * size), Started(50 + size // 2, 0), 0.0)
    for size in (80, 800, 80000):
        assert forecast.num_tokens(chat("b", "y" * size)) == pytest.approx(50 + size / 2, rel=0.1)


def finished(num_tokens: int) -> Finished:
    return Finished(FinishReason.STOP, Usage(100, 0, num_tokens), Timings())


def test_its_errors_correct_it_and_one_alone_little() -> None:
    forecast, now_s = forecast_at(), 0.0

    def compute(num_tokens: int, seconds: float) -> None:
        nonlocal now_s
        asked = chat(f"{now_s}", f"{now_s:<40}" * (num_tokens // 10))
        forecast.accept(asked, now_s)
        forecast.start(asked, Started(num_tokens, 0), now_s)
        now_s += 0.005 + seconds
        forecast.add_tokens(asked.id, 1, now_s)
        forecast.end(asked.id, now_s)
        now_s += 1.0

    def predicted_s(num_tokens: int) -> float:
        return first_token_s(forecast, chat("a", "x" * 4 * num_tokens), now_s) - 0.005

    for _ in range(40):  # all of one size
        compute(100, 0.22)
    assert predicted_s(100) == about(0.22)
    forecast.note_rates(Rates(100.0, 50.0, 1.0))  # what the worker computed last was slow
    assert predicted_s(100) == about(0.22)
    for _ in range(30):  # a part of the time is the same for all sizes
        compute(100, 0.8 + 0.2)
        compute(400, 0.8 + 0.8)
    assert predicted_s(800) == about(0.8 + 1.6)
    compute(400, 100.0)
    assert predicted_s(400) < 1.2 * 1.6, "the machine may have slept"


def test_streams_make_no_prompt_faster() -> None:
    """Of four prompts that are computed together, the last step has the end of three. It tells nothing of streams."""
    forecast, now_s = forecast_at(Rates(1000.0, 1000.0, 0.01)), 0.0
    for number in range(20):
        group = [chat(f"{number} {place}", f"{number:3} {place:395}") for place in range(4)]
        for each in group:
            forecast.accept(each, now_s)
            forecast.start(each, Started(100, 0), now_s)
        for each, at_s in zip(group, (0.4, 0.42, 0.42, 0.42), strict=True):
            forecast.add_tokens(each.id, 1, now_s + at_s)
        for each in group:
            forecast.end(each.id, now_s + 1.0, finished(2))
        now_s += 10.0
    alone_s = first_token_s(forecast, chat("a", "x" * 400), now_s)
    stream(forecast, "s", at_s=now_s, max_tokens=1000)
    assert first_token_s(forecast, chat("a", "x" * 400), now_s) >= 0.9 * alone_s


def test_a_machine_that_became_faster_is_noticed_beside_streams_too() -> None:
    """Prompts were computed alone only while it was slow. Then there are always streams."""
    forecast, now_s = forecast_at(Rates(1000.0, 1000.0, 0.01)), 0.0
    for number, (took_s, is_beside) in enumerate([(0.8, False)] * 20 + [(0.1, True)] * 40):
        now_s += 10.0
        if is_beside:
            stream(forecast, f"s{number}", at_s=now_s, max_tokens=1000)
        each = chat(f"{number}", f"{number:3} {1:395}")
        forecast.accept(each, now_s)
        forecast.start(each, Started(100, 0), now_s)
        forecast.add_tokens(each.id, 1, now_s + took_s)
        expected_s = first_token_s(forecast, chat("a", "x" * 400), now_s + took_s)
        for ended in (each.id, f"s{number}"):
            forecast.end(ended, now_s + took_s)
        if number == 19:
            assert expected_s > 0.5
    assert expected_s < 0.15


def test_what_prompts_of_one_size_take_does_not_change_what_longer_ones_take() -> None:
    forecast, chance = forecast_at(), random.Random("one size")
    least_s = first_token_s(forecast, chat("long", "L" * 32_000))
    now_s = 0.0
    for number in range(100):
        request = chat(str(number), f"{number:3}" + "x" * (4 * chance.randrange(290, 310) - 3))
        forecast.accept(request, now_s)
        tokens = prompt_bytes(request) // 4
        forecast.start(request, Started(tokens, 0), now_s)
        took_s = (FIXED_S + tokens / 1000) * chance.uniform(0.75, 1.3)
        forecast.add_tokens(str(number), 1, now_s + took_s)
        forecast.end(str(number), now_s + took_s, Finished(FinishReason.STOP, Usage(), Timings()))
        now_s += 10.0
        least_s = min(least_s, first_token_s(forecast, chat("long", "L" * 32_000), now_s))
    assert least_s > 0.7 * (FIXED_S + 8.0)


def test_the_lengths_and_the_speed_of_answers_are_learned() -> None:
    forecast = forecast_at()
    for number in range(40):
        stream(forecast, f"{number}", max_tokens=1000)
        forecast.add_tokens(f"{number}", 19, 19 * 0.05)
        forecast.end(f"{number}", 1.0, finished(20))
    for number in range(PARALLEL):
        stream(forecast, f"s{number}", at_s=1.0, max_tokens=1000)
    waiting = forecast.predict(chat("a", "x" * 400), PARALLEL, 1.0)
    assert waiting.first_token_s == pytest.approx(19 * 0.05, rel=0.3), "streams of 20 tokens, each 50 ms"


def test_a_step_counts_for_each_of_its_tokens() -> None:
    """Accepted drafts come in some steps only, so the mean over the steps would be 36 ms for a token."""
    forecast, at_s = forecast_at(), 0.0
    stream(forecast, "a")
    for num_tokens in [1, 5] * 50:
        at_s += 0.06
        forecast.add_tokens("a", num_tokens, at_s)
    left_s = 128 * 0.02  # of an answer, until one has ended
    seconds = forecast.predict(chat("b", "x" * 400), 1, at_s).first_token_s
    assert seconds == pytest.approx(left_s + 0.1 + FIXED_S, rel=0.12)


def test_the_gap_of_a_stream_that_was_preempted_is_not_the_time_of_its_tokens() -> None:
    forecast = forecast_at()
    names = [str(number) for number in range(PARALLEL)]
    for name in names:
        stream(forecast, name, max_tokens=101)
    for step in range(1, 51):
        for name in names:
            forecast.add_tokens(name, 1, 0.02 * step)
    usual_s = first_token_s(forecast, chat("new", "x" * 400), 1.0)
    forecast.add_tokens(names[-1], 1, 61.0)
    assert first_token_s(forecast, chat("new", "x" * 400), 61.0) < 2.5 * usual_s


def test_of_answers_that_differ_in_length_the_first_one_to_end_is_short() -> None:
    forecast = forecast_at()
    for number in range(60):
        length = 240 if number % 3 else 10
        stream(forecast, f"{number}", max_tokens=1000)
        forecast.add_tokens(f"{number}", length - 1, (length - 1) * 0.05)
        forecast.end(f"{number}", 12.0, finished(length))
    for number in range(PARALLEL):
        stream(forecast, f"s{number}", at_s=1.0, max_tokens=1000)
    asked = chat("a", "x" * 400)
    first_s = forecast.predict(asked, PARALLEL, 1.0).first_token_s
    assert first_s is not None and first_s < 10 * 0.05 + 0.3, "one of four answers is short"
    for number in range(PARALLEL):
        forecast.add_tokens(f"s{number}", 20, 1.0 + 20 * 0.05)
    long_s = forecast.predict(asked, PARALLEL, 2.0).first_token_s
    assert long_s == pytest.approx(219 * 0.05, rel=0.1), "those that still run are long"


def test_the_messages_of_a_prompt_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def count(message: Message) -> int:
        nonlocal read
        read += 1
        return message_bytes(message)

    monkeypatch.setattr("edgeagent.backends.forecast.message_bytes", count)
    monkeypatch.setattr("edgeagent.backends.prompts.message_bytes", count)
    forecast, asked = forecast_at(), chat("a", *(f"{number}" for number in range(2000)))
    for _ in range(2):  # by the router, and by the backend, which gets a copy
        forecast.num_tokens(asked)
        assert not forecast.is_full(asked, 64)
        prediction = forecast.predict(asked, PARALLEL, 0.0)
        asked = replace(asked, target=Target(1.0, 1.0))
    forecast.accept(asked, 0.0, prediction)
    forecast.start(asked, Started(2000, 0), 0.0)
    assert read == 2000


def test_prefixes_that_cannot_fit_into_the_context_get_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    num_digests, all_digests = 0, KnownPrefixes.digests

    def counted(prefixes: KnownPrefixes, client: str, parts: Iterable[object]) -> Iterator[bytes]:
        nonlocal num_digests
        for digest in all_digests(prefixes, client, parts):
            num_digests += 1
            yield digest

    monkeypatch.setattr(KnownPrefixes, "digests", counted)
    forecast = forecast_at()
    forecast.context_length = 10
    request = chat("long", *["U" * 50, "A" * 50] * 1000)
    assert forecast.num_bytes(request) == 100_000 and num_digests == 4, "with that of the tools"
    compute(forecast, request)
    text = replace(request, prompt=TextPrompt("U" * 100_000))
    assert forecast.num_bytes(text) == 100_000
    forecast.accept(text, 0.0)


def test_no_client_fills_the_queue_for_others() -> None:
    forecast = forecast_at()

    def is_full(client: str, tier: Tier = Tier.INTERACTIVE) -> bool:
        return forecast.is_full(chat("new", "x" * 40, partition=client, tier=tier), 64)

    for number in range(64):
        assert not is_full("a")
        forecast.accept(chat(f"a{number}", "y" * 40, partition="a"), 0.0)
    assert is_full("a") and not is_full("b") and not is_full("a", Tier.BATCH)
    for number in range(32):
        assert not is_full("b"), "its half"
        forecast.accept(chat(f"b{number}", "y" * 40, partition="b"), 0.0)
    assert is_full("b") and not is_full("c")


def test_the_tokens_that_wait_are_bounded() -> None:
    forecast = forecast_at()
    half = "y" * (4 * 300_000)
    assert MAX_WAITING_TOKENS < 600_000, "what is computed in ten minutes"
    for number in range(2):
        asked = chat(f"a{number}", f"{number}{half}", partition="a")
        assert not forecast.is_full(asked, 64) or number == 1
        forecast.accept(asked, 0.0)
    assert forecast.is_full(chat("new", "x", partition="a"), 64) and not forecast.is_full(chat("new", half), 64)
    for number in range(2):
        forecast.start(chat(f"a{number}", half, partition="a"), Started(300_000, 0), 0.0)
    assert not forecast.is_full(chat("new", half, partition="a"), 64), "those with a slot do not wait"


def test_a_prompt_that_is_too_long_fills_no_queue() -> None:
    """The worker refuses it, or shortens it to the context."""
    forecast = forecast_at()
    forecast.context_length = 2048
    forecast.accept(chat("long", "x" * 8 * MAX_WAITING_TOKENS, partition="a"), 0.0)
    assert not forecast.is_full(chat("new", "x" * 8 * MAX_WAITING_TOKENS, partition="a"), 64)


def test_choices_are_computed_with_their_prompt_and_nothing_follows_them() -> None:
    forecast = forecast_at()
    asked, choosing = chat("a", "x" * 400), replace(chat("b", "y" * 400), choices=("z" * 400, "w" * 400))
    alone_s = first_token_s(forecast, asked)
    assert first_token_s(forecast, choosing) == about(alone_s + 0.2)
    for number in range(PARALLEL):
        forecast.accept(replace(choosing, id=str(number)), 0.0)
    # Each of the four takes 0.3 s, and then its slot is free at once.
    assert first_token_s(forecast, asked) < 4 * (alone_s + 0.2) + 2 * alone_s + 0.1
    forecast.start(replace(choosing, id="0"), Started(101, 0), 0.0)
    forecast.start(replace(choosing, id="1"), Started(1, 0), 0.0)
    assert first_token_s(forecast, asked) > 2 * alone_s + 4 * 0.2
