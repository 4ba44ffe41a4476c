"""Stored responses: found after a restart, shared along their chains, bounded, private, and gone when deleted."""

from __future__ import annotations

import gc
import os
import random
import sqlite3
import stat
import tracemalloc
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgeagent.api.context import ITEM_FORMAT
from edgeagent.conversation.database import ResponseDatabase
from edgeagent.conversation.history import MAX_CONVERSATION_BYTES, Limits, StoredResponse
from edgeagent.conversation.items import Item, MessageItem
from edgeagent.errors import InvalidRequest
from edgeagent.sqlite_files import DamagedError
from edgeagent.types import RouteMode
from tests.integrity import check_integrity
from tests.media import BLUE, RED, media, png


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def database(path: Path | None = None, clock: Clock | None = None, **limits: float) -> ResponseDatabase:
    return ResponseDatabase(path, Limits(**limits), clock or Clock(), ITEM_FORMAT)  # type: ignore[arg-type]


def said(name: str, text: str = "") -> MessageItem:
    return MessageItem(f"msg_{name}", "user", text or name)


def noise(seed: int, num_chars: int) -> str:
    """Return text that compresses poorly."""
    return random.Random(seed).randbytes(num_chars // 2).hex()


def chain(names: str, partition: str = "") -> list[StoredResponse]:
    """Return responses that continue each other; each has an input and an output."""
    made: list[StoredResponse] = []
    for name in names:
        inherited: tuple[Item, ...] = made[-1].items if made else ()
        previous_id = made[-1].id if made else None
        context, output = (*inherited, said(f"{name}_in")), (said(f"{name}_out"),)
        made.append(StoredResponse(name, context, output, len(inherited), previous_id, partition))
    return made


def add(store: ResponseDatabase, *responses: StoredResponse) -> None:
    for response in responses:
        store.add(response, b'{"id":"%s"}' % response.id.encode())
        check_integrity(store)


def kept(store: ResponseDatabase, names: str) -> str:
    """Return which of these responses are stored, without changing their last use."""
    return "".join(name for name in names if store.body(name, ""))


def test_a_chain_is_read_as_it_was_written(tmp_path: Path) -> None:
    responses = [*chain("ab"), replace(chain("c")[0], is_failed=True)]
    store = database(tmp_path / "r")
    add(store, *responses)
    assert [store.get(name, "") for name in "abc"] == responses
    assert store.body("b", "") == b'{"id":"b"}'
    assert store.get("x", "") is None
    store.close()


def test_it_is_there_after_a_restart_and_after_a_crash(tmp_path: Path) -> None:
    first, responses = database(tmp_path / "r"), chain("ab")
    add(first, *responses)
    # The database is not closed: its write-ahead log must be enough.
    second = database(tmp_path / "r")
    assert second.get("b", "") == responses[1]
    first.close()
    second.close()


def test_a_chain_takes_little_more_than_what_was_said(tmp_path: Path) -> None:
    store, responses = database(tmp_path / "r"), chain("abcdefgh")
    text = noise(1, 400_000)
    add(store, *[replace_first(response, text) for response in responses])
    store.close()
    assert (tmp_path / "r").stat().st_size < len(text)


def replace_first(response: StoredResponse, text: str) -> StoredResponse:
    """Return the response as part of a conversation that began with a long text."""
    context = (said("long", text), *response.context[1:])
    return StoredResponse(
        response.id, context, response.output, response.num_inherited, response.previous_id, response.partition
    )


def test_the_least_recently_used_go_first() -> None:
    store = database(max_responses=2)
    add(store, *(StoredResponse(name, (said(name),), ()) for name in "ab"))
    assert store.get("a", "")
    add(store, StoredResponse("c", (said("c"),), ()))
    assert kept(store, "abc") == "ac"


def test_recency_outlives_a_restart(tmp_path: Path) -> None:
    first = database(tmp_path / "r")
    add(first, *(StoredResponse(name, (said(name),), ()) for name in "abc"))
    assert first.get("a", "")
    first.close()
    second = database(tmp_path / "r", max_responses=2)
    assert kept(second, "abc") == "ac"
    second.close()


def test_a_chain_outlives_the_rows_of_its_beginning() -> None:
    store, responses = database(max_responses=2), chain("abcd")
    add(store, *responses)
    assert kept(store, "abcd") == "cd"
    assert store.get("d", "") == responses[3]


def test_bytes_are_bounded_and_one_too_large_is_kept() -> None:
    store = database(max_bytes=11_000)
    for index, name in enumerate("abc"):
        add(store, StoredResponse(name, (said(name, noise(index, 8000)),), ()))
    assert kept(store, "abc") == "bc"
    add(store, StoredResponse("d", (said("d", noise(9, 50_000)),), ()))
    assert kept(store, "abcd") == "d"


def test_ids_count_as_bytes_too(tmp_path: Path) -> None:
    """Ids are stored uncompressed, in a table of their own."""
    store = database(tmp_path / "r", max_bytes=105_000)
    for name in "abcdefgh":
        ids = [f"{name}_{number}_{'x' * 500}" for number in range(60)]
        add(store, StoredResponse(name, tuple(said(item_id) for item_id in ids), ()))
    assert kept(store, "abcdefgh") == "fgh"
    store.close()
    # Without the ids, which compress well, all eight would fit.
    assert (tmp_path / "r").stat().st_size > 100_000


def test_a_conversation_that_compresses_well_is_read_within_bounds() -> None:
    """A client can store many times what its disk space holds, so a long chain is refused before all of it is read."""
    store, previous = database(), None
    for name in "abcdefghijkl":
        inherited = previous.items if previous else ()
        previous_id = previous.id if previous else None
        previous = StoredResponse(name, (*inherited, said(name, "a" * (6 << 20))), (), len(inherited), previous_id)
        store.add(previous, b"{}")
    assert store.get("b", "") is not None
    tracemalloc.start()
    with pytest.raises(InvalidRequest, match="the conversation is too long"):
        store.get("l", "")
    gc.collect()
    with pytest.raises(InvalidRequest, match="too many or too large responses"):
        store.find_items([f"msg_{name}" for name in "abcdefghijkl"], "")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * MAX_CONVERSATION_BYTES


def test_the_items_that_are_found_are_the_newest_with_their_ids() -> None:
    store = database()
    for number in range(100):
        items = (said("one", f"copy {number}"), said("two", "x"))
        store.add(StoredResponse(f"{number}", items, ()), b"{}")
    found, _ = store.find_items(["msg_one", "msg_one", "msg_two"], "")
    assert found == {"msg_one": said("one", "copy 99"), "msg_two": said("two", "x")}


def test_many_copies_of_many_items_are_read_once() -> None:
    """A client chooses which items its responses share: the content of a response is not read for each of them."""
    store, num_read = database(), 0
    ids = [f"{number}" for number in range(100)]
    for number in range(64):
        items = tuple(said(name) for name in ids)
        store.add(StoredResponse(f"{number}", items, ()), b'{"instructions":"%s"}' % noise(number, 10_000).encode())

    def counting(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal num_read
        num_read += sum(len(value) for value in row if isinstance(value, bytes))
        return row

    store._connection.row_factory = counting
    found, _ = store.find_items([f"msg_{name}" for name in ids], "")
    assert len(found) == len(ids)
    assert 0 < num_read <= store._num_bytes


def test_old_ones_go() -> None:
    clock = Clock()
    store = database(clock=clock, max_age_s=100)
    add(store, StoredResponse("a", (said("a"),), ()))
    clock.now_s += 101
    add(store, StoredResponse("b", (said("b"),), ()))
    assert kept(store, "ab") == "b"


def test_the_same_id_again_replaces() -> None:
    store = database()
    add(store, StoredResponse("a", (said("one"),), ()), StoredResponse("a", (said("two"),), ()))
    found = store.get("a", "")
    assert found is not None
    assert found.context == (said("two"),)


def test_other_partitions_see_nothing_and_can_remove_nothing() -> None:
    store = database()
    add(store, *chain("a", "alice"))
    assert store.get("a", "bob") is None
    assert store.body("a", "bob") is None
    assert store.find_items(["msg_a_in"], "bob") == ({}, None)
    assert not store.remove("a", "bob")
    assert store.find_items(["msg_a_in", "msg_a_out", "msg_x"], "alice")[0].keys() == {"msg_a_in", "msg_a_out"}


@pytest.mark.parametrize(
    ("told", "route"),
    [
        (b'{"mode": "prefer_local"}', RouteMode.PREFER_LOCAL),
        (b'{"mode": null}', None),
        (b"null", None),
        (b'{"mode": "a later daemon\'s"}', RouteMode.LOCAL_ONLY),
        (b'{"mode": 1}', RouteMode.LOCAL_ONLY),
        (b"1", RouteMode.LOCAL_ONLY),
    ],
)
def test_where_a_continuation_may_run_is_kept(told: bytes, route: RouteMode | None) -> None:
    """A value that is not understood keeps the continuation on this machine."""
    store, (response,) = database(), chain("a")
    store.add(response, b'{"id": "a", "edgeagent": %s}' % told)
    found = store.get("a", "")
    assert found is not None and found.route is route
    assert store.find_items(["msg_a_in"], "")[1] is route


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_an_item_of_two_responses_has_the_stricter_route(names: str) -> None:
    store, item = database(), said("one")
    routes = {"a": b'{"mode": "local_only"}', "b": b'{"mode": "prefer_local"}'}
    for name in names:
        store.add(StoredResponse(name, (item,), ()), b'{"id": "%s", "edgeagent": %s}' % (name.encode(), routes[name]))
    assert store.find_items([item.id], "") == ({item.id: item}, RouteMode.LOCAL_ONLY)


def rows(path: Path, statement: str) -> list[Any]:
    """Return the first column of what the file holds, as another program sees it."""
    with closing(sqlite3.connect(path)) as other, other:
        return [row[0] for row in other.execute(statement)]


def partitions(path: Path) -> list[str]:
    """Return the partition of each stored response, least recently used first."""
    return rows(path, "SELECT partition FROM responses ORDER BY used")


def named(names: str, partition: str, text: str = "") -> list[StoredResponse]:
    """Return responses that continue no other response."""
    return [StoredResponse(name, (said(f"{name}_in", text),), (), 0, None, partition) for name in names]


def test_who_stores_much_pushes_out_its_own(tmp_path: Path) -> None:
    store = database(tmp_path / "r", max_responses=6)
    add(store, *named("ab", "quiet"), *named("cdefghijk", "loud"))
    assert [store.body(name, "quiet") is not None for name in "ab"] == [True, True]
    assert [name for name in "cdefghijk" if store.body(name, "loud")] == list("hijk")
    # With a third client, each has exactly its share; the one that stored less loses nothing.
    add(store, *named("lmn", "third"))
    assert sorted(partitions(tmp_path / "r")) == ["loud"] * 2 + ["quiet"] * 2 + ["third"] * 2
    store.close()


def test_bytes_too(tmp_path: Path) -> None:
    store = database(tmp_path / "r", max_bytes=10_000)
    add(store, *named("ab", "quiet"))
    for number, name in enumerate("cdefgh"):
        add(store, *named(name, "loud", noise(number, 6000)))
    assert [store.body(name, "quiet") is not None for name in "ab"] == [True, True]
    # The newest response is never evicted, even if its client uses most of the space.
    add(store, *named("z", "third", noise(9, 30_000)))
    assert partitions(tmp_path / "r") == ["third"]
    store.close()


def test_a_conversation_counts_with_all_that_its_last_response_needs() -> None:
    store = database(max_bytes=22_000)
    add(store, *named("a", "quiet", noise(0, 12_000)))
    for names in ("bcdef", "g"):
        for number, response in enumerate(chain(names, "loud"), start=1):
            add(store, replace(response, context=(*response.context[:-1], said(response.id, noise(number, 4000)))))
    # Evicting the first four frees nothing while the fifth, which continues them, is stored.
    assert store.body("a", "quiet") is not None
    assert [name for name in "bcdefg" if store.body(name, "loud")] == ["g"]


def test_what_is_removed_is_gone_from_the_files_too(tmp_path: Path) -> None:
    store, secret = database(tmp_path / "r"), noise(3, 400)
    store.add(StoredResponse("a", (said("a"),), ()), secret.encode())
    store.add(StoredResponse("b", (said("b"),), ()), b"{}")
    (packed,) = rows(tmp_path / "r", "SELECT body FROM responses WHERE id = 'a'")
    assert any(packed[:64] in path.read_bytes() for path in tmp_path.iterdir())
    assert store.remove("a", "")
    assert not store.remove("a", "")
    assert not any(packed[:64] in path.read_bytes() for path in tmp_path.iterdir())
    check_integrity(store)
    store.close()


def test_a_response_is_removed_even_if_the_log_cannot_be_cut_off(tmp_path: Path) -> None:
    store = database(tmp_path / "r")
    store.add(StoredResponse("a", (said("a"),), ()), b"{}")
    execute = store._execute

    def execute_or_fail(statement: str, *values: object) -> sqlite3.Cursor:
        if "wal_checkpoint" in statement:
            raise sqlite3.OperationalError("database or disk is full")
        return execute(statement, *values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_execute", execute_or_fail)
        assert store.remove("a", "")
    assert store.get("a", "") is None
    store.close()


def test_a_parent_that_is_removed_leaves_its_words_to_its_child() -> None:
    store, (parent, child) = database(), chain("ab")
    add(store, parent, child)
    assert store.remove("a", "")
    assert store.get("a", "") is None
    assert store.find_items(["msg_a_in"], "") == ({}, None)
    assert store.get("b", "") == child
    # A sibling added later stores the parent's items itself.
    sibling = StoredResponse("c", (*parent.items, said("c")), (), len(parent.items), "a")
    add(store, sibling)
    found = store.get("c", "")
    assert found is not None
    assert found.items == sibling.items


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such bits")
def test_the_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.touch(0o644)
    store = database(path)
    add(store, *chain("a"))
    assert len(list(tmp_path.iterdir())) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    store.close()


def test_another_format_is_damage(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "r") as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(DamagedError, match="format"):
        database(tmp_path / "r")


@pytest.mark.parametrize(
    "limits", [{"max_responses": 12}, {"max_responses": 12, "max_bytes": 12_000.0}], ids=["number", "bytes"]
)
def test_random_chains_forks_removals_and_restarts_stay_consistent(tmp_path: Path, limits: dict[str, Any]) -> None:
    rng = random.Random(7)
    store, known = database(tmp_path / "r", **limits), dict[str, StoredResponse]()
    used: list[str] = []  # ids that should be stored, the most recently used last

    def find(response_id: str) -> StoredResponse | None:
        found = store.get(response_id, "")
        assert (found is not None) == (response_id in used), response_id
        if found is not None:
            assert (found.items, found.previous_id) == (known[response_id].items, known[response_id].previous_id)
            used.remove(response_id)
            used.append(response_id)
        return found

    for index in range(150):
        parent = rng.choice([None, *known.values()])
        if parent is not None and find(parent.id) is None:
            parent = None
        inherited = parent.items if parent else ()
        name = str(index)
        context = (*inherited, said(f"{name}_in", noise(index, rng.randrange(10, 2000))))
        made = StoredResponse(name, context, (said(name),), len(inherited), parent.id if parent else None)
        add(store, made)
        known[name] = made
        there = [each for each in (*used, name) if store.body(each, "")]
        # The evicted ones were used least recently, and no more than necessary were evicted.
        assert there == [*used, name][-len(there) :] and len(there) <= 12
        assert len(there) == min(12, len(used) + 1) or "max_bytes" in limits
        used = there
        if rng.random() < 0.2:
            removed = rng.choice(list(known))
            assert store.remove(removed, "") == (removed in used)
            used = [each for each in used if each != removed]
        if rng.random() < 0.05:
            store.close()
            store = database(tmp_path / "r", **limits)
        for response_id in rng.sample(list(known), min(5, len(known))):
            find(response_id)
    check_integrity(store)
    store.close()


def test_conversations_are_listed_by_their_last_response() -> None:
    clock = Clock()
    store = database(clock=clock)
    first, second = chain("ab")
    branch = replace(second, id="c", output=(said("c_out"),))
    add(store, first, *chain("x", "kiosk"))
    clock.now_s += 10
    add(store, *chain("y"), second)
    clock.now_s += 10
    add(store, branch)
    found = store.conversations("", 10)
    assert [(each.id, each.title, each.num_responses) for each in found] == [("a", "a_in", 3), ("y", "y_in", 1)]
    assert (found[0].created_s, found[0].last_s) == (clock.now_s - 20, clock.now_s)
    assert [each.id for each in store.conversations("", 1)] == ["a"]
    assert [each.id for each in store.conversations("kiosk", 10)] == ["x"]
    assert store.conversations("other", 10) == []


def test_a_conversation_has_its_branches_in_the_order_of_time() -> None:
    store = database()
    first, second = chain("ab")
    add(store, first, second, replace(second, id="c"), *chain("y"))
    turns = store.conversation("a", "")
    assert [turn.body for turn in turns] == [b'{"id":"%s"}' % name for name in (b"a", b"b", b"c")]
    assert [[item.id for item in turn.input] for turn in turns] == [["msg_a_in"], ["msg_b_in"], ["msg_b_in"]]
    store.remove("a", "")
    # What is left begins with what it continued.
    assert [item.id for item in store.conversation("b", "")[0].input] == ["msg_a_in", "msg_a_out", "msg_b_in"]
    assert store.conversation("a", "") == store.conversation("b", "kiosk") == []


def test_the_branches_of_a_conversation_are_found_without_a_look_at_the_others() -> None:
    def num_steps(num_others: int) -> int:
        store, steps = database(), list[int]()
        for response in (*chain("abcdefgh"), *(replace(chain("y")[0], id=f"y{n}") for n in range(num_others))):
            store.add(response, b"{}")
        store._connection.set_progress_handler(lambda: steps.append(1), 10)
        assert len(store.conversation("a", "")) == 8
        return len(steps)

    assert num_steps(400) < 2 * num_steps(0)


def test_a_conversation_is_one_also_if_the_clock_was_set_back() -> None:
    clock = Clock()
    store = database(None, clock)
    for response in chain("abc"):
        add(store, response)
        clock.now_s -= 10
    [found] = store.conversations("", 10)
    assert (found.id, found.num_responses) == ("a", 3)
    assert [turn.body for turn in store.conversation("a", "")] == [b'{"id":"a"}', b'{"id":"b"}', b'{"id":"c"}']


def test_a_list_reads_no_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    store = database()
    add(store, *chain("ab"), *chain("c"))
    monkeypatch.setattr(store, "_items_of", lambda *_, **__: pytest.fail("it was read"))
    assert [each.title for each in store.conversations("", 10)] == ["a_in", "c_in"]


def test_the_titles_of_an_older_file_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = database(tmp_path / "r")
    too_large = replace(chain("a")[0], context=(said("a", "\0" * (2 * MAX_CONVERSATION_BYTES // 6 + 1)),))
    add(store, too_large, *chain("b"))
    store.close()
    rows(tmp_path / "r", "ALTER TABLE segments DROP COLUMN title")
    store = database(tmp_path / "r")
    for _ in range(2):
        assert [(each.id, each.title) for each in store.conversations("", 10)] == [("a", ""), ("b", "b_in")]
        monkeypatch.setattr(store, "_items_of", lambda *_, **__: pytest.fail("it was read again"))


def test_a_title_of_an_older_file_can_be_read_from_a_full_disk(tmp_path: Path) -> None:
    store = database(tmp_path / "r")
    add(store, *chain("a"))
    store._execute("UPDATE segments SET title = NULL")
    store._execute("PRAGMA query_only = ON")
    assert store.conversations("", 10)[0].title == "a_in"


def test_a_title_is_not_that_of_a_deleted_conversation() -> None:
    store = database()
    add(store, *chain("a"))
    assert [each.title for each in store.conversations("", 10)] == ["a_in"]
    store.remove("a", "")
    add(store, *chain("b"))
    assert [each.title for each in store.conversations("", 10)] == ["b_in"]


def shown(name: str, *files: bytes, partition: str = "") -> StoredResponse:
    """Return a response whose input has these images."""
    item = MessageItem(f"msg_{name}", "user", "What is this?", media=tuple((5, media(file)) for file in files))
    return StoredResponse(name, (item,), (said(f"{name}_out"),), partition=partition)


def num_media(path: Path) -> int:
    return len(rows(path, "SELECT digest FROM media"))


def test_an_image_is_kept_once_for_each_client(tmp_path: Path) -> None:
    store = database(tmp_path / "r")
    add(store, shown("a", RED, BLUE), shown("b", RED), shown("c", RED, partition="other"))
    assert num_media(tmp_path / "r") == 3
    assert store.get("a", "") == shown("a", RED, BLUE)
    assert store.get("c", "other") == shown("c", RED, partition="other")
    store.close()
    again = database(tmp_path / "r")
    check_integrity(again)
    assert again.get("b", "") == shown("b", RED)
    for name, partition, left in (("a", "", 2), ("b", "", 1), ("c", "other", 0)):
        assert again.remove(name, partition)
        check_integrity(again)
        assert num_media(tmp_path / "r") == left
    again.close()
    assert RED not in (tmp_path / "r").read_bytes(), "deleted content is overwritten"


def test_images_count_against_the_limit(tmp_path: Path) -> None:
    store = database(tmp_path / "r", max_bytes=100_000)
    add(store, *(shown(name, png(100, 100, seed=name.encode())) for name in "abcd"))
    assert kept(store, "abcd") == "bcd"
    assert num_media(tmp_path / "r") == 3
    store.close()


def test_images_count_against_what_may_be_read_at_once() -> None:
    store = database(max_bytes=1 << 30)
    large = b"\x89PNG\r\n\x1a\n" + bytes(MAX_CONVERSATION_BYTES)
    add(store, shown("a", large, large + b"1"))
    with pytest.raises(InvalidRequest, match="too long"):
        store.get("a", "")
    assert store.conversations("", 9)[0].title == "What is this?", "the title needs no image"


def test_a_conversation_that_begins_with_an_image_has_a_title() -> None:
    store = database()
    item = MessageItem("msg_a", "user", "", media=((0, media(RED)),))
    add(store, StoredResponse("a", (item,), ()))
    assert store.conversations("", 9)[0].title == "[image]"


def test_what_an_older_version_left_is_cleared_away(tmp_path: Path) -> None:
    """It does not know of images, and deletes only the response."""
    store = database(tmp_path / "r")
    add(store, shown("a", RED), shown("b", BLUE))
    store.close()
    rows(tmp_path / "r", "DELETE FROM segments WHERE id = (SELECT segment FROM responses WHERE id = 'a')")
    rows(tmp_path / "r", "DELETE FROM responses WHERE id = 'a'")
    again = database(tmp_path / "r")
    check_integrity(again)
    assert num_media(tmp_path / "r") == 1 and again.get("b", "") == shown("b", BLUE)
