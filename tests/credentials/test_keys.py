"""The key ring and the clients' file: tokens, their holders and scopes, and the limits."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from edgeagent import state_files
from edgeagent.credentials import keys
from edgeagent.credentials.keys import (
    CLIENTS_FILE,
    MAX_CLIENTS,
    NO_KEYS,
    OWNER,
    Client,
    KeyRing,
    KeyStatus,
    Scope,
    add_browser,
    add_client,
    check_files,
    clients,
    digest,
    ensure_token,
    remove_client,
    rotate_token,
)
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import TOKEN_FILE, write_private
from edgeagent.state_files import changing
from edgeagent.types import RouteMode
from tests.fakes import FakeClock
from tests.patience import patient

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")


def key_status(ring: KeyRing, *tokens: str) -> KeyStatus:
    return ring.judge([token.encode() for token in tokens]).status


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patient(20)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_tokens_have_256_random_bits_and_a_prefix(tmp_path: Path) -> None:
    tokens = {rotate_token(tmp_path) for _ in range(20)} | {add_client(tmp_path, "a", [Scope.INFER])}
    assert len(tokens) == 21
    # 32 bytes in base64 without padding.
    assert all(re.fullmatch(r"edge_[A-Za-z0-9_-]{43}", token) for token in tokens)


def test_the_owners_token_is_made_once(tmp_path: Path) -> None:
    token = ensure_token(tmp_path)
    assert ensure_token(tmp_path) == token == (tmp_path / TOKEN_FILE).read_text().strip()
    assert rotate_token(tmp_path) != token


def test_what_keys_are_worth(tmp_path: Path) -> None:
    mine, ring = ensure_token(tmp_path), KeyRing(tmp_path)
    theirs = add_client(tmp_path, "kiosk", [Scope.INFER])
    assert ring.judge([]) == NO_KEYS
    owner, client = ring.judge([mine.encode()]), ring.judge([theirs.encode()])
    assert (owner.status, owner.client, owner.digest) == (KeyStatus.KNOWN, OWNER, digest(mine.encode()))
    assert (client.status, client.client) == (KeyStatus.KNOWN, Client("kiosk", frozenset({Scope.INFER})))
    assert key_status(ring, "sk-anything") is KeyStatus.FOREIGN
    assert key_status(ring, "edge_made_up") is KeyStatus.UNKNOWN
    assert key_status(ring, mine, "sk-anything") is key_status(ring, "sk-anything", mine) is KeyStatus.SEVERAL
    assert key_status(ring, "edge_made_up", "sk-anything") is KeyStatus.SEVERAL
    assert key_status(ring, "sk-one", "sk-two") is KeyStatus.FOREIGN
    assert ring.holder(digest(theirs.encode())) == client.client
    assert ring.holder(digest(b"edge_made_up")) is None


def test_a_former_token_without_the_prefix_is_unknown_and_no_strangers_key(tmp_path: Path) -> None:
    write_private(tmp_path / TOKEN_FILE, b"x" * 43)
    ring = KeyRing(tmp_path)
    assert key_status(ring, "x" * 43) is KeyStatus.KNOWN
    rotate_token(tmp_path)
    assert key_status(ring, "x" * 43) is KeyStatus.UNKNOWN
    assert key_status(ring, "x" * 42) is KeyStatus.FOREIGN


def test_former_tokens_are_kept_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_CLIENTS", 1)
    ring, former = KeyRing(tmp_path), ["x" * 43, "y" * 43, "z" * 43]
    for token in [*former, "w" * 43]:
        write_private(tmp_path / TOKEN_FILE, token.encode())
        assert key_status(ring, token) is KeyStatus.KNOWN
    unknown, foreign = KeyStatus.UNKNOWN, KeyStatus.FOREIGN
    assert [key_status(ring, token) for token in former] == [unknown, unknown, foreign]


def test_a_change_counts_once_and_nothing_else_does(tmp_path: Path) -> None:
    ensure_token(tmp_path)
    ring = KeyRing(tmp_path)
    seen = [ring.revision, ring.revision]
    add_client(tmp_path, "kiosk", [Scope.INFER])
    seen += [ring.revision, ring.revision]
    (tmp_path / CLIENTS_FILE).touch()
    seen.append(ring.revision)
    remove_client(tmp_path, "kiosk")
    seen.append(ring.revision)
    assert seen == [1, 1, 2, 2, 2, 3]


def test_trouble_is_told_once_and_so_is_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    token, ring = ensure_token(tmp_path), KeyRing(tmp_path)
    assert ring.trouble == ""
    write_private(tmp_path / CLIENTS_FILE, b"null")
    with caplog.at_level(logging.WARNING):
        assert CLIENTS_FILE in ring.trouble
        assert [key_status(ring, token) for _ in range(3)] == [KeyStatus.UNUSABLE] * 3
        assert str(tmp_path) in ring.trouble
        reason = ring.judge([token.encode()]).reason
        assert str(tmp_path) not in reason and CLIENTS_FILE in reason
        assert key_status(ring, "sk-anything") is KeyStatus.FOREIGN
        (tmp_path / CLIENTS_FILE).unlink()
        assert [key_status(ring, token) for _ in range(3)] == [KeyStatus.KNOWN] * 3
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "every token is refused",
        "tokens are accepted again",
    ]


def test_clients_are_added_replaced_and_removed(tmp_path: Path) -> None:
    first = add_client(tmp_path, "kiosk", [Scope.INFER])
    add_client(tmp_path, "screen", [Scope.MODELS, Scope.ADMIN])
    second = add_client(tmp_path, "kiosk", [Scope.MODELS])
    ring = KeyRing(tmp_path)
    assert [key_status(ring, token) for token in (first, second)] == [KeyStatus.UNKNOWN, KeyStatus.KNOWN]
    assert clients(tmp_path) == [
        Client("screen", frozenset({Scope.MODELS, Scope.ADMIN})),
        Client("kiosk", frozenset({Scope.MODELS})),
    ]
    rows = json.loads((tmp_path / CLIENTS_FILE).read_text())["clients"]
    assert [row.keys() for row in rows] == [{"name", "scopes", "sha256"}] * 2
    assert rows[1]["sha256"] == digest(second.encode()).hex() and second not in (tmp_path / CLIENTS_FILE).read_text()
    remove_client(tmp_path, "screen")
    assert [client.name for client in clients(tmp_path)] == ["kiosk"]
    with pytest.raises(ConfigError, match="no client is named 'screen'; known clients: kiosk"):
        remove_client(tmp_path, "screen")


async def test_a_removed_token_ends_within_the_same_iteration_of_the_event_loop(tmp_path: Path) -> None:
    token, ring = add_client(tmp_path, "kiosk", [Scope.INFER]), KeyRing(tmp_path)
    assert key_status(ring, token) is KeyStatus.KNOWN
    before = ring.revision
    remove_client(tmp_path, "kiosk")
    assert ring.holder(digest(token.encode())) is None
    assert key_status(ring, token) is KeyStatus.UNKNOWN
    assert ring.revision != before


def test_a_route_is_kept_with_the_token_and_its_change_is_a_change(tmp_path: Path) -> None:
    token, ring = add_client(tmp_path, "kiosk", [Scope.INFER], RouteMode.LOCAL_ONLY), KeyRing(tmp_path)
    token_digest = digest(token.encode())
    assert clients(tmp_path) == [Client("kiosk", frozenset({Scope.INFER}), RouteMode.LOCAL_ONLY)]
    before = ring.revision
    assert ring.holder(token_digest) == clients(tmp_path)[0]
    path = tmp_path / CLIENTS_FILE
    write_private(path, path.read_bytes().replace(b"local_only", b"prefer_local"))
    assert ring.holder(token_digest) == Client("kiosk", frozenset({Scope.INFER}), RouteMode.PREFER_LOCAL)
    assert ring.revision != before


@pytest.mark.parametrize("route", [b'"anywhere"', b"null", b"1"])
def test_a_token_with_a_route_that_is_not_known_opens_nothing(route: bytes, tmp_path: Path) -> None:
    token, ring = add_client(tmp_path, "kiosk", [Scope.INFER], RouteMode.LOCAL_ONLY), KeyRing(tmp_path)
    path = tmp_path / CLIENTS_FILE
    write_private(path, path.read_bytes().replace(b'"local_only"', route))
    assert key_status(ring, token) is KeyStatus.UNUSABLE


@pytest.mark.parametrize("day", ["9999-12-31", "soon"])
def test_a_browser_used_on_a_day_that_cannot_be_opens_nothing(day: str, tmp_path: Path) -> None:
    token, ring = add_browser(tmp_path, [Scope.INFER]), KeyRing(tmp_path)
    rows = json.loads((tmp_path / CLIENTS_FILE).read_bytes())
    rows["clients"][0]["used_on"] = day
    write_private(tmp_path / CLIENTS_FILE, json.dumps(rows).encode())
    assert key_status(ring, token) is KeyStatus.UNUSABLE


def test_a_browser_is_the_owner_with_a_token_of_its_own(tmp_path: Path) -> None:
    token, ring = add_browser(tmp_path, [Scope.INFER, Scope.ADMIN]), KeyRing(tmp_path)
    [browser] = clients(tmp_path)
    assert ring.judge([token.encode()]).client == browser
    assert (browser.name, browser.scopes) == (OWNER.name, frozenset({Scope.INFER, Scope.ADMIN}))
    assert re.fullmatch("browser-[0-9a-f]{8}", browser.label)
    again = add_browser(tmp_path, [Scope.INFER], browser.label)
    assert [key_status(ring, each) for each in (token, again)] == [KeyStatus.UNKNOWN, KeyStatus.KNOWN]
    assert [(each.label, each.scopes) for each in clients(tmp_path)] == [(browser.label, frozenset({Scope.INFER}))]
    add_browser(tmp_path, [Scope.INFER])
    assert len(clients(tmp_path)) == 2
    remove_client(tmp_path, browser.label)
    assert key_status(ring, again) is KeyStatus.UNKNOWN


def test_a_browser_s_token_expires_if_it_is_not_used(tmp_path: Path) -> None:
    """Each day of use is written once, by a thread; a token without a day of use is renewed too."""
    days = [datetime.now(UTC).date()]
    token, ring = add_browser(tmp_path, [Scope.INFER]), KeyRing(tmp_path, lambda: days[-1])

    def used_on() -> date | None:
        return clients(tmp_path)[0].used_on

    def use(after_days: int) -> KeyStatus:
        days.append(days[-1] + timedelta(after_days))
        return key_status(ring, token)

    assert use(0) is KeyStatus.KNOWN and used_on() == days[0]
    for after_days in (29, 30):
        revision = ring.revision
        assert use(after_days) is KeyStatus.KNOWN
        eventually(lambda: used_on() == days[-1])
        assert key_status(ring, token) is KeyStatus.KNOWN and ring.revision == revision, "a use ends no open request"
    assert clients(tmp_path)[0].expires_on == days[-1] + timedelta(31)
    assert use(31) is KeyStatus.UNKNOWN
    assert use(-31) is KeyStatus.KNOWN, "the clock was wrong for a while"
    path = tmp_path / "clients.json"
    rows = json.loads(path.read_text())
    del rows["clients"][0]["used_on"]
    path.write_text(json.dumps(rows))
    assert use(400) is KeyStatus.KNOWN
    eventually(lambda: used_on() == days[-1])


def test_tokens_of_clients_do_not_expire_and_expired_ones_make_room(tmp_path: Path) -> None:
    token, ring = add_client(tmp_path, "kiosk", [Scope.INFER]), KeyRing(tmp_path, lambda: date(2100, 1, 1))
    assert key_status(ring, token) is KeyStatus.KNOWN and clients(tmp_path)[0].expires_on is None
    browser = add_browser(tmp_path, [Scope.INFER])
    assert key_status(ring, browser) is KeyStatus.UNKNOWN
    path = tmp_path / "clients.json"
    path.write_text(path.read_text().replace(str(datetime.now(UTC).date()), "2001-01-01"))
    add_client(tmp_path, "screen", [Scope.INFER])
    assert [client.label for client in clients(tmp_path)] == ["kiosk", "screen"]


def test_changes_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes must not overlap: an addition could otherwise write back a client that was just removed."""
    add_client(tmp_path, "removed", [Scope.INFER])
    with ThreadPoolExecutor() as pool:
        with changing(tmp_path / "clients.lock", "edgeagent token"):
            adding = pool.submit(add_client, tmp_path, "added", [Scope.INFER])
            assert not wait([adding], timeout=0.05).done
            keys._write_clients(tmp_path, [])
        adding.result()
    assert [client.name for client in clients(tmp_path)] == ["added"]
    monkeypatch.setattr(state_files, "_LOCK_TIMEOUT_S", 0.0)
    with (
        changing(tmp_path / "clients.lock", "edgeagent token"),
        pytest.raises(ConfigError, match="another `edgeagent token`"),
    ):
        remove_client(tmp_path, "added")


def test_removing_a_client_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="known clients: none"):
        remove_client(tmp_path, "kiosk")
    with pytest.raises(ConfigError, match="known clients: none"):
        remove_client(tmp_path / "none", "kiosk")


@pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "a/b", "é", "a" * 65, "a\n"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 64"):
        add_client(tmp_path, name, [Scope.INFER])
    assert clients(tmp_path) == []


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "a" * 64])
def test_names_that_are_some(tmp_path: Path, name: str) -> None:
    add_client(tmp_path, name, [])
    assert [client.name for client in clients(tmp_path)] == [name]


def test_a_thousand_clients_and_no_more(tmp_path: Path) -> None:
    assert MAX_CLIENTS == 1000
    longest = [
        {"name": f"{number:064}", "scopes": sorted(Scope), "sha256": "0" * 64} for number in range(MAX_CLIENTS - 1)
    ]
    write_private(tmp_path / CLIENTS_FILE, json.dumps({"clients": longest}, indent=1).encode())
    add_client(tmp_path, "last", [Scope.INFER])
    assert len(clients(tmp_path)) == MAX_CLIENTS
    with pytest.raises(ConfigError, match="there are 1000 clients"):
        add_client(tmp_path, "more", [Scope.INFER])
    # An existing client may still get a new token.
    add_client(tmp_path, "last", [Scope.ADMIN])
    assert len(clients(tmp_path)) == MAX_CLIENTS


def test_a_token_that_was_removed_has_no_holder_whoever_asks_first(tmp_path: Path) -> None:
    token_digest, ring = digest(add_client(tmp_path, "kiosk", [Scope.INFER]).encode()), KeyRing(tmp_path)
    assert ring.holder(token_digest) == Client("kiosk", frozenset({Scope.INFER}))
    remove_client(tmp_path, "kiosk")
    assert ring.holder(token_digest) is None


@POSIX
@pytest.mark.parametrize("name", [TOKEN_FILE, CLIENTS_FILE, "."])
def test_a_file_that_others_can_change_is_told(tmp_path: Path, name: str) -> None:
    check_files(tmp_path)
    ensure_token(tmp_path)
    add_client(tmp_path, "kiosk", [Scope.INFER])
    check_files(tmp_path)
    (tmp_path / name).chmod(0o777)
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        check_files(tmp_path)


@POSIX
def test_what_is_made_here_is_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ensure_token(tmp_path)
        add_client(tmp_path, "kiosk", [Scope.INFER])
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys((TOKEN_FILE, CLIENTS_FILE, "clients.lock"), 0o600)


def test_a_folder_in_the_place_of_the_lock_is_told(tmp_path: Path) -> None:
    (tmp_path / "clients.lock").mkdir()
    with pytest.raises(ConfigError, match=r"cannot use .*clients\.lock"):
        add_client(tmp_path, "kiosk", [Scope.INFER])


def test_another_change_is_waited_for_with_pauses_and_no_longer_than_ten_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    num_looks = 0

    def look() -> float:
        nonlocal num_looks
        num_looks += 1
        assert num_looks < 5000, "it waits without a pause"
        return clock()

    began_s = clock()
    monkeypatch.setattr(time, "monotonic", look)

    def pause(seconds: float) -> None:
        assert seconds < 0.1, "its end is noticed soon"
        clock.advance(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    with (
        changing(tmp_path / "clients.lock", "edgeagent token"),
        pytest.raises(ConfigError, match="another `edgeagent token`"),
    ):
        remove_client(tmp_path, "kiosk")
    assert clock() - began_s == pytest.approx(10.0, abs=0.1)


def test_no_token_has_the_name_of_those_who_need_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose another name"):
        add_client(tmp_path, "wyoming", [Scope.INFER])
    assert clients(tmp_path) == []
