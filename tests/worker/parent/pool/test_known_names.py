"""The names that requests used: bounded, and looked up again once the owner has changed names."""

from __future__ import annotations

import pytest

from edgeagent.worker.parent.pool import pool
from edgeagent.worker.parent.pool.pool import KnownNames


def test_names_stand_for_models_until_these_leave_or_names_change() -> None:
    stamps = [1]
    names = KnownNames(lambda: stamps[-1])
    names.fix(("", "default"), "mini")
    names.add("mx", "m1")
    names.add("my", "m2")
    names.refresh()
    assert [names[name] for name in ("", "default", "mx", "my", "other")] == ["mini", "mini", "m1", "m2", "other"]
    names.forget("m1")
    assert (names["mx"], names["my"]) == ("mx", "m2")
    stamps.append(2)
    names.refresh()
    assert (names["my"], names["default"]) == ("my", "mini")


def test_clients_cannot_make_it_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_MAX_NAMES", 3)
    names = KnownNames(lambda: None)
    for number in range(10):
        names.add(f"m{number}", "m")
        assert names[f"m{number}"] == "m"
    assert len(names._found) <= 3
