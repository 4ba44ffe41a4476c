"""A real worker on a slow machine: it sleeps before each batch, for a fixed time or by the number of its tokens."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeagent.engine.llama.context import LlamaRunner
    from edgeagent.engine.runner import Slice


def slow_command(*, tokens_per_s: float = math.inf, step_s: float = 0.0) -> tuple[str, ...]:
    """Return the command line of a worker that computes so many tokens per second, and sleeps for `step_s` before."""
    return (sys.executable, "-P", "-m", "tests.slow_worker", str(tokens_per_s), str(step_s))


def slow_program(step_s: float, first: str = "") -> tuple[str, str]:
    """Return Python's arguments for edgeagent with such a worker; it runs the statements `first` before.

    A stream at full speed takes more CPU time than most of what is tried beside it.
    """
    command = slow_command(step_s=step_s)
    lines = ("import sys", "from edgeagent.cli import main", "from edgeagent.worker.parent.pool.pool import Pool")
    return "-c", "\n".join((*lines, f"Pool.__init__.__kwdefaults__['command'] = {command}", first, "sys.exit(main())"))


def main(tokens_per_s: float, step_s: float) -> int:
    """Run a worker; return its exit code."""
    from edgeagent.engine.llama.context import LlamaRunner
    from edgeagent.worker.child import process

    submit: Callable[[LlamaRunner, Sequence[Slice], int], None] = LlamaRunner.submit

    def sleep_and_submit(self: LlamaRunner, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        time.sleep(step_s + sum(len(part.tokens) for part in slices) / tokens_per_s)
        submit(self, slices, min_tokens)

    LlamaRunner.submit = sleep_and_submit  # type: ignore[method-assign]
    return process.main()


if __name__ == "__main__":
    os._exit(main(*map(float, sys.argv[1:])))
