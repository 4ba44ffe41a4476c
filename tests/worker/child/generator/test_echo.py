"""A prompt that is echoed, and the progress that is reported while it is computed."""

from __future__ import annotations

import pytest

from edgeagent.types import FinishReason, PromptProgress, PromptText
from edgeagent.worker.protocol import MAX_FRAME_FROM_WORKER_BYTES, Cancel
from tests.worker.child.generator.fake_host import Bench, deltas_of


@pytest.mark.parametrize("logprobs", [None, 0, 20])
@pytest.mark.parametrize("num_prompt", [1, 3, 200])
def test_an_echo_comes_whole_with_the_first_token(num_prompt: int, logprobs: int | None) -> None:
    bench = Bench(ends=False)
    prompt = tuple(65 + index % 26 for index in range(num_prompt))
    bench.give("a", prompt, max_tokens=2, echo=True, logprobs=logprobs)
    bench.run()
    parts = [delta for delta in deltas_of(bench) if isinstance(delta, PromptText)]
    assert "".join(part.text for part in parts) == bytes(prompt).decode()
    scored = [logprob.token for part in parts for logprob in part.logprobs]
    assert scored == ([] if logprobs is None else list(prompt))
    with_tokens = next(index for index, item in enumerate(bench.items["a"]) if item.tokens)
    with_echo = [index for index, item in enumerate(bench.items["a"]) if any(part in item.deltas for part in parts)]
    # Output in parts is complete with the last part.
    assert all(bench.items["a"][index].is_part for index in with_echo)
    assert with_echo == list(range(with_tokens - len(parts), with_tokens))
    assert bench.finished().usage.num_output_tokens == 2
    assert max(bench.frame_sizes) < MAX_FRAME_FROM_WORKER_BYTES


def test_a_prompt_that_is_only_echoed_ends_as_too_long() -> None:
    bench = Bench()
    bench.give("a", max_tokens=0, echo=True, logprobs=1)
    bench.give("b", prefill_only=True)
    bench.run()
    assert any(isinstance(delta, PromptText) for delta in deltas_of(bench))
    assert bench.finished("a").reason is FinishReason.LENGTH
    assert bench.finished("b").reason is FinishReason.STOP
    assert bench.tokens("a") == []


def test_a_cancelled_request_is_not_echoed() -> None:
    bench = Bench(ends=False)
    bench.give("a", echo=True, max_tokens=2)
    bench.loop.commands.put(Cancel("a"))
    bench.run()
    assert not any(isinstance(delta, PromptText) for delta in deltas_of(bench))
    assert bench.finished().reason is FinishReason.CANCELLED


def test_progress_is_told_from_what_was_cached_to_the_whole_prompt() -> None:
    bench = Bench(ends=False)
    bench.give("a", tuple(range(65, 85)), max_tokens=1)
    bench.run()
    bench.give("b", tuple(range(65, 85)) * 8, max_tokens=2, reports_progress=True)
    bench.run()
    told = [delta.num_tokens for delta in deltas_of(bench, "b") if isinstance(delta, PromptProgress)]
    assert told[0] == 20
    assert told[-1] == 160
    assert told == sorted(set(told))
    assert not any(isinstance(delta, PromptProgress) for delta in deltas_of(bench, "a"))
