"""A database of stored responses, which writes, finds and evicts them. It is synchronous, and one thread owns it.

Each response is a row, and has a segment: the items that the response added, and a reference to the segment of the
response that it continued. So the items of a conversation are stored once, however long its chain is. A segment stays
while a response or another segment needs it. An image or a sound is stored once for each partition, and stays while a
segment names it. The number of responses, their bytes and their age are limited. A
partition has the responses of one client. To make room, the least recently used response of the largest one is evicted.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from edgeagent.conversation.history import (
    MAX_CONVERSATION_BYTES,
    MAX_ITEMS,
    ConversationTurn,
    Limits,
    ListedConversation,
    StoredResponse,
    too_long,
)
from edgeagent.conversation.items import Item, ItemFormat, MessageItem, media_of
from edgeagent.errors import EdgeAgentError, InvalidRequest
from edgeagent.router.policy import strictest
from edgeagent.sqlite_files import DamagedError, SqliteDatabase
from edgeagent.types import Media, MediaKind, RouteMode

VERSION = 1
_SCHEMA = """
CREATE TABLE segments (
    id INTEGER PRIMARY KEY, parent INTEGER, num_input INTEGER NOT NULL, items BLOB NOT NULL
);
CREATE INDEX segments_by_parent ON segments (parent);
CREATE TABLE responses (
    id TEXT PRIMARY KEY, partition TEXT NOT NULL, previous_id TEXT, segment INTEGER NOT NULL, body BLOB NOT NULL,
    is_failed INTEGER NOT NULL, created_s REAL NOT NULL, used INTEGER NOT NULL
);
CREATE INDEX responses_by_segment ON responses (segment);
CREATE INDEX responses_by_use ON responses (used);
CREATE INDEX responses_by_age ON responses (created_s);
CREATE TABLE items (id TEXT, segment INTEGER, PRIMARY KEY (id, segment)) WITHOUT ROWID;
"""
# Files of earlier versions do not have this column and these tables. Older versions ignore them.
_TITLE_COLUMN = "ALTER TABLE segments ADD COLUMN title TEXT"
_MEDIA_SCHEMA = """
CREATE TABLE IF NOT EXISTS media (
    partition TEXT NOT NULL, digest BLOB NOT NULL, data BLOB NOT NULL, PRIMARY KEY (partition, digest)
);
CREATE TABLE IF NOT EXISTS segment_media (
    segment INTEGER NOT NULL, digest BLOB NOT NULL, partition TEXT NOT NULL, PRIMARY KEY (segment, digest)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS segments_by_medium ON segment_media (partition, digest);
"""
_FORGET_UNNAMED = """
DELETE FROM segment_media WHERE segment NOT IN (SELECT id FROM segments);
DELETE FROM media WHERE NOT EXISTS (
    SELECT 1 FROM segment_media m WHERE m.partition = media.partition AND m.digest = media.digest
);
"""
# The segments of a conversation, the last one first, without their content.
_CHAIN = """
WITH RECURSIVE chain (id, parent, num_input, depth) AS (
    SELECT id, parent, num_input, 0 FROM segments WHERE id = ?
    UNION ALL
    SELECT s.id, s.parent, s.num_input, depth + 1 FROM segments s JOIN chain ON s.id = chain.parent
)
SELECT id, num_input FROM chain ORDER BY depth LIMIT ?
"""
# A response and all that continue it, the oldest first. Rows are in the order in which they came, also if the clock was
# set back.
_BRANCHES = """
WITH RECURSIVE branches (id) AS (
    SELECT ?1 UNION SELECT r.id FROM branches b JOIN responses r ON r.previous_id = b.id WHERE r.partition = ?2
)
SELECT r.id, r.segment, s.num_input, r.body FROM branches b JOIN responses r ON r.id = b.id
JOIN segments s ON s.id = r.segment WHERE r.partition = ?2 ORDER BY r.rowid
"""
# A client may send the same item again with each request. The newest copies decide where the item may be sent.
_COPIES = """
SELECT i.segment FROM items i JOIN responses r ON r.segment = i.segment
WHERE i.id = ? AND r.partition = ? ORDER BY i.segment DESC LIMIT 64
"""
# What the row of an item takes besides its id, and the row of a response besides its body and its items. The queries
# repeat these numbers.
_ITEM_ROW_BYTES = 32
_RESPONSE_ROW_BYTES = 256
_MEDIUM_ROW_BYTES = 128
_SEGMENT_SIZES = """
CREATE TEMP VIEW segment_sizes AS SELECT s.id, s.parent, length(s.items) + (
    SELECT coalesce(sum(length(CAST(i.id AS BLOB)) + 32), 0) FROM items i WHERE i.segment = s.id
) AS num_bytes FROM segments s
"""
# The most JSON that is read for one request. A conversation's JSON is larger than its text, if much is escaped.
_MAX_READ_BYTES = 2 * MAX_CONVERSATION_BYTES

# The size of each partition. Of partitions with equal size, the one with the least recently used response is first.
_COUNTS = "SELECT partition, count(*) FROM responses GROUP BY partition ORDER BY min(used)"
_SIZES = """
WITH RECURSIVE needed (partition, segment) AS (
    SELECT partition, segment FROM responses
    UNION
    SELECT n.partition, s.parent FROM needed n JOIN segments s ON s.id = n.segment WHERE s.parent IS NOT NULL
)
SELECT partition, sum(num_bytes) FROM (
    SELECT partition, length(body) + 256 AS num_bytes, used FROM responses
    UNION ALL
    SELECT n.partition, s.num_bytes, NULL FROM needed n JOIN segment_sizes s ON s.id = n.segment
    UNION ALL
    SELECT partition, length(data) + 128, NULL FROM media
)
GROUP BY partition ORDER BY min(used)
"""
_NEXT_TO_EVICT = "SELECT id FROM responses WHERE partition = ? AND used < ? ORDER BY used LIMIT 1"


class ResponseDatabase(SqliteDatabase):
    """The stored responses in a SQLite file, or in memory if `path` is None. `form`: how items are written.

    All methods may raise sqlite3.Error or DamagedError. The constructor may also raise OSError.
    """

    counts: ClassVar[tuple[str, ...]] = ("_num_responses", "_num_bytes")

    def __init__(self, path: Path | None, limits: Limits, clock: Callable[[], float], form: ItemFormat) -> None:
        self._form = form
        self._limits = limits
        self._clock = clock
        self._num_responses = self._num_bytes = self._last_use = 0
        super().__init__(path, _SCHEMA, VERSION)

    def add(self, response: StoredResponse, body: bytes) -> None:
        """Store a response and its JSON, in place of one with the same id. Then evict responses over the limits."""
        with self._transaction():
            self._remove(response.id)
            parent = self._parent(response)
            inherited = response.num_inherited if parent is not None else 0
            own_input = response.context[inherited:]
            items = zlib.compress(self._form.encode((*own_input, *response.output)), 1)
            cursor = self._execute(
                "INSERT INTO segments (parent, num_input, items, title) VALUES (?, ?, ?, ?)",
                *(parent, len(own_input), items, _title_of((*own_input, *response.output))),
            )
            segment = cursor.lastrowid
            self._add_media(segment, response.partition, media_of((*own_input, *response.output)))
            packed = zlib.compress(body, 1)
            self._execute(
                "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                *(response.id, response.partition, response.previous_id, segment, packed, response.is_failed),
                *(self._clock(), self._next_use()),
            )
            own_ids = {item.id for item in (*own_input, *response.output)}
            self._connection.executemany("INSERT INTO items VALUES (?, ?)", [(name, segment) for name in own_ids])
            self._num_responses += 1
            self._num_bytes += _RESPONSE_ROW_BYTES + len(packed) + len(items)
            self._num_bytes += sum(len(name.encode()) + _ITEM_ROW_BYTES for name in own_ids)
            self._evict()

    def _add_media(self, segment: int | None, partition: str, media: Iterable[Media]) -> None:
        for medium in media:
            names = (segment, medium.digest, partition)
            if self._execute("INSERT OR IGNORE INTO segment_media VALUES (?, ?, ?)", *names).rowcount:
                values = (partition, medium.digest, medium.data)
                is_new = self._execute("INSERT OR IGNORE INTO media VALUES (?, ?, ?)", *values).rowcount
                self._num_bytes += is_new * (len(medium.data) + _MEDIUM_ROW_BYTES)

    def get(self, response_id: str, partition: str) -> StoredResponse | None:
        """Return a response of this partition, and mark it as used now; None if there is no such response.

        Raise InvalidRequest if its conversation is too long.
        """
        row = self._row(response_id, partition)
        if row is None:
            return None
        segment, previous_id, body, is_failed = row
        # Reading must also work on a full disk.
        with suppress(sqlite3.OperationalError):
            self._execute("UPDATE responses SET used = ? WHERE id = ?", self._next_use(), response_id)
        reader = _Reader(too_long())
        items: list[Item] = []
        num_inherited = num_context = 0
        chain = self._execute(_CHAIN, segment, MAX_ITEMS + 1).fetchall()
        if len(chain) > MAX_ITEMS:
            raise too_long()
        for each, num_input in reversed(chain):
            num_inherited = len(items)
            num_context = num_inherited + num_input
            items += self._items_of(each, reader)
            if len(items) > MAX_ITEMS:
                raise too_long()
        context, output = tuple(items[:num_context]), tuple(items[num_context:])
        return StoredResponse(
            *(response_id, context, output, num_inherited, previous_id, partition),
            is_failed=bool(is_failed),
            route=_route_of(reader.inflate(body)),
        ).with_transcript()

    def body(self, response_id: str, partition: str) -> bytes | None:
        """Return the JSON of a response of this partition; None if there is no such response."""
        row = self._row(response_id, partition)
        return _inflate(row[2]) if row else None

    def conversations(self, partition: str, limit: int) -> list[ListedConversation]:
        """Return this partition's conversations, the last continued first."""
        rows = self._execute(
            "SELECT id, previous_id, segment, created_s FROM responses WHERE partition = ? ORDER BY rowid", partition
        ).fetchall()
        root_of: dict[str, str] = {}
        segments: dict[str, int] = {}
        times: dict[str, list[float]] = {}
        for response_id, previous_id, segment, created_s in rows:
            root = root_of[response_id] = root_of.get(previous_id, response_id)
            segments.setdefault(root, segment)
            times.setdefault(root, []).append(created_s)
        newest = sorted(times, key=lambda root: times[root][-1], reverse=True)[:limit]
        return [
            ListedConversation(root, self._title(segments[root]), len(times[root]), times[root][0], times[root][-1])
            for root in newest
        ]

    def conversation(self, root_id: str, partition: str) -> list[ConversationTurn]:
        """Return a response and all that continue it, the oldest first; [] if this partition does not have it.

        Raise InvalidRequest if they are too long.
        """
        root = self.get(root_id, partition)
        if root is None:
            return []
        reader = _Reader(too_long())
        turns: list[ConversationTurn] = []
        for response_id, segment, num_input, body in self._execute(_BRANCHES, root_id, partition):
            own = root.context if response_id == root_id else self._items_of(segment, reader)[:num_input]
            turns.append(ConversationTurn(own, reader.inflate(body)))
        return turns

    def _title(self, segment: int) -> str:
        """Return the first words of a segment. An earlier version did not store them; then they are stored now."""
        title: str | None
        (title,) = self._execute("SELECT title FROM segments WHERE id = ?", segment).fetchone()
        if title is None:
            items: tuple[Item, ...] = ()
            with suppress(InvalidRequest):  # it is too large to be read
                items = self._items_of(segment, _Reader(too_long()), has_media=False)
            title = _title_of(items)
            with suppress(sqlite3.OperationalError):  # the disk may be full
                self._execute("UPDATE segments SET title = ? WHERE id = ?", title, segment)
        return title

    def find_items(self, item_ids: Iterable[str], partition: str) -> tuple[dict[str, Item], RouteMode | None]:
        """Return the partition's items that have these ids, by id, and a route mode. Unknown ids are left out.

        Of several items with the same id, the newest is returned. The route mode is the strictest one of the responses
        that added these items; None if they set none. Raise InvalidRequest if too much must be read.
        """
        message = "input refers to items of too many or too large responses; send the items"
        reader = _Reader(InvalidRequest(message, param="input"))
        wanted: dict[int, set[str]] = {}
        modes: dict[int, RouteMode | None] = {}
        for item_id in dict.fromkeys(item_ids):
            segments = [segment for (segment,) in self._execute(_COPIES, item_id, partition)]
            if segments:
                wanted.setdefault(segments[0], set()).add(item_id)
            for segment in segments:
                if segment not in modes:
                    (body,) = self._execute("SELECT body FROM responses WHERE segment = ?", segment).fetchone()
                    modes[segment] = _route_of(reader.inflate(body))
        found: dict[str, Item] = {}
        for segment, ids in wanted.items():
            found |= {item.id: item for item in self._items_of(segment, reader) if item.id in ids}
        return found, strictest(*modes.values())

    def remove(self, response_id: str, partition: str) -> bool:
        """Delete a response of this partition, and overwrite its bytes in the file. Return False if there is none.

        Its items stay if a stored response continues it.
        """
        if self._row(response_id, partition) is None:
            return False
        with self._transaction():
            self._remove(response_id)
        # Deleted content is zeroed in the file (secure_delete), but the write-ahead log may still hold it.
        self._truncate_log()
        return True

    def _prepare(self) -> None:
        with self._transaction():
            if not any(name == "title" for _, name, *_ in self._execute("PRAGMA table_info (segments)")):
                self._execute(_TITLE_COLUMN)
            for statement in f"{_MEDIA_SCHEMA}{_FORGET_UNNAMED}".split(";"):
                self._execute(statement)
        # The indexes are not part of the format: SQLite maintains them also for an older daemon, which does not create
        # them. They only save time, so the file is used even if the disk has no room for them.
        with suppress(sqlite3.OperationalError):
            self._execute("CREATE INDEX IF NOT EXISTS responses_by_partition ON responses (partition, used)")
            self._execute("CREATE INDEX IF NOT EXISTS responses_by_previous ON responses (previous_id, partition)")
            self._execute("CREATE INDEX IF NOT EXISTS items_by_segment ON items (segment)")
        self._execute(_SEGMENT_SIZES)
        self._num_responses, self._num_bytes = self._count()
        (self._last_use,) = self._execute("SELECT coalesce(max(used), 0) FROM responses").fetchone()
        with self._transaction():
            self._evict()

    def _count(self) -> tuple[int, int]:
        num_responses, body_bytes = self._execute(
            "SELECT count(*), coalesce(sum(length(body)), 0) FROM responses"
        ).fetchone()
        (segment_bytes,) = self._execute("SELECT coalesce(sum(num_bytes), 0) FROM segment_sizes").fetchone()
        (media_bytes,) = self._execute("SELECT coalesce(sum(length(data) + 128), 0) FROM media").fetchone()
        return num_responses, num_responses * _RESPONSE_ROW_BYTES + body_bytes + segment_bytes + media_bytes

    def _evict(self) -> None:
        oldest_s = self._clock() - self._limits.max_age_s
        for (response_id,) in self._execute("SELECT id FROM responses WHERE created_s < ?", oldest_s).fetchall():
            self._remove(response_id)
        self._make_room(lambda: self._num_responses, self._limits.max_responses, _COUNTS)
        self._make_room(lambda: self._num_bytes, self._limits.max_bytes, _SIZES)

    def _make_room(self, total: Callable[[], int], limit: float, shares: str) -> None:
        """Remove least recently used responses, always from the largest partition, until `total()` is at most `limit`.

        So a client that stores few responses keeps them, even if others store many. The most recently used response of
        all is never removed. `shares`: the SQL query for the size of each partition, in the unit of `total`.
        """
        held: dict[str, int] = dict(self._execute(shares).fetchall()) if total() > limit else {}
        while total() > limit and held:
            most = max(held, key=held.__getitem__)
            row = self._execute(_NEXT_TO_EVICT, most, self._last_use).fetchone()
            if row is None:
                del held[most]
                continue
            before = total()
            self._remove(row[0])
            # A segment stays while another response continues it.
            held[most] -= before - total()

    def _remove(self, response_id: str) -> None:
        row = self._execute("SELECT segment, length(body) FROM responses WHERE id = ?", response_id).fetchone()
        if row is None:
            return
        segment, num_bytes = row
        self._execute("DELETE FROM responses WHERE id = ?", response_id)
        self._num_responses -= 1
        self._num_bytes -= num_bytes + _RESPONSE_ROW_BYTES
        while segment is not None and not self._is_needed(segment):
            parent, num_bytes = self._execute(
                "SELECT parent, num_bytes FROM segment_sizes WHERE id = ?", segment
            ).fetchone()
            self._execute("DELETE FROM segments WHERE id = ?", segment)
            self._execute("DELETE FROM items WHERE segment = ?", segment)
            self._num_bytes -= num_bytes
            self._remove_media(segment)
            segment = parent

    def _remove_media(self, segment: int) -> None:
        """Delete the media that only this segment names."""
        named = self._execute("SELECT partition, digest FROM segment_media WHERE segment = ?", segment).fetchall()
        self._execute("DELETE FROM segment_media WHERE segment = ?", segment)
        for medium in named:
            if self._execute("SELECT 1 FROM segment_media WHERE partition = ? AND digest = ?", *medium).fetchone():
                continue
            row = self._execute("SELECT length(data) FROM media WHERE partition = ? AND digest = ?", *medium).fetchone()
            self._execute("DELETE FROM media WHERE partition = ? AND digest = ?", *medium)
            self._num_bytes -= row[0] + _MEDIUM_ROW_BYTES

    def _is_needed(self, segment: int) -> bool:
        row = self._execute(
            "SELECT EXISTS (SELECT 1 FROM responses WHERE segment = ?1) "
            "OR EXISTS (SELECT 1 FROM segments WHERE parent = ?1)",
            segment,
        ).fetchone()
        return bool(row[0])

    def _parent(self, response: StoredResponse) -> int | None:
        if not response.num_inherited or response.previous_id is None:
            return None
        row = self._row(response.previous_id, response.partition)
        return row[0] if row else None

    def _row(self, response_id: str, partition: str) -> tuple[int, str | None, bytes, bool] | None:
        row: tuple[int, str | None, bytes, bool] | None = self._execute(
            "SELECT segment, previous_id, body, is_failed FROM responses WHERE id = ? AND partition = ?",
            *(response_id, partition),
        ).fetchone()
        return row

    def _items_of(self, segment: int, reader: _Reader, *, has_media: bool = True) -> tuple[Item, ...]:
        """Return the items of a segment. Without `has_media`, their media are empty."""

        def find(kind: MediaKind, digest: bytes) -> Media:
            return Media(kind, self._medium(segment, digest, reader) if has_media else b"", digest)

        (packed,) = self._execute("SELECT items FROM segments WHERE id = ?", segment).fetchone()
        try:
            return self._form.decode(reader.inflate(packed), find)
        except (ValueError, EdgeAgentError) as error:
            if error is reader.refusal:
                raise
            raise DamagedError("a segment does not hold items") from error

    def _medium(self, segment: int, digest: bytes, reader: _Reader) -> bytes:
        row: tuple[bytes] | None = self._execute(
            "SELECT data FROM segment_media JOIN media USING (partition, digest) WHERE segment = ? AND digest = ?",
            *(segment, digest),
        ).fetchone()
        if row is None:
            raise DamagedError("a medium of a segment is missing")
        reader.count(len(row[0]))
        return row[0]

    def _next_use(self) -> int:
        self._last_use += 1
        return self._last_use


class _Reader:
    """Inflates what is read for one request. It raises `refusal` before it would inflate more than _MAX_READ_BYTES."""

    def __init__(self, refusal: InvalidRequest) -> None:
        self.refusal = refusal
        self._num_left = _MAX_READ_BYTES

    def inflate(self, packed: bytes) -> bytes:
        content = _inflate(packed, self._num_left + 1)
        self.count(len(content))
        return content

    def count(self, num_bytes: int) -> None:
        """Count bytes that were read; raise the refusal if they are too many."""
        self._num_left -= num_bytes
        if self._num_left < 0:
            raise self.refusal


def _title_of(items: Iterable[Item]) -> str:
    """Return the first words that the user says in these items, which are the title of a conversation."""
    said = (item for item in items if isinstance(item, MessageItem) and item.role == "user")
    first = next(said, MessageItem("", "user", ""))
    text = first.text if first.text.strip() or not first.media else f"[{first.media[0][1].kind}]"
    return " ".join(text[:120].split())


def _inflate(packed: bytes, max_bytes: int = 0) -> bytes:
    """Return the content, or its first `max_bytes` (0: no limit)."""
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(packed, max_bytes)
    except zlib.error as error:
        raise DamagedError(str(error)) from error
    if not inflater.eof and len(content) != max_bytes:
        raise DamagedError("its compressed content is incomplete")
    return content


def _route_of(body: bytes) -> RouteMode | None:
    """Return a response's route mode, which its continuations inherit. `body`: the response's JSON.

    Return None if the response has no mode, or LOCAL_ONLY if the mode cannot be read.
    """
    try:
        notes = json.loads(body).get("edgeagent") or {}
        return None if notes.get("mode") is None else RouteMode(notes["mode"])
    except (ValueError, AttributeError):
        return RouteMode.LOCAL_ONLY
