"""One-time links: one use, a bounded life and a bounded number."""

from __future__ import annotations

from edgeagent.credentials.keys import Scope
from edgeagent.credentials.links import LIFE_S, MAX_LINKS, Links
from tests.fakes import FakeClock

INFER = frozenset({Scope.INFER})


def test_a_link_is_used_once() -> None:
    links: Links[frozenset[Scope]] = Links(FakeClock())
    first, second = links.add(INFER), links.add(frozenset(Scope))
    assert first != second and len(first) == 43
    assert links.use("wrong") is links.use("") is None
    assert (links.use(first), links.use(first)) == (INFER, None)
    assert links.use(second) == frozenset(Scope)


def test_a_link_ends_by_itself() -> None:
    clock = FakeClock()
    links: Links[frozenset[Scope]] = Links(clock)
    early = links.add(INFER)
    clock.now_s += LIFE_S / 2
    late = links.add(INFER)
    clock.now_s += LIFE_S / 2
    assert (links.use(early), links.use(late)) == (None, INFER)


def test_too_many_links_end_the_oldest() -> None:
    links: Links[frozenset[Scope]] = Links(FakeClock())
    made = [links.add(INFER) for _ in range(MAX_LINKS + 1)]
    assert [links.use(secret) for secret in made] == [None] + [INFER] * MAX_LINKS
