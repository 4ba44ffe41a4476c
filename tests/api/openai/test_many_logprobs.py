"""The log probabilities of a long prompt are encoded in a thread, so that other streams are not blocked."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from edgeagent.api.openai import text_answer as text_completion
from edgeagent.api.wire.generation import TextLogprobs, legacy_logprobs
from edgeagent.types import Delta, PromptText, Started, TokenLogprob
from tests.backends.fake import FakeBackend, finished
from tests.daemon.running import running

RIVAL = TokenLogprob(1, b"b", -2.0)
TOKEN = TokenLogprob(0, b"a", -1.0, (RIVAL,))


@pytest.mark.parametrize("num_tokens", [4, 3000])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_many_are_written_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, num_tokens: int, is_streamed: bool
) -> None:
    threads: set[int] = set()

    def written(tokens: list[TokenLogprob], num_alternatives: int) -> TextLogprobs:
        if tokens:
            threads.add(threading.get_ident())
        return legacy_logprobs(tokens, num_alternatives)

    def script(_: object) -> Iterator[Delta]:
        yield Started(num_tokens, 0)
        yield PromptText("a" * num_tokens, (TOKEN,) * num_tokens)
        yield finished()

    monkeypatch.setattr(text_completion, "legacy_logprobs", written)
    async with running(FakeBackend(script)) as daemon:
        body = {"prompt": "x", "echo": True, "logprobs": 1, "max_tokens": 1, "stream": is_streamed}
        reply = await daemon.http.post(f"{daemon.url}/v1/completions", json=body)
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream" if is_streamed else "application/json")
        assert reply.text.count("token_logprobs") >= 1
        assert (threads == {threading.get_ident()}) == (num_tokens < 100)
        if not is_streamed:
            choice = reply.json()["choices"][0]
            assert choice["text"] == "a" * num_tokens
            assert choice["logprobs"]["top_logprobs"] == [{"b": -2.0, "a": -1.0}] * num_tokens
