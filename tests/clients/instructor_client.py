"""instructor: classes through JSON schema and tools, plain and partial.

Its JSON mode is left out: it states the schema only in the prompt, which the bundled model cannot follow.
"""

from __future__ import annotations

import instructor
from cases import ASK_TIMER, BASE_URL, KEY, MODEL, case, main
from openai import AsyncOpenAI
from pydantic import BaseModel

MESSAGES = [{"role": "user", "content": ASK_TIMER}]
MODES = {
    "json schema": instructor.Mode.JSON_SCHEMA,
    "tools": instructor.Mode.TOOLS,
    "strict tools": instructor.Mode.TOOLS_STRICT,
}


class Timer(BaseModel):
    """A timer that is asked for."""

    minutes: int


def make(mode: instructor.Mode) -> instructor.AsyncInstructor:
    """Return a client that uses a mode."""
    return instructor.from_openai(AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0), mode=mode)


def add(name: str, mode: instructor.Mode) -> None:
    """Add the cases of a mode."""

    @case(f"{name}, plain")
    async def _() -> None:
        timer = await make(mode).chat.completions.create(
            model=MODEL, messages=MESSAGES, response_model=Timer, max_tokens=64, max_retries=0
        )
        assert isinstance(timer.minutes, int)

    @case(f"{name}, streamed in parts")
    async def _() -> None:
        parts = make(mode).chat.completions.create_partial(
            model=MODEL, messages=MESSAGES, response_model=Timer, max_tokens=64, max_retries=0
        )
        last = None
        async for part in parts:
            last = part
        assert last is not None and isinstance(last.minutes, int)


for mode_name, each in MODES.items():
    add(mode_name, each)

main()
