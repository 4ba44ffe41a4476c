"""Latencies, gaps and rates computed from arrival times, so that no server is favoured."""

from __future__ import annotations

import pytest

from edgeagent.bench.client import Counts, Trace, counts_of


def trace(*texts: float, output: int | None = None, sent: float = 0.0, first: float | None = None) -> Trace:
    """Return an answer whose texts arrived at these times in seconds."""
    answer = Trace(sent_s=sent, first_event_s=first, texts=list(texts), num_chars=[3] * len(texts))
    answer.counts = Counts(10, 0, output) if output is not None else None
    return answer


def test_times_are_from_the_sending() -> None:
    answer = trace(10.5, 10.6, sent=10.0, first=10.1)
    assert answer.ttft_ms == pytest.approx([500])
    assert answer.gaps_ms == pytest.approx([100])


def test_a_token_an_event() -> None:
    assert trace(1.0, 1.1, 1.2, 1.3, 1.4, output=5).tokens_per_s == pytest.approx([10])


def test_several_tokens_an_event() -> None:
    """Three events of four tokens: eight tokens took 0.2 s, since the first four had already arrived."""
    answer = trace(1.0, 1.1, 1.2, output=12)
    assert answer.tokens_per_event == 4
    assert answer.tokens_per_s == pytest.approx([40])


def test_events_of_uneven_size() -> None:
    """Half of the text arrived in the first event, and the rate counts only the text that came after it."""
    answer = trace(1.0, 1.1, 1.2, output=12)
    answer.num_chars = [20, 10, 10]
    assert answer.tokens_per_s == pytest.approx([30])
    assert answer.tokens_between(1.0, 1.1) == pytest.approx(3)
    assert answer.tokens_between(0.0, 9.0) == pytest.approx(12)


@pytest.mark.parametrize(
    "answer", [trace(), trace(output=0), trace(1.0, output=8), trace(1.0, 1.1), trace(2, 2, output=2)]
)
def test_what_has_no_rate_gives_none(answer: Trace) -> None:
    assert answer.tokens_per_s == []


def test_an_answer_without_text_has_no_first_token() -> None:
    assert trace().ttft_ms == []


def test_events_are_noted() -> None:
    told = []
    answer = Trace(on_text=lambda: told.append(len(answer.texts)))
    answer.event(1.0, 0)
    answer.event(2.0, 4)
    answer.event(3.0, 4)
    assert (answer.first_event_s, answer.first_text_s, answer.texts, told) == (1.0, 2.0, [2.0, 3.0], [1, 2])
    assert answer.num_chars == [4, 4]


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, Counts(9, 4, 3)),
        ({"input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}, Counts(9, 4, 3)),
        ({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": None}, Counts(9, 0, 3)),
        ({"prompt_tokens": 9}, None),
        ({}, None),
        (None, None),
    ],
)
def test_counts_in_either_api_s_words(usage: dict[str, object] | None, counts: Counts | None) -> None:
    assert counts_of(usage) == counts
