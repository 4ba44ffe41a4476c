"""A real worker on a slow machine: it sleeps before each batch, to compute a fixed number of tokens per second."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.runner import Slice
from edgeagent.worker.child import process


def slow_command(tokens_per_s: float) -> tuple[str, ...]:
    """Return the command line of a worker with this speed."""
    return (sys.executable, "-P", "-m", "tests.slow_worker", str(tokens_per_s))


def main(tokens_per_s: float) -> int:
    """Run a worker; return its exit code."""
    submit: Callable[[LlamaRunner, Sequence[Slice], int], None] = LlamaRunner.submit

    def sleep_and_submit(self: LlamaRunner, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        time.sleep(sum(len(part.tokens) for part in slices) / tokens_per_s)
        submit(self, slices, min_tokens)

    LlamaRunner.submit = sleep_and_submit  # type: ignore[method-assign]
    return process.main()


if __name__ == "__main__":
    os._exit(main(float(sys.argv[1])))
