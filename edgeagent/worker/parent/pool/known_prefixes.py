"""Which prefixes of conversations a model's cache probably has: what a prediction needs before a prompt is tokenized.

The daemon knows a prefix by a digest that is keyed with the installation's secret, so it reveals no text. What the disk
cache keeps over restarts is also in a file in the model's folder of cached blocks. Each purge deletes this file.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgeagent.cache_folder import PREFIXES_FILE
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import read_private, write_private

_MAX_PREFIXES = 8192
_CLIENT_BYTES, _PREFIX_BYTES = 4, 8  # of a digest; in the file, one takes at most 16
_MAX_FILE_BYTES = 32 * _MAX_PREFIXES
# If the daemon is killed, the prefixes of this time count as uncached after its restart.
_SAVE_S = 60.0


@dataclass(slots=True)
class _Prefix:
    """A prefix in the cache, or in the prompt of a live request.

    `computed_by`: the id of the request that is to compute it; "" once one has. `is_end`: a prompt ended there.
    `persists`: the cache may write it to disk. `place`: its place by its last use, if only the disk may have it: no
    request had it from the present worker; else 0.
    """

    computed_by: str
    is_end: bool = False
    persists: bool = False
    place: int = 0


class KnownPrefixes:
    """The latest prefixes of one model's conversations, by digest."""

    def __init__(self, secret: bytes = b"", folder: Path | None = None) -> None:
        """Read the file, if there is one; call this in a thread. `folder`: None if nothing is cached on disk."""
        self._secret = secret or secrets.token_bytes(32)
        self._path = None if folder is None else folder / PREFIXES_FILE
        self._known = OrderedDict[bytes, _Prefix]()
        self._is_saved, self._saved_s = True, -_SAVE_S
        self._num_purges = 0
        with suppress(ConfigError, msgspec.MsgspecError):  # of a file that cannot be used, all counts as uncached
            content = None if self._path is None else read_private(self._path, _MAX_FILE_BYTES)
            saved = {} if content is None else msgspec.msgpack.decode(content, type=dict[bytes, bool])
            for place, (digest, is_end) in enumerate(saved.items(), 1):
                self._known[digest] = _Prefix("", is_end, persists=True, place=place)

    def digests(self, client: str, parts: Iterable[object]) -> Iterator[bytes]:
        """Yield the digest of each prefix of a client's prompt: of its first part, of its first two, and so on.

        They are the same after a restart. `parts`: what msgspec encodes.
        """
        owner = self._owner(client)
        prefix, encode = self._hash(owner, _PREFIX_BYTES), msgspec.msgpack.Encoder().encode
        for part in parts:
            prefix.update(encode(part))
            yield owner + prefix.copy().digest()

    def _owner(self, client: str) -> bytes:
        """Return how all digests of a client begin."""
        return self._hash(client.encode(), _CLIENT_BYTES).digest()

    def _hash(self, start: bytes, num_bytes: int) -> hashlib.blake2b:
        return hashlib.blake2b(start, key=self._secret, digest_size=num_bytes, person=b"edgeagent prefix")

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._known

    def is_end(self, digest: bytes) -> bool:
        """Whether a prompt ended with this prefix, so that the answer to it is cached too."""
        return digest in self._known and self._known[digest].is_end

    def expect(self, request_id: str, digests: Sequence[bytes], *, persists: bool) -> None:
        """Add the prefixes of a prompt, the shortest first. The request computes those that are not cached."""
        for digest in digests:
            known = self._known.setdefault(digest, _Prefix(request_id))
            known.is_end |= digest == digests[-1]
            known.persists |= persists
            self._known.move_to_end(digest)
        while len(self._known) > _MAX_PREFIXES:
            self._known.popitem(last=False)

    def note_computed(self, digests: Sequence[bytes]) -> None:
        """Record that a request had these prefixes in the cache."""
        self._is_saved = False
        for digest in digests:
            if (known := self._known.get(digest)) is not None:
                known.computed_by, known.place = "", 0

    def withdraw(self, request_id: str, digests: Sequence[bytes]) -> None:
        """Remove those of the prefixes that a request was to compute, and did not."""
        for digest in digests:
            if digest in self._known and self._known[digest].computed_by == request_id:
                del self._known[digest]

    def forget_memory(self) -> None:
        """Forget what only a worker that has ended had, but not what live requests are to compute."""
        is_on_disk = self._path is not None
        self._keep(lambda _, prefix: bool(prefix.computed_by) or (prefix.persists and is_on_disk))
        for place, prefix in enumerate(self._known.values(), 1):
            if not prefix.computed_by:
                prefix.place = place

    def note_lost(self, digests: Sequence[bytes]) -> None:
        """Record that a prompt with these prefixes, the shortest first, was not cached, and is computed again.

        What was used before the longest of them and only the disk may have is forgotten: it was evicted sooner, or
        nothing on disk fits the model's present settings.
        """
        last = 0
        for digest in digests:
            if (known := self._known.get(digest)) is not None:
                last, known.place = known.place or last, 0
        self._keep(lambda _, prefix: not 0 < prefix.place <= last)

    async def purge(self, client: str | None) -> None:
        """Forget the prefixes of a client (None: of all), and delete the file. The others are written again later."""
        purged = b"" if client is None else self._owner(client)
        self._num_purges += 1
        self._keep(lambda digest, _: not digest.startswith(purged))
        if self._path is not None:
            await asyncio.to_thread(_delete, self._path)

    def _keep(self, is_kept: Callable[[bytes, _Prefix], bool]) -> None:
        self._known = OrderedDict(item for item in self._known.items() if is_kept(*item))
        self._is_saved = False

    async def save_if_due(self) -> None:
        """Write the file as `save` does, but not more often than once in _SAVE_S."""
        if time.monotonic() >= self._saved_s + _SAVE_S:
            await self.save()

    async def save(self) -> None:
        """Write the file if anything has changed, or if the purge of a client's blocks has deleted it since.

        If that fails, the worker reports what is wrong with the disk.
        """
        if self._path is None or (self._is_saved and not self._known):
            return
        self._saved_s = time.monotonic()
        if self._is_saved and await asyncio.to_thread(self._path.exists):
            return
        self._is_saved = True
        kept = ((digest, prefix) for digest, prefix in self._known.items() if not prefix.computed_by)
        content = msgspec.msgpack.encode({digest: prefix.is_end for digest, prefix in kept if prefix.persists})
        await asyncio.to_thread(self._write, self._path, content, self._num_purges)

    def _write(self, path: Path, content: bytes, num_purges: int) -> None:
        with suppress(ConfigError):
            write_private(path, content)
        if self._num_purges != num_purges:  # there was a purge meanwhile
            _delete(path)


def _delete(path: Path) -> None:
    with suppress(OSError):  # the purge of the blocks beside it fails too, and says so
        path.unlink(missing_ok=True)
