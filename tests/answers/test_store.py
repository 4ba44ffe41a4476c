"""The embedded store: bounds, age, damage, and a process that is killed while it writes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from edgeagent.answers.answer import Answer
from edgeagent.answers.database import AnswerDatabase
from edgeagent.answers.seal import Seal
from edgeagent.answers.store import Breaker, EmbeddedStore, TooSlow, within
from edgeagent.config import AnswersConfig
from edgeagent.errors import StoreError
from edgeagent.types import Finished, FinishReason, Started, Step, TextDelta, Timings, Usage
from tests.patience import patient

SEAL = Seal(bytes(32))


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def key_of(number: int) -> bytes:
    return number.to_bytes(32, "big")


def files_of(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def text_of(number: int) -> str:
    """Return the answer to a question: long, not compressible, and known from its number."""
    return random.Random(number).randbytes(1500).hex()


def answer(number: int, created_s: float = 1_000_000.0, partition: str = "") -> Answer:
    step = Step((TextDelta(text_of(number)),), (number,))
    end = Finished(FinishReason.STOP, Usage(1, 0, 1), Timings())
    return Answer(f"question {number}", "tiny", partition, created_s, Started(1, 0), (step,), end)


@asynccontextmanager
async def opened(
    path: Path | None, clock: Clock | None = None, seal: Seal = SEAL, **options: str | int
) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(path, seal, AnswersConfig(exact=True, **options), clock or Clock(), patient(10))  # type: ignore[arg-type]
    await store.start()
    try:
        yield store
    finally:
        await store.close()


async def test_answers_are_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite3"
    async with opened(path) as store:
        store.put(key_of(1), answer(1))
        assert await store.get(key_of(1)) == answer(1)
    async with opened(path) as store:
        assert await store.get(key_of(1)) == answer(1) and store.num_answers == 1
        assert (await store.listed(None, 10))[0].num_uses == 2
    if os.name == "posix":
        assert all(file.stat().st_mode & 0o077 == 0 for file in files_of(tmp_path))
    content = path.read_bytes()
    assert b"question" not in content and text_of(1)[:40].encode() not in content, "it is encrypted"


async def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.sqlite3", max_bytes=20_000) as store:
        for number in range(1, 21):
            store.put(key_of(number), answer(number))
            assert await store.get(key_of(1)) is not None, "it is used all the time"
        listed = await store.listed(None, 100)
        assert store.num_bytes is not None and store.num_bytes <= 20_000
        assert store.num_answers == len(listed) < 20
        assert {"question 1", "question 20"} <= {each.question for each in listed}
        assert await store.get(key_of(2)) is None


async def test_an_old_answer_is_not_found(tmp_path: Path) -> None:
    clock = Clock()
    path = tmp_path / "answers.sqlite3"
    async with opened(path, clock, max_age="1h") as store:
        store.put(key_of(1), answer(1))
        clock.now_s += 3599
        assert await store.get(key_of(1)) is not None
        clock.now_s += 2
        assert await store.get(key_of(1)) is None and store.num_answers == 0
        store.put(key_of(2), answer(2))
    async with opened(path, clock, max_age="1h") as store:
        assert store.num_answers == 0, "it was removed at the start"


async def test_an_answer_of_a_clock_that_was_far_ahead_is_not_given(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path / "answers.sqlite3", clock, max_age="1h") as store:
        store.put(key_of(1), answer(1, created_s=clock.now_s + 90))
        store.put(key_of(2), answer(2, created_s=clock.now_s + 86_400))
        assert await store.get(key_of(1)) is not None, "clocks differ a little"
        assert await store.get(key_of(2)) is None and store.num_answers == 1


async def test_uses_that_wait_are_few_also_if_none_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def note_uses(_: AnswerDatabase, uses: Collection[bytes]) -> None:
        written.append(len(uses))
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(AnswerDatabase, "note_uses", note_uses)
    async with opened(tmp_path / "answers.sqlite3") as store:
        store.put(key_of(1), answer(1))
        for _ in range(100):
            store.note_uses([key_of(1)] * 32)
            assert await store.get(key_of(1)) is not None
    assert written and max(written) < 100


async def test_a_full_disk_is_told_once_while_answers_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def put(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with opened(tmp_path / "answers.sqlite3") as store:
        store.put(key_of(1), answer(1))
        assert await store.get(key_of(1)) is not None
        with monkeypatch.context() as full:
            full.setattr(AnswerDatabase, "put", put)
            for number in range(2, 6):
                store.put(key_of(number), answer(number))
                assert await store.get(key_of(1)) is not None and await store.get(key_of(number)) is None
                assert store.trouble == "database or disk is full"
        assert len(caplog.records) == 1
        store.put(key_of(2), answer(2))
        assert await store.get(key_of(2)) is not None and store.trouble is None


async def test_an_answer_that_is_too_large_is_not_kept() -> None:
    async with opened(None) as store:
        large = Step((TextDelta("x" * (2 << 20)),))
        store.put(key_of(1), Answer("", "tiny", "", 1_000_000.0, Started(1, 0), (large,), answer(1).end))
        assert await store.get(key_of(1)) is None


async def test_a_changed_row_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite3"
    async with opened(path) as store:
        for number in (1, 2, 3):
            store.put(key_of(number), answer(number))
    with closing(sqlite3.connect(path)) as database, database:
        sealed = bytearray(database.execute("SELECT sealed FROM answers WHERE key = ?", [key_of(1)]).fetchone()[0])
        sealed[40] ^= 1
        database.execute("UPDATE answers SET sealed = ? WHERE key = ?", [bytes(sealed), key_of(1)])
        # Another answer's content in its place does not open either.
        other = database.execute("SELECT sealed FROM answers WHERE key = ?", [key_of(3)]).fetchone()[0]
        database.execute("UPDATE answers SET sealed = ? WHERE key = ?", [other, key_of(2)])
    async with opened(path) as store:
        assert [await store.get(key_of(number)) for number in (1, 2)] == [None, None]
        assert await store.get(key_of(3)) == answer(3) and store.num_answers == 1


async def test_another_installations_file_has_no_answers(tmp_path: Path) -> None:
    async with opened(tmp_path / "answers.sqlite3") as store:
        store.put(key_of(1), answer(1))
    async with opened(tmp_path / "answers.sqlite3", seal=Seal(b"1" * 32)) as store:
        assert await store.get(key_of(1)) is None


@pytest.mark.parametrize("what", ["rubbish", "half", "empty", "other version"])
async def test_a_damaged_file_is_set_aside(tmp_path: Path, what: str) -> None:
    path = tmp_path / "answers.sqlite3"
    async with opened(path) as store:
        for number in range(40):
            store.put(key_of(number), answer(number))
    content = path.read_bytes()
    if what == "other version":
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("PRAGMA user_version = 99")
    else:
        path.write_bytes({"rubbish": b"no database" * 500, "half": content[: len(content) // 2], "empty": b""}[what])
    async with opened(path) as store:
        for number in range(40):
            assert await store.get(key_of(number)) in (None, answer(number))
        store.put(key_of(99), answer(99))
        assert await store.get(key_of(99)) == answer(99) and store.trouble is None


async def test_a_folder_that_cannot_be_written_is_told_and_costs_no_answer(tmp_path: Path) -> None:
    async with opened(tmp_path / "missing" / "answers.sqlite3") as store:
        store.put(key_of(1), answer(1))
        assert await store.get(key_of(1)) is None
        assert store.trouble is not None
        with pytest.raises(StoreError):
            await store.forget(None)
        (tmp_path / "missing").mkdir()
        store.put(key_of(1), answer(1))
        assert await store.get(key_of(1)) == answer(1) and store.trouble is None


async def test_what_is_forgotten_is_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite3"
    async with opened(path) as store:
        store.put(key_of(1), answer(1, partition="ann"))
        sealed = await store.run(lambda: store._database.use(lambda database: database.get(key_of(1))))
        assert sealed is not None and await store.forget("ann") == 1
        files = b"".join(file.read_bytes() for file in files_of(tmp_path))
    assert sealed[0][:64] not in files


def test_a_breaker_leaves_a_slow_store_alone() -> None:
    breaker = Breaker(most=3, rest_s=5.0)
    for now_s in (1.0, 2.0):
        breaker.note(now_s, has_answered=False)
    assert not breaker.is_open(2.0)
    breaker.note(3.0, has_answered=True)
    for now_s in (4.0, 5.0, 6.0):
        assert not breaker.is_open(now_s)
        breaker.note(now_s, has_answered=False)
    assert breaker.is_open(10.9) and not breaker.is_open(11.0)
    breaker.note(11.0, has_answered=False)
    assert breaker.is_open(15.0), "one more failure is enough"


async def test_a_call_that_takes_too_long_is_given_up() -> None:
    breaker = Breaker(most=1, rest_s=1000.0)
    asked = 0

    async def hang() -> None:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    for _ in range(2):
        with pytest.raises(TooSlow):
            await within(0.001, breaker, hang)
    assert asked == 1, "the second is not asked"


WRITER = """
import asyncio, sys
from pathlib import Path
from tests.answers.test_store import answer, key_of, opened

async def main(path, first):
    async with opened(Path(path), max_bytes=200_000) as store:
        number = int(first)
        while True:
            store.put(key_of(number), answer(number))
            await store.get(key_of(number))
            number += 1
            print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def check_after_kills(path: Path, num_kills: int) -> None:
    """Kill a process that writes answers, again and again. Then each kept answer is whole and right."""
    chance = random.Random(7)
    first = 0
    for _ in range(num_kills):
        writer = subprocess.Popen(  # noqa: ASYNC220 only this test runs
            [sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 40)):
            first = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        # On a busy machine it is far ahead of what was read here, and only the last ones have room.
        first = max([first, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        async with opened(path, max_bytes=200_000) as store:
            assert store.trouble is None and store.num_answers
            for number in range(max(0, first - 80), first + 40):
                assert await store.get(key_of(number)) in (None, answer(number))
            assert await store.get(key_of(first - 1)) == answer(first - 1), "what was said to be kept is there"
    assert not list(path.parent.glob("*.damaged"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
async def test_kills_while_answers_are_written(tmp_path: Path) -> None:
    await check_after_kills(tmp_path / "answers.sqlite3", 3)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
async def test_two_hundred_kills_while_answers_are_written(tmp_path: Path) -> None:
    await check_after_kills(tmp_path / "answers.sqlite3", 200)
