"""The kept answers at a Redis or Valkey server, which machines may share. It is synchronous, and one thread owns it.

An answer is a hash that the server itself deletes at the end of its age. Sorted sets have the order of use, of all
answers and of each partition, so that the least recently used one is forgotten first. Each change of several keys is
one script, so no machine sees only a part of it. The server sees no name of a client or a model.

Each command is checked against the machine's policy, and has a row in the egress ledger before it is sent.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.retry import Retry

from edgeagent.answers.answer import ID_CHARS, MAX_ANSWER_BYTES
from edgeagent.answers.database import Row
from edgeagent.config import AnswersConfig
from edgeagent.egress import ANSWERS
from edgeagent.egress.ledger import Ledger
from edgeagent.errors import StoreError
from edgeagent.machine_policy import QuietPolicyFile

TIMEOUT_S = 1.0
"""How long the thread waits for the server. An answer waits for less; see store.BUDGET_S."""
_BOOK_BYTES = 512  # what an answer takes at the server besides what is sealed, by an estimate
_COMMAND_BYTES = 100  # the length of a command besides its values, by an estimate
_PAGE = 50
_MAX_ONE_BYTES = 2 * MAX_ANSWER_BYTES  # of the reply to a look-up
_MAX_REPLY_BYTES = 1 << 26  # of any other reply: a page of the largest answers
_MAX_LISTED_BYTES = 1 << 30  # or this machine's limit, if it is larger
_MAX_REPLY_S = 10.0
_MAX_AT_ONCE = 1000  # answers that one script forgets, since other clients of the server wait for it

# KEYS[1] is the beginning of all names. `uses` counts, so that the order of use needs no clock.
_BOOKS = """
local prefix = KEYS[1]
local used, ages, sizes, bytes = prefix .. 'used', prefix .. 'ages', prefix .. 'sizes', prefix .. 'bytes'

local function drop(id)
  redis.call('DEL', prefix .. 'answer:' .. id)
  local known = redis.call('HGET', sizes, id)
  if not known then return 0 end
  local num_bytes, tag = string.match(known, '^(%d+) (.*)$')
  redis.call('HDEL', sizes, id)
  redis.call('ZREM', ages, id)
  redis.call('ZREM', used, id)
  redis.call('ZREM', used .. ':' .. tag, id)
  redis.call('DECRBY', bytes, num_bytes)
  return 1
end

local function note_use(id, tag)
  local use = redis.call('INCR', prefix .. 'uses')
  redis.call('ZADD', used, use, id)
  redis.call('ZADD', used .. ':' .. tag, use, id)
end

local function sweep()
  local time = redis.call('TIME')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local old = redis.call('ZRANGEBYSCORE', ages, '-inf', now_ms, 'LIMIT', 0, 1000)
  for _, id in ipairs(old) do drop(id) end
  return now_ms, #old
end

local function counts()
  return {redis.call('HLEN', sizes), tonumber(redis.call('GET', bytes) or '0')}
end
"""
_PUT = """
local id, tag, num_bytes, age_ms, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local answer = prefix .. 'answer:' .. id
local now_ms = sweep()
drop(id)
redis.call('HSET', answer, 'sealed', ARGV[6], 'key', ARGV[7], 'created', ARGV[8], 'uses', 0)
redis.call('HSET', sizes, id, string.format('%d %s', num_bytes, tag))
redis.call('INCRBY', bytes, num_bytes)
if age_ms >= 0 then
  redis.call('PEXPIRE', answer, age_ms)
  redis.call('ZADD', ages, now_ms + age_ms, id)
end
note_use(id, tag)
for _ = 1, 1000 do
  if tonumber(redis.call('GET', bytes)) <= max_bytes then break end
  local oldest = redis.call('ZRANGE', used, 0, 0)[1]
  if not oldest then break end
  drop(oldest)
end
return counts()
"""
_USE = """
for _, id in ipairs(ARGV) do
  local known = redis.call('HGET', sizes, id)
  if known and redis.call('EXISTS', prefix .. 'answer:' .. id) == 1 then
    redis.call('HINCRBY', prefix .. 'answer:' .. id, 'uses', 1)
    note_use(id, string.match(known, '^%d+ (.*)$'))
  end
end
return counts()
"""
# ARGV[1]: the tag of the partition whose answers may go; empty for all.
_REMOVE = """
local num = 0
for index = 2, #ARGV do
  local id = ARGV[index]
  local known = redis.call('HGET', sizes, id)
  if ARGV[1] == '' or (known and string.match(known, '^%d+ (.*)$') == ARGV[1]) then num = num + drop(id) end
end
local found = counts()
return {found[1], found[2], num}
"""
_SWEEP = """
local _, num = sweep()
local found = counts()
return {found[1], found[2], num}
"""


# ARGV: the log, the position after which to read, and how many events.
_EVENTS = """
local log, events = KEYS[1] .. 'learned:' .. ARGV[1], {}
local found = redis.call('XREAD', 'COUNT', ARGV[3], 'STREAMS', log, ARGV[2])
for _, entry in ipairs(found and found[1][2] or {}) do
  events[#events + 1] = {entry[1], entry[2][2]}
end
return {redis.call('EXISTS', log .. ':off'), events}
"""
# The positions of what is written afterwards are higher than all before, since the log itself stays.
_CLEAR = """
local log = KEYS[1] .. 'learned:' .. ARGV[1]
redis.call('XTRIM', log, 'MAXLEN', 0)
redis.call('DEL', log .. ':off')
redis.call('XADD', log, '*', 'event', ARGV[2])
return 1
"""
MAX_EVENTS = 150_000  # of a log, about 2 KB for each question; the server removes the oldest


class WayOut:
    """What must be asked before a command is sent: the machine's policy, and a row in the egress ledger.

    A socket of this machine needs neither.
    """

    def __init__(self, address: str, state_dir: Path) -> None:
        self._address = address
        self._policy = QuietPolicyFile()
        self._ledger = Ledger(state_dir)

    @property
    def ca_file(self) -> str | None:
        """The only CA to trust; None for those of the system."""
        return self._policy.policy.ca_file

    @contextmanager
    def command(self, num_bytes: int) -> Iterator[None]:
        """Allow a command of about this size during the `with` block. Raise OSError if it must not be sent."""
        if self._address.startswith("unix:"):
            yield
            return
        if why := self._policy.why_not_kept_at(self._address):
            raise OSError(why)
        try:
            row = self._ledger.begin_own(ANSWERS, self._address, num_bytes=num_bytes)
        except StoreError as error:
            raise OSError(error.message) from None
        outcome = "failed"
        try:
            yield
            outcome = "completed"
        finally:
            self._ledger.end(row, outcome)

    def close(self) -> None:
        self._ledger.close()


class _Replies:
    """How much is still read of the replies to a command, and until when. Each connection's socket asks it.

    Who may write at the server can write anything there, and the client reads a whole reply into memory.
    """

    def __init__(self) -> None:
        self._left, self._until_s = 0, 0.0

    def expect(self, max_bytes: int) -> None:
        """Allow this many bytes from now on."""
        self._left, self._until_s = max_bytes, time.monotonic() + _MAX_REPLY_S

    def count(self, num_bytes: int) -> None:
        """Count bytes that were read. Raise what the client takes for a lost connection, which it closes."""
        self._left -= num_bytes
        if self._left < 0:
            raise RedisConnectionError("its reply is larger than any answer")
        if time.monotonic() > self._until_s:
            raise RedisConnectionError(f"its reply takes longer than {_MAX_REPLY_S:g} s")

    def bound(self, connection: Any) -> None:
        """Let a connection, which has just been made, read within the limits, and begin the session."""
        connection._sock = _BoundedSocket(connection._sock, self)
        connection.on_connect()


class _BoundedSocket:
    """A socket whose reads are counted."""

    def __init__(self, socket: Any, replies: _Replies) -> None:
        self._socket, self._replies = socket, replies

    def recv(self, *args: int) -> bytes:  # hiredis peeks with a second one
        content: bytes = self._socket.recv(*args)
        self._replies.count(len(content))
        return content

    def recv_into(self, buffer: Any) -> int:  # the parser of hiredis reads so
        num_bytes: int = self._socket.recv_into(buffer)
        self._replies.count(num_bytes)
        return num_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class RedisDatabase:
    """The kept answers at the server of `options`. `secret`: all who have it share their answers.

    All methods raise OSError if the server cannot be asked, or may not be. After that, they may be called again.
    """

    def __init__(self, options: AnswersConfig, secret: bytes, way_out: WayOut, password: str | None = None) -> None:
        self._address, self._options, self._way_out, self._password = options.store, options, way_out, password
        self._secret = secret
        # The braces keep all names in one slot of a cluster.
        self._prefix = f"{{edgeagent-{_tag(secret, 'names')}}}:"
        self._client: Redis | None = None
        self._replies = _Replies()
        self._ca_file: str | None = None
        self.num_answers = self.num_bytes = 0

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        self._way_out.close()

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        name = self._answer(_id(key))

        def ask(client: Any) -> Any:
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command("HMGET", name, "sealed", "created")
            pipeline.execute_command("HLEN", f"{self._prefix}sizes")
            pipeline.execute_command("GET", f"{self._prefix}bytes")
            return pipeline.execute()

        (sealed, created), num_answers, num_bytes = self._ask(len(name), ask, _MAX_ONE_BYTES)
        self.num_answers, self.num_bytes = int(num_answers), int(num_bytes or 0)
        if sealed is None or created is None:
            return None
        if not isinstance(sealed, bytes):
            raise TypeError(f"an answer is {type(sealed).__name__}")
        return sealed, float(created)

    def note_uses(self, uses: Collection[bytes]) -> None:
        self._script(_USE, *map(_id, uses))

    def put(self, key: bytes, partition: str, model: str, sealed: bytes, created_s: float) -> None:
        del model  # it is sealed with the answer
        max_age_s = self._options.max_age_s
        age_ms = -1 if math.isinf(max_age_s) else int(1000 * max_age_s)
        num_bytes = len(sealed) + _BOOK_BYTES
        limits = (num_bytes, age_ms, self._options.max_bytes)
        self._script(_PUT, _id(key), self._partition(partition), *limits, sealed, key, repr(created_s))

    def rows(self, partition: str | None, limit: int, offset: int = 0) -> list[Row]:
        """Do what Database says. The names of the answers are sealed."""
        while self._script(_SWEEP)[2]:
            pass
        ids = self._command("ZREVRANGE", self._used(partition), offset, offset + limit - 1)
        found: list[Row] = []
        # The limits of other machines may be larger. `num_bytes` is new, but anything may have written it.
        left = max(self._options.max_bytes, min(self.num_bytes, _MAX_LISTED_BYTES))
        for begin in range(0, len(ids), _PAGE):
            if left < 0:
                break  # no server that keeps to the limit has more
            page = ids[begin : begin + _PAGE]
            sizes = self._command("HMGET", self._prefix + "sizes", *page)
            for size, fields in zip(sizes, self._fields(page), strict=True):
                key, sealed, created, num_uses = fields
                if None not in (size, key, sealed, created, num_uses):
                    left -= len(sealed)
                    num_bytes = int(size.partition(b" ")[0])
                    found.append(Row(key, "", "", sealed, float(created), int(num_uses), num_bytes))
        return found

    def remove(self, key: bytes, partition: str | None = None) -> int:
        return int(self._script(_REMOVE, "" if partition is None else self._partition(partition), _id(key))[2])

    def remove_older(self, than_s: float) -> int:
        """Count what is there. The server forgets what is old by itself."""
        del than_s
        return int(self._script(_SWEEP)[2])

    def remove_all(self, partition: str | None) -> int:
        num = 0
        while ids := self._command("ZRANGE", self._used(partition), 0, _MAX_AT_ONCE - 1):
            num_now = int(self._script(_REMOVE, "", *ids)[2])
            if not num_now:
                # What is in this order of use alone was written by something else.
                self._command("ZREM", self._used(partition), *ids)
            num += num_now
        return num

    def append_event(self, name: str, content: bytes) -> None:
        """Write an event at the end of a log."""
        self._command("XADD", self._log(name), "MAXLEN", "~", MAX_EVENTS, "*", "event", content)

    def events(self, name: str, after: str, limit: int) -> tuple[bool, tuple[tuple[str, bytes], ...]]:
        """Return whether a log is turned off, and its events after a position, each with its own."""
        is_off, found = self._evaluate(_EVENTS, name, after, limit)
        return bool(is_off), tuple((position.decode(), content) for position, content in found)

    def turn_off(self, name: str) -> None:
        """Turn a log off until it is cleared."""
        self._command("SET", f"{self._log(name)}:off", 1)

    def clear_events(self, name: str, content: bytes) -> None:
        """Remove the events of a log, turn it on again, and write an event."""
        self._evaluate(_CLEAR, name, content)

    def _log(self, name: str) -> str:
        return f"{self._prefix}learned:{name}"

    def _fields(self, ids: Sequence[bytes]) -> list[list[Any]]:
        names = [self._answer(id_.decode()) for id_ in ids]

        def ask(client: Any) -> Any:
            pipeline = client.pipeline(transaction=False)
            for name in names:
                pipeline.execute_command("HMGET", name, "key", "sealed", "created", "uses")
            return pipeline.execute()

        found: list[list[Any]] = self._ask(sum(map(len, names)), ask)
        return found

    def _answer(self, answer_id: str) -> str:
        return f"{self._prefix}answer:{answer_id}"

    def _used(self, partition: str | None) -> str:
        return f"{self._prefix}used" if partition is None else f"{self._prefix}used:{self._partition(partition)}"

    def _partition(self, partition: str) -> str:
        return _tag(self._secret, f"partition {partition}")

    def _command(self, *words: Any) -> Any:
        return self._ask(_length(words), lambda client: client.execute_command(*words))

    def _script(self, text: str, *values: Any) -> list[int]:
        """Run a script, which returns the number of answers, their bytes, and perhaps a result."""
        result: list[int] = self._evaluate(_BOOKS + text, *values)
        self.num_answers, self.num_bytes = int(result[0]), int(result[1])
        return result

    def _evaluate(self, script: str, *values: Any) -> Any:
        digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()

        def ask(client: Any) -> Any:
            try:
                return client.execute_command("EVALSHA", digest, 1, self._prefix, *values)
            except NoScriptError:
                return client.execute_command("EVAL", script, 1, self._prefix, *values)

        return self._ask(_length(values), ask)

    def _ask(self, num_bytes: int, ask: Callable[[Any], Any], max_bytes: int = _MAX_REPLY_BYTES) -> Any:
        with self._way_out.command(num_bytes + _COMMAND_BYTES):
            self._replies.expect(max_bytes)
            try:
                return ask(self._connected())
            except RedisError as error:
                raise OSError(f"{self._address} cannot be used: {error}") from None

    def _connected(self) -> Any:
        """Return the client for the server. It connects again by itself after an error."""
        ca_file = self._way_out.ca_file
        if self._client is None or ca_file != self._ca_file:
            is_encrypted = self._address.startswith("rediss:")
            tls = {"ssl_ca_certs": ca_file} if is_encrypted and ca_file is not None else {}
            self._client = Redis.from_url(
                self._address,
                password=self._password,
                socket_timeout=TIMEOUT_S,
                **({} if self._address.startswith("unix:") else {"socket_connect_timeout": TIMEOUT_S}),
                # A connection that the server has closed while it was idle is made again once.
                retry=Retry(NoBackoff(), 1),
                protocol=2,
                redis_connect_func=self._replies.bound,
                **tls,
            )
            self._ca_file = ca_file
        return self._client


def _id(key: bytes) -> str:
    """Return an answer's name at the server. It is its id, so that it is found by that too.

    Two keys of one id would take each other's place. An answer opens only under its own key, so neither is given for
    the other.
    """
    return key.hex()[:ID_CHARS]


def _tag(secret: bytes, text: str) -> str:
    return hashlib.blake2b(text.encode(), key=secret, person=b"edgeagent names", digest_size=8).hexdigest()


def _length(values: Sequence[Any]) -> int:
    return sum(len(value) if isinstance(value, (bytes, str)) else 8 for value in values)
