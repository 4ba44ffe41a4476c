"""Shared by the clients' scripts: the cases, and how their outcomes reach run.py (one JSON line each, on stdout).

It runs in the clients' own environment, so it imports nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable

URL = os.environ.get("EDGEAGENT_URL", "http://127.0.0.1:8127")
BASE_URL = f"{URL}/v1"
# Clients require a key; any value works.
KEY = "unused"
MODEL = "builtin"
LIMIT_S = 120.0

Case = Callable[[], Awaitable[None]]
_cases: list[tuple[str, Case]] = []

TIMER = {
    "type": "object",
    "properties": {"minutes": {"type": "integer"}},
    "required": ["minutes"],
    "additionalProperties": False,
}
ASK_TIMER = "Set a timer for 7 minutes."


def case(name: str) -> Callable[[Case], Case]:
    """Register a case under a name."""

    def add(run: Case) -> Case:
        _cases.append((name, run))
        return run

    return add


def main(limit_s: float = LIMIT_S) -> None:
    """Run every case in turn, each for at most `limit_s` seconds, and print its outcome."""
    # Output of libraries must not mix with the lines of outcomes.
    channel, sys.stdout = sys.stdout, sys.stderr
    asyncio.run(_run_all(limit_s, lambda outcome: print(json.dumps(outcome), file=channel, flush=True)))


async def _run_all(limit_s: float, tell: Callable[[dict[str, object]], None]) -> None:
    for name, run in _cases:
        began_s = time.monotonic()
        fault = ""
        try:
            await asyncio.wait_for(run(), limit_s)
        except Exception as error:
            traceback.print_exc()
            fault = f"{type(error).__name__}: {error}".strip()[:400]
        tell({"case": name, "fault": fault, "seconds": time.monotonic() - began_s})
