"""A client of the daemon for the demo: streams of chat completions, with the time and the place of each part."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.endless_model import LOCAL_NAME

STREAM_LIMIT_S = 180.0


@dataclass(slots=True)
class Answer:
    """The result of one stream. `error` is empty if the stream ended as it should."""

    text: str = ""
    num_tokens: int = 0
    finish_reason: str = ""
    route: str = ""
    reason: str = ""
    handovers: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    # Seconds of the monotonic clock: when the request was sent, and when each part of the text arrived.
    asked_s: float = 0.0
    came_s: list[float] = field(default_factory=list)

    @property
    def first_token_s(self) -> float:
        """Seconds until the first part."""
        return self.came_s[0] - self.asked_s if self.came_s else float("inf")

    @property
    def token_s(self) -> float:
        """The mean number of seconds between tokens after the first part."""
        return (self.came_s[-1] - self.came_s[0]) / max(1, self.num_tokens - 1)

    @property
    def is_remote(self) -> bool:
        """Whether the answer ended on a remote."""
        return self.route.startswith("remote:")


class Client:
    """A client of one daemon, or of any other server that serves chat completions."""

    def __init__(self, url: str, *, model: str = LOCAL_NAME, key: str = "", certificate: Path | None = None) -> None:
        """Prepare for the server at `url`; `certificate` is the server's own, if no authority signed it."""
        self._model = model
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=STREAM_LIMIT_S,
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            verify=ssl.create_default_context(cafile=str(certificate)) if certificate else True,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def ask(self, prompt: str, max_tokens: int, *, into: Answer | None = None, **fields: Any) -> Answer:
        """Stream one greedy answer and return it; fill in `into` if given. A failure is stored in it, not raised."""
        answer = into or Answer()
        answer.asked_s = time.monotonic()
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens}
        body |= {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0, **fields}
        try:
            async with asyncio.timeout(STREAM_LIMIT_S):
                async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                    if response.status_code != 200:
                        answer.error = f"{response.status_code}: {(await response.aread()).decode()[:200]}"
                        return answer
                    is_over = False
                    async for line in response.aiter_lines():
                        is_over = is_over or line == "data: [DONE]"
                        if line.startswith("data: {"):
                            _take(answer, json.loads(line.removeprefix("data: ")))
                    if not is_over and not answer.error:
                        answer.error = "the stream ended without [DONE]"
        except (httpx.HTTPError, TimeoutError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        return answer

    async def ask_all(self, prompts: Sequence[str], max_tokens: int, **fields: Any) -> list[Answer]:
        """Request all answers at the same time."""
        return list(await asyncio.gather(*(self.ask(prompt, max_tokens, **fields) for prompt in prompts)))

    async def ask_and(
        self, prompts: Sequence[str], max_tokens: int, num_pieces: int, then: Callable[[], None], **fields: Any
    ) -> tuple[list[Answer], float | None]:
        """Request answers as `ask_all` does; call `then` once each has `num_pieces`.

        Return the answers and the call's time.

        If all have ended by then, `then` is not called and the time is None.
        """
        answers = [Answer() for _ in prompts]
        asked = zip(prompts, answers, strict=True)
        streams = [asyncio.create_task(self.ask(prompt, max_tokens, into=into, **fields)) for prompt, into in asked]
        while True:
            await asyncio.sleep(0.005)
            if all(
                len(answer.came_s) >= num_pieces or stream.done()
                for answer, stream in zip(answers, streams, strict=True)
            ):
                break
        if all(stream.done() for stream in streams):
            return await asyncio.gather(*streams), None
        done_s = time.monotonic()
        await asyncio.to_thread(then)
        return await asyncio.gather(*streams), done_s


def _take(answer: Answer, chunk: dict[str, Any]) -> None:
    """Add the content of one event to an answer."""
    if "error" in chunk:
        answer.error = str(chunk["error"].get("message", chunk["error"]))
    for choice in chunk.get("choices", []):
        if text := choice["delta"].get("content"):
            answer.text += text
            answer.came_s.append(time.monotonic())
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    if usage := chunk.get("usage"):
        answer.num_tokens = usage["completion_tokens"]
    told = chunk.get("edgeagent") or {}
    answer.route = told.get("route") or told.get("served_by") or answer.route
    answer.reason = told.get("reason") or answer.reason
    answer.handovers = told.get("handovers") or answer.handovers
