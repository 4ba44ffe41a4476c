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
    decode: Callable[[LlamaRunner, Sequence[Slice], int], None] = LlamaRunner.decode

    def sleep_and_decode(self: LlamaRunner, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        time.sleep(sum(len(part.tokens) for part in slices) / tokens_per_s)
        decode(self, slices, min_tokens)

    LlamaRunner.decode = sleep_and_decode  # type: ignore[method-assign]
    return process.main()


if __name__ == "__main__":
    os._exit(main(float(sys.argv[1])))
