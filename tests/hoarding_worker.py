"""A real worker that may take 64 MiB more than planned.

Preparing a prompt of 7 tokens, or tokenizing "hoard", takes 128 MiB and never ends.
"""

from __future__ import annotations

import os
import time

from edgeagent.types import GenerateRequest, QueryAnswer, TextQuery, Tokenize, TokenPrompt
from edgeagent.worker.child import process
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.prepared_request import PreparedRequest
from edgeagent.worker.protocol import NOTHING_DELIVERED, Delivered


def _hoard() -> None:
    hoard = b"x" * (128 << 20)
    while hoard:
        time.sleep(1.0)


def main() -> int:
    """Run a worker; return its exit code."""
    prepare, answer = Host.prepare, Host.answer

    def prepare_or_hoard(
        self: Host, request: GenerateRequest, delivered: Delivered = NOTHING_DELIVERED
    ) -> PreparedRequest:
        if isinstance(request.prompt, TokenPrompt) and len(request.prompt.tokens) == 7:
            _hoard()
        return prepare(self, request, delivered)

    def answer_or_hoard(self: Host, query: TextQuery) -> QueryAnswer:
        if query == Tokenize("hoard"):
            _hoard()
        return answer(self, query)

    process.MAX_UNPLANNED_BYTES = 64 << 20
    Host.prepare, Host.answer = prepare_or_hoard, answer_or_hoard  # type: ignore[method-assign]
    return process.main()


if __name__ == "__main__":
    os._exit(main())
