"""The HTTP session for the hub. Nothing is sent with it that is not in the egress ledger before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from edgeagent.egress.ledger import own_requests

if TYPE_CHECKING:
    import httpx2

_BEGIN: ContextVar[Callable[[str], None] | None] = ContextVar("_BEGIN", default=None)


@contextmanager
def recorded(state_dir: Path, reason: str, model: str = "") -> Iterator[httpx2.Client]:
    """Yield huggingface_hub's session. Once it was yielded, it sends nothing outside of such a context.

    Each host that it asks, also after a redirect, gets a row in the ledger before the first request. `reason` is one of
    egress.OWN_REASONS. Its requests raise StoreError if the row cannot be written; then nothing is sent.
    """
    from huggingface_hub import get_session

    session = get_session()
    if _record not in session.event_hooks["request"]:
        session.event_hooks["request"].append(_record)
    with own_requests(state_dir, reason, model) as begin:
        before = _BEGIN.set(begin)
        try:
            yield session
        finally:
            _BEGIN.reset(before)


def _record(request: httpx2.Request) -> None:
    begin = _BEGIN.get()
    assert begin is not None, "`recorded` opens the ledger first"
    begin(str(request.url))
