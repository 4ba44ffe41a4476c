"""Kept answers at a real Redis or Valkey server: shared, bounded, sealed, and a server that is down or slow."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from edgeagent.answers import redis_database
from edgeagent.answers.answers import Answers
from edgeagent.answers.redis_store import RedisStore
from edgeagent.answers.seal import Seal
from edgeagent.answers.store import Breaker, TooSlow
from edgeagent.config import AnswersConfig, Config
from edgeagent.egress.rows import folder_of, read_rows
from edgeagent.errors import ConfigError, StoreError
from edgeagent.machine_policy import MachinePolicy, why_not_kept_at
from edgeagent.types import RouteMode
from tests.answers.caches import ModelBackend, asking
from tests.answers.redis_server import RedisServer
from tests.answers.test_answers import ask
from tests.answers.test_store import answer, key_of, text_of
from tests.backends.remote.certificates import Authority
from tests.patience import patient

SECRET = b"s" * 32


def key(number: int) -> bytes:
    """Return a key whose beginning, the answer's id, is its own too."""
    return key_of(number << 200)


@asynccontextmanager
async def opened(
    server: RedisServer,
    folder: Path,
    secret: bytes = SECRET,
    budget_s: float = patient(10),
    clock: Callable[[], float] = lambda: 1_000_000.0,
    **options: str | int | Path,
) -> AsyncIterator[RedisStore]:
    """Yield the store of a machine, whose state folder is `folder`."""
    config = AnswersConfig(**{"exact": True, "store": server.address, **options})  # type: ignore[arg-type]
    store = RedisStore(config, Seal(secret), folder, clock, budget_s)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


def check_books(server: RedisServer) -> None:
    """Check that what is written about the answers is what is there."""
    client = server.client()
    names = {name.decode() for name in server.names()}
    if not names:
        return
    prefix = next(iter(names)).partition("}:")[0] + "}:"
    answers = {name.rpartition(":")[2] for name in names if name.startswith(f"{prefix}answer:")}
    sizes = {key.decode(): value for key, value in client.hgetall(f"{prefix}sizes").items()}
    assert sizes.keys() == answers == {each.decode() for each in client.zrange(f"{prefix}used", 0, -1)}
    of_partitions = [name for name in names if name.startswith(f"{prefix}used:")]
    assert sum(client.zcard(name) for name in of_partitions) == len(answers)
    assert int(client.get(f"{prefix}bytes") or 0) == sum(int(size.split()[0]) for size in sizes.values())


async def test_two_machines_share_what_only_they_can_read(empty: RedisServer, tmp_path: Path) -> None:
    async with opened(empty, tmp_path / "a") as one, opened(empty, tmp_path / "b") as other:
        one.put(key(1), answer(1, partition="ann"))
        assert await one.get(key(1)) == answer(1, partition="ann")
        assert await other.get(key(1)) == answer(1, partition="ann")
        assert await other.get(key(2)) is None
        assert other.num_answers == 1 and other.num_bytes, "also of those that another machine keeps"
        [listed] = await one.listed("ann", 10)
        assert (listed.partition, listed.model, listed.question) == ("ann", "tiny", "question 1")
        assert (listed.text, listed.num_uses, listed.num_bytes > 1500) == (text_of(1), 1, True)
        assert await other.listed("bob", 10) == []
        assert one.num_answers == 1
    async with opened(empty, tmp_path / "c", secret=b"another" * 5) as stranger:
        assert await stranger.get(key(1)) is None and await stranger.listed(None, 10) == []
        assert await stranger.forget(None) == 0
    check_books(empty)
    with empty.client() as client:
        kept = [client.hgetall(name) for name in empty.names(b"answer:")]
    content = repr((empty.names(), kept))
    assert len(kept) == 1
    assert not any(word in content for word in ("ann", "tiny", "question", text_of(1)[:40])), "it is sealed"


async def test_the_least_recently_used_go_first(empty: RedisServer, tmp_path: Path) -> None:
    async with opened(empty, tmp_path, max_bytes=20_000) as store:
        for number in range(1, 21):
            store.put(key(number), answer(number))
            assert await store.get(key(1)) is not None, "it is used all the time"
            await store.listed(None, 1)  # the uses are written
        listed = await store.listed(None, 100)
        assert store.num_bytes is not None and store.num_bytes <= 20_000
        assert store.num_answers == len(listed) < 20
        assert {"question 1", "question 20"} <= {each.question for each in listed}
    check_books(empty)


async def test_a_machine_with_a_smaller_limit_lists_all(empty: RedisServer, tmp_path: Path) -> None:
    async with opened(empty, tmp_path / "a") as one, opened(empty, tmp_path / "b", max_bytes=1000) as small:
        for number in range(120):
            one.put(key(number), answer(number))
        assert len(await one.listed(None, 200)) == len(await small.listed(None, 200)) == 120


async def test_the_server_forgets_what_is_old(empty: RedisServer, tmp_path: Path) -> None:
    async with opened(empty, tmp_path, max_age="1h") as store, opened(empty, tmp_path, max_age="0.01") as short:
        store.put(key(1), answer(1))
        await store.listed(None, 1)
        with empty.client() as client:
            [name] = empty.names(b"answer:")
            assert 3_590_000 < client.pttl(name) <= 3_600_000
        short.put(key(2), answer(2))
        await short.listed(None, 1)
        async with asyncio.timeout(patient(10)):
            while await short.get(key(2)) is not None:
                pass
        assert [each.question for each in await store.listed(None, 10)] == ["question 1"]
        assert store.num_answers == 1
    check_books(empty)
    async with opened(empty, tmp_path, max_age="-1") as forever:
        forever.put(key(3), answer(3))
        await forever.listed(None, 1)
        with empty.client() as client:
            assert min(client.ttl(name) for name in empty.names(b"answer:")) == -1


async def test_forgetting(empty: RedisServer, tmp_path: Path) -> None:
    async with opened(empty, tmp_path) as store:
        for number in range(40):
            store.put(key(number), answer(number, partition="ann" if number % 2 else "bob"))
        [first, *_] = await store.listed("ann", 10)
        assert not await store.forget_one(first.id, "bob")
        assert await store.forget_one(first.id, "ann") and not await store.forget_one(first.id, None)
        assert not await store.forget_one("no id", None)
        assert await store.forget("ann") == 19 and await store.listed("ann", 10) == []
        assert len(await store.listed(None, 15)) == 15 and len(await store.listed(None, 15, offset=15)) == 5
        check_books(empty)
        assert await store.forget(None) == 20 and store.num_answers == store.num_bytes == 0
    assert not empty.names(b"answer:")


async def test_a_changed_answer_costs_itself_only(empty: RedisServer, tmp_path: Path) -> None:
    keys = [key(number) for number in range(3)]
    async with opened(empty, tmp_path) as store:
        for number, each in enumerate(keys):
            store.put(each, answer(number))
        await store.listed(None, 1)
        with empty.client() as client:
            names = [empty.names(each.hex()[:16].encode())[0] for each in keys]
            sealed = [client.hget(name, "sealed") for name in names]
            assert all(isinstance(each, bytes) for each in sealed)
            client.hset(names[0], "sealed", b"rubbish")
            client.hset(names[1], "sealed", sealed[2])
        assert [await store.get(each) for each in keys] == [None, None, answer(2)]
        assert store.trouble is None and store.num_answers == 1


@pytest.mark.parametrize("created", ["yesterday", "nan", "1e999", ""])
async def test_a_server_with_other_values_costs_its_answers_only(
    empty: RedisServer, tmp_path: Path, created: str
) -> None:
    async with opened(empty, tmp_path) as store:
        store.put(key(0), answer(0))
        store.put(key(1), answer(1))
        await store.listed(None, 1)
        with empty.client() as client:
            (name,) = empty.names(key(0).hex()[:16].encode())
            client.hset(name, "created", created)
        assert await store.get(key(0)) is None
        await store.listed(None, 10)
        assert await store.get(key(1)) == answer(1)
        with empty.client() as client:
            (name,) = empty.names(b"bytes")
            client.set(name, "many")
        assert await store.get(key(1)) is None and store.trouble


def reply(rng: random.Random, depth: int = 0) -> bytes:
    """Return any reply of the protocol."""
    match rng.randrange(8 if depth < 3 else 6):
        case 0:
            return b"$-1\r\n"
        case 1:
            return b":%d\r\n" % rng.choice([-1, 0, 7, 1 << 40])
        case 2:
            return rng.choice([b"+OK\r\n", b"-ERR no\r\n"])
        case 3 | 4 | 5:
            text = rng.randbytes(rng.choice([0, 1, 20, 3000]))
            return b"$%d\r\n%s\r\n" % (len(text), text)
        case _:
            parts = [reply(rng, depth + 1) for _ in range(rng.randrange(5))]
            return b"*%d\r\n%s" % (len(parts), b"".join(parts))


async def command(reader: asyncio.StreamReader) -> list[bytes]:
    """Return the words of the next command; none at the end."""
    words = []
    for _ in range(int((await reader.readline())[1:] or 0)):
        words.append(await reader.readexactly(int((await reader.readline())[1:])))
        await reader.readline()
    return words


async def test_a_server_that_says_anything_costs_its_answers_only(tmp_path: Path) -> None:
    rng = random.Random(5)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while words := await command(reader):
                writer.write(b"+OK\r\n" if words[0] in (b"CLIENT", b"SELECT") else reply(rng))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        store = RedisStore(AnswersConfig(exact=True, store=address), Seal(SECRET), tmp_path, budget_s=patient(10))
        await store.start()
        for number in range(40):
            store.put(key(number), answer(number))
            assert await store.get(key(number)) is None
            await store.listed(None, 5)
            await store.append("log", b"event")
            await store.page("log", "0-0", 5)
            with suppress(StoreError):
                await store.forget(None)
            with suppress(StoreError):
                await store.forget_one("0" * 16, "")
        await store.close()


@pytest.mark.parametrize("header", [b"$2147483648\r\n", b"*99999999\r\n$5000\r\n", b"+"])
async def test_a_reply_without_end_is_not_read_into_memory(tmp_path: Path, header: bytes) -> None:
    num_sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_sent
        with suppress(OSError):
            while words := await command(reader):
                if words[0] in (b"CLIENT", b"SELECT"):
                    writer.write(b"+OK\r\n")
                    continue
                writer.write(header)
                while True:
                    writer.write(bytes(1 << 16))
                    await writer.drain()
                    num_sent += 1 << 16
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        store = RedisStore(AnswersConfig(exact=True, store=address), Seal(SECRET), tmp_path, budget_s=patient(10))
        assert await store.get(key(0)) is None
        assert store.trouble is not None and "larger than any answer" in store.trouble
        await store.close()
    # Two connections, with what their sockets hold.
    assert num_sent < 64 << 20


async def test_a_huge_value_costs_itself_only(empty: RedisServer, tmp_path: Path) -> None:
    async with opened(empty, tmp_path) as store:
        store.put(key(0), answer(0))
        store.put(key(1), answer(1))
        await store.listed(None, 1)
        with empty.client() as client:
            (name,) = empty.names(key(0).hex()[:16].encode())
            client.hset(name, "sealed", bytes(8 << 20))
        assert await store.get(key(0)) is None and store.trouble
        assert await store.get(key(1)) == answer(1) and store.trouble is None
        store.put(key(0), answer(0))  # the model has answered it
        assert await store.get(key(0)) == answer(0)


async def test_what_others_delete_is_not_found(empty: RedisServer, tmp_path: Path) -> None:
    """A server that is short of memory deletes answers by itself."""
    async with opened(empty, tmp_path) as store:
        for number in range(8):
            store.put(key(number), answer(number))
        await store.listed(None, 1)
        with empty.client() as client:
            client.delete(*empty.names(b"answer:")[:5])
        assert len(await store.listed(None, 100)) == 3
        assert await store.forget(None) == 8 and store.num_bytes == 0


async def test_a_server_that_is_down_costs_its_answers_only(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        async with opened(server, tmp_path) as store:
            store.put(key(1), answer(1))
            assert await store.get(key(1)) == answer(1)
            server.stop()
            store.put(key(2), answer(2))
            assert await store.get(key(1)) is None
            assert store.trouble is not None and str(server.port) in store.trouble
            with pytest.raises(StoreError):
                await store.forget(None)
            assert await store.listed(None, 10) == []
            server.start()
            store.put(key(3), answer(3))
            assert await store.get(key(3)) == answer(3) and store.trouble is None
    finally:
        server.stop()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot pause a process")
async def test_a_server_that_hangs_delays_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_database, "TIMEOUT_S", 0.2)
    server = RedisServer(tmp_path)
    try:
        async with opened(server, tmp_path, budget_s=0.05) as store:
            store._breaker = Breaker(rest_s=1000.0)
            server.pause()
            for _ in range(5):
                with pytest.raises(TooSlow):
                    await store.get(key(1))
            for number in range(1000):
                store.put(key(number), answer(number))
            assert len(store._writes) <= 256
    finally:
        server.resume()
        server.stop()


async def test_a_password(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, password="open sesame")
    file = tmp_path / "password"
    try:
        async with opened(server, tmp_path) as without:
            assert await without.get(key(1)) is None
            assert without.trouble is not None and "uthentication" in without.trouble
        with pytest.raises(ConfigError, match="has no password"):
            async with opened(server, tmp_path, store_password_file=file):
                pass
        file.write_text("open sesame\n")
        file.chmod(0o600)
        async with opened(server, tmp_path, store_password_file=file) as store:
            store.put(key(1), answer(1))
            assert await store.get(key(1)) == answer(1) and store.trouble is None
    finally:
        server.stop()


async def test_each_command_has_a_row_in_the_ledger(empty: RedisServer, tmp_path: Path) -> None:
    async with opened(empty, tmp_path) as store:
        store.put(key(1), answer(1))
        assert await store.get(key(1)) is not None
    rows = list(read_rows(folder_of(tmp_path)))
    assert [(row.reason, row.outcome) for row in rows] == [("answers", "completed")] * len(rows)
    assert {row.host for row in rows} == {f"127.0.0.1:{empty.port}"} and max(row.num_bytes for row in rows) > 1500
    (tmp_path / "egress").rename(tmp_path / "before")
    (tmp_path / "egress").write_text("not a folder")
    with empty.client() as client:
        num_before = client.info("stats")["total_commands_processed"]
        async with opened(empty, tmp_path) as store:
            store.put(key(2), answer(2))
            assert await store.get(key(1)) is None
            assert store.trouble is not None and "the egress ledger in" in store.trouble
        assert client.info("stats")["total_commands_processed"] == num_before + 1, "nothing was sent"


@pytest.mark.parametrize(
    ("policy", "address", "why"),
    [
        (MachinePolicy(), "redis://kv.example", ""),
        (MachinePolicy(answers=False), "redis://127.0.0.1", "answers = false"),
        (MachinePolicy(route=RouteMode.LOCAL_ONLY, proxy="http://proxy"), "redis://127.0.0.1:7000/0", ""),
        (MachinePolicy(route=RouteMode.LOCAL_ONLY), "rediss://kv.example", "route = local_only"),
        (MachinePolicy(remote_hosts=("gpu.example",)), "rediss://kv.example", "remote_hosts"),
        (MachinePolicy(remote_hosts=("kv.example:6380",)), "rediss://me@kv.example", "remote_hosts"),
        (MachinePolicy(remote_hosts=("*.example:6379",)), "rediss://me@kv.example", ""),
        (MachinePolicy(ca_file="/ca.pem"), "redis://kv.example", "rediss://"),
        (MachinePolicy(ca_file="/ca.pem"), "rediss://kv.example", ""),
        (MachinePolicy(proxy="http://proxy.example"), "rediss://kv.example", "proxy"),
    ],
)
def test_the_machines_policy_rules_where_answers_may_be(policy: MachinePolicy, address: str, why: str) -> None:
    found = why_not_kept_at(policy, address)
    assert why in found and bool(found) == bool(why)


def write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o644)


async def test_what_the_policy_forbids_is_not_sent(empty: RedisServer, tmp_path: Path, machine_policy: Path) -> None:
    async with opened(empty, tmp_path) as store:
        store.put(key(1), answer(1))
        assert await store.get(key(1)) is not None
        write(machine_policy, "answers = false\n")
        assert await store.get(key(1)) is None
        assert store.trouble is not None and "answers = false" in store.trouble
        write(machine_policy, "")
        assert await store.get(key(1)) is not None


async def test_over_tls_the_policys_ca_is_the_only_one(tmp_path: Path, machine_policy: Path) -> None:
    server = RedisServer(tmp_path, authority=(authority := Authority(tmp_path)))
    try:
        async with opened(server, tmp_path) as store:
            store.put(key(1), answer(1))
            assert await store.get(key(1)) is None
            assert store.trouble is not None and "certificate verify failed" in store.trouble
            write(machine_policy, f'ca_file = "{authority.own.path}"\n')
            store.put(key(1), answer(1))
            assert await store.get(key(1)) == answer(1) and store.trouble is None
    finally:
        server.stop()


def copied(file: Path, folder: Path) -> Path:
    folder.mkdir()
    return Path(shutil.copy(file, folder / "model.gguf"))


@asynccontextmanager
async def machine(
    server: RedisServer, folder: Path, model: Path, backend: type[ModelBackend] = ModelBackend
) -> AsyncIterator[tuple[Answers, ModelBackend]]:
    """Yield the cache and the backend of a machine, which has its own copy of the model's file."""
    behind = backend(copied(model, folder))
    async with opened(server, folder, clock=time.time) as store:
        answers = Answers(behind, store, Seal(SECRET), AnswersConfig(exact=True), patient(10), look_s=0.0)
        try:
            yield answers, behind
        finally:
            await answers.close()


async def test_machines_with_the_same_model_give_the_answers_of_each_other(
    empty: RedisServer, tmp_path: Path, model_file: Path
) -> None:
    async with machine(empty, tmp_path / "a", model_file) as (first, _):
        assert (await ask(first, asking("a"))).kind == ""
        await first.store.listed(None, 1)
    async with machine(empty, tmp_path / "b", model_file) as (second, backend):
        given = await ask(second, asking("b"))
        assert (given.kind, given.text, backend.requests) == ("exact", "one two", [])
        assert (await ask(second, asking("c", client="ann"))).kind == "", "each client has its own"
    with model_file.open("ab") as file:
        file.write(b"\0")
    async with machine(empty, tmp_path / "c", model_file) as (third, _):
        assert (await ask(third, asking("d"))).kind == "", "its model is another one"


async def test_what_must_stay_on_this_machine_is_not_kept_elsewhere(
    empty: RedisServer, tmp_path: Path, model_file: Path
) -> None:
    async with machine(empty, tmp_path / "a", model_file) as (answers, backend):
        answers.store.is_elsewhere = True
        for number in range(2):
            assert (await ask(answers, asking(f"{number}", route=RouteMode.LOCAL_ONLY))).kind == ""
        await answers.store.listed(None, 1)
        assert answers.store.num_answers == 0 and len(backend.requests) == 2
        for kind in ("", "exact"):
            assert (await ask(answers, asking(f"free {kind}"))).kind == kind


def config(tmp_path: Path, **options: object) -> Config:
    fields = {"exact": True, "store": "redis://127.0.0.1:1"} | options
    return Config(state_dir=tmp_path, answers=AnswersConfig(**fields))  # type: ignore[arg-type]


def test_the_options(tmp_path: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, secret = ModelBackend(model_file), tmp_path / "secret"
    secret.write_text("short")
    secret.chmod(0o600)
    with pytest.raises(ConfigError, match="32 to 4096 bytes, not 5"):
        Answers.of(config(tmp_path, store_secret_file=secret), backend)
    secret.write_text("0123456789abcdef" * 4 + "\n")
    one = Answers.of(config(tmp_path, store_secret_file=secret), backend)
    secret.write_text("0123456789abcdef" * 4)
    same = Answers.of(config(tmp_path, store_secret_file=secret), backend)
    assert one._seal.key_secret == same._seal.key_secret != Answers.of(config(tmp_path), backend)._seal.key_secret
    with pytest.raises(ConfigError, match="local_only"):
        elsewhere = config(tmp_path, store="rediss://kv.example")
        Answers.of(Config(state_dir=tmp_path, route="local_only", answers=elsewhere.answers), backend)
    with pytest.raises(ConfigError, match="forget"):
        Answers.of(Config(state_dir=tmp_path, forget=True, answers=config(tmp_path).answers), backend)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'edgeagent\[redis\]'"):
        Answers.of(config(tmp_path), backend)


async def test_random_work_of_two_machines_keeps_the_books(empty: RedisServer, tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("SEED", "3")))
    numbers = range(30)
    async with (
        opened(empty, tmp_path / "a", max_bytes=40_000) as one,
        opened(empty, tmp_path / "b", max_bytes=30_000) as two,
    ):
        for _ in range(300):
            store, number = chance.choice((one, two)), chance.choice(numbers)
            partition = chance.choice(("ann", "bob"))
            match chance.randrange(10):
                case 0:
                    await store.forget_one(key(number).hex()[:16], partition)
                case 1:
                    await store.listed(partition, 10)
                case 2 | 3 | 4:
                    found = await store.get(key(number))
                    assert found is None or found.text == text_of(number)
                case _:
                    store.put(key(number), answer(number, partition=partition))
        await one.forget("ann")
        await two.listed(None, 1)
        check_books(empty)
        with empty.client() as client:
            client.flushall()
        await one.listed(None, 1)
        assert one.num_answers == 0, "a server that lost everything begins anew"


WRITER = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from tests.answers.test_redis import key, opened
from tests.answers.test_store import answer

async def main(address, folder, first):
    async with opened(SimpleNamespace(address=address), Path(folder), max_bytes=100_000) as store:
        number = int(first)
        while True:
            store.put(key(number), answer(number))
            await store.get(key(number))
            number += 1
            print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def check_after_kills(server: RedisServer, folder: Path, num_kills: int) -> None:
    """Kill a process that writes answers, again and again. Then each kept answer is whole and right."""
    chance, first = random.Random(7), 0
    for _ in range(num_kills):
        command = [sys.executable, "-c", WRITER, server.address, str(folder), str(first)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 only this test runs
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 80)):
            first = int(writer.stdout.readline())
        writer.kill()
        # On a busy machine it is far ahead of what was read here, and only the last ones have room.
        first = max([first, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        async with opened(server, folder, max_bytes=100_000) as store:
            for number in range(max(0, first - 80), first + 40):
                assert await store.get(key(number)) in (None, answer(number))
            assert await store.get(key(first - 1)) == answer(first - 1), "what was said to be kept is there"
        check_books(server)


async def test_kills_while_answers_are_written(empty: RedisServer, tmp_path: Path) -> None:
    await check_after_kills(empty, tmp_path, 2)


@pytest.mark.slow
async def test_two_hundred_kills_while_answers_are_written(empty: RedisServer, tmp_path: Path) -> None:
    await check_after_kills(empty, tmp_path, 200)
