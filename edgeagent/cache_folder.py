"""The cache on disk: the folder of each model, its file names, its records of models and clients, and the removal.

Each model has a folder of its own in the cache folder. Only the worker that holds the folder's lock writes there. The
engine's block store writes and reads the blocks. The daemon and the command line use this module to list and remove
blocks without the engine. This module does not read the content of blocks. The file name of a block holds everything
that an index needs. It contains no client's name, and reveals nothing about a prompt without the installation's secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path

from edgeagent.errors import ConfigError
from edgeagent.runtime_file import read_private

SECRET_FILE = "cache.secret"  # noqa: S105 a file's name
STATE_FILE = "state.json"
LOCK_FILE = "lock"
PREFIXES_FILE = "known.prefixes"  # written by the daemon; see worker.parent.pool.known_prefixes
SECRET_BYTES = 32
ROOT_BYTES = 8
PARENT_BYTES = 16
_RECORD_SUFFIX = ".about"
_TEMPORARY_PREFIX = "tmp-"
_NAME = re.compile(
    r"(?P<root>[0-9a-f]{16})-(?P<parent>[0-9a-f]{32})-(?P<key>[0-9a-f]{64})"
    r"-(?P<start>[0-9a-f]{1,8})-(?P<length>[0-9a-f]{1,8})-(?P<importance>[0-9])\.kv"
)
_RECORD_NAME = re.compile(r"[0-9a-f]{16}\.about")
_MODEL_FOLDER = re.compile(r"[A-Za-z0-9._+-]+-[0-9a-f]{16}")
# The year 2242. A later time in the state file is not believed.
_NO_TIME_S = 2.0**33


class Importance(IntEnum):
    """Why a block is kept; a more important one is written sooner and kept longer."""

    VOLATILE = -1
    """For memory only; never written to disk."""
    NORMAL = 1
    """Part of a prompt or an answer. Most new blocks have this importance."""
    REUSED = 2
    """Used by a second request."""
    SYSTEM = 3
    """A system prompt or tool definitions."""
    PINNED = 4
    """Must stay until it is purged."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """The fields of a block's file name.

    `key` identifies the block. `parent` is the beginning of the previous block's key; for the first block of a prefix
    it begins with the root. `root` stands for one model, one client and one set of settings; all blocks of these have
    the same root. The block has `length` tokens and begins at the token `start`. `importance` is one digit, the
    value of an Importance.
    """

    root: bytes
    parent: bytes
    key: bytes
    start: int
    length: int
    importance: int

    @property
    def file_name(self) -> str:
        """The name of the file in the folder: lower case, and short enough for every file system."""
        keys = "-".join(key.hex() for key in (self.root, self.parent, self.key))
        return f"{keys}-{self.start:x}-{self.length:x}-{self.importance}.kv"

    @property
    def short_key(self) -> bytes:
        """The part of the key that is the `parent` of the blocks after this one."""
        return self.key[:PARENT_BYTES]

    @property
    def is_first(self) -> bool:
        """Whether the block is the first one of a prefix. Then its parent begins with the root."""
        return self.parent.startswith(self.root)


@dataclass(slots=True)
class BlockFile:
    """A block's file. `used_s`: when the block was last used, by the folder's own clock; see SavedState.

    The file's modification time stores `used_s`. `is_draft`: the file belongs to a draft model, as its head says.
    """

    name: BlockName
    num_bytes: int
    used_s: float
    is_draft: bool = False

    @property
    def importance(self) -> Importance:
        """The block's importance. A higher value, written by a newer version of edgeagent, counts as PINNED."""
        return Importance(min(max(self.name.importance, Importance.NORMAL), Importance.PINNED))


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a folder's STATE_FILE keeps from one process to the next.

    - `now_s`: the folder's own time when this was saved. Ages of blocks are measured in it, and it never goes back.
    - `wall_s`: what the wall clock showed then.
    - `allowance_bytes`: how many bytes could be written at `allowance_at_s`, by the folder's time.
    - `read_bytes_per_s`: the measured rate of reads; 0 if none is known.
    """

    now_s: float
    wall_s: float
    allowance_bytes: float
    allowance_at_s: float
    read_bytes_per_s: float

    def now_after(self, wall_s: float, max_gap_s: float) -> float:
        """Return the folder's time when the wall clock shows `wall_s`.

        It advanced as the wall clock did, but by at most `max_gap_s`. So a wrong wall clock can neither expire all
        blocks nor keep them forever.
        """
        return self.now_s + min(max(0.0, wall_s - self.wall_s), max_gap_s)


def read_state(folder: Path) -> SavedState | None:
    """Return the state that a process saved in a folder; None if there is no valid one."""
    try:
        fields = json.loads(read_private(folder / STATE_FILE) or b"")
        state = SavedState(**{name: float(fields[name]) for name in SavedState.__slots__})
    except (ConfigError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    has_times = max(state.now_s, state.wall_s, state.allowance_at_s) < _NO_TIME_S
    return state if has_times and all(0 <= value < math.inf for value in asdict(state).values()) else None


def encode_state(state: SavedState) -> bytes:
    """Return a state as the content of its file. Nothing is written."""
    return json.dumps(asdict(state)).encode()


def model_folder(cache_dir: Path, model: Path, secret: bytes) -> Path:
    """Return the folder of the blocks of the model at a path. Each installation, by its secret, has its own."""
    digest = hashlib.blake2b(os.fsencode(model.absolute()), key=secret, digest_size=8, person=b"edgeagent folder")
    stem = re.sub(r"[^A-Za-z0-9._+-]+", "_", model.stem)[:64] or "model"
    return cache_dir / f"{stem}-{digest.hexdigest()}"


def model_folders(cache_dir: Path) -> list[Path]:
    """Return the folders of all models; none if there is no cache folder. Raise OSError if it cannot be listed."""
    if not cache_dir.is_dir():
        return []
    with os.scandir(cache_dir) as entries:
        found = [entry for entry in entries if _MODEL_FOLDER.fullmatch(entry.name)]
        return [cache_dir / entry.name for entry in found if entry.is_dir(follow_symlinks=False)]


@dataclass(frozen=True, slots=True)
class RootRecord:
    """The model and client of all blocks with the same root, stored in a file beside the blocks.

    It is used to list blocks, and to purge those of one client. `settings` holds what the blocks depend on, by name;
    it is empty if an older version wrote the file.
    """

    model: str
    client: str
    settings: Mapping[str, str] = field(default_factory=dict, compare=False)


def parse_name(file_name: str) -> BlockName | None:
    """Parse the name of a block's file; return None for any other file name."""
    match = _NAME.fullmatch(file_name)
    if match is None:
        return None
    return BlockName(
        bytes.fromhex(match["root"]),
        bytes.fromhex(match["parent"]),
        bytes.fromhex(match["key"]),
        int(match["start"], 16),
        int(match["length"], 16),
        int(match["importance"]),
    )


def scan(folder: Path) -> Iterator[BlockFile]:
    """Yield the blocks of a folder without opening their files; raise OSError if it cannot be listed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = parse_name(entry.name)
            if name is None:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # another process removed it
            if stat.S_ISREG(status.st_mode):
                yield BlockFile(name, status.st_size, status.st_mtime)


def ensure_private(folder: Path) -> None:
    """Create the folder if needed, and make it private to this user. Parents that it creates are private too.

    Raise OSError if that fails, if the path is a link or a file, or if the folder belongs to another user.
    """
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(20, "is not a folder (links are not followed)", str(folder))
    if sys.platform == "win32":
        return
    if status.st_uid != os.getuid():
        raise PermissionError(1, "belongs to another user", str(folder))
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def ensure_secret(state_dir: Path) -> bytes:
    """Return this installation's secret, creating it on first use.

    Raise ConfigError if its file cannot be created or read, or if other users could have read it. If two processes
    create the secret at the same time, the second one uses the secret of the first. A secret that a crash left
    incomplete is replaced by a new one. Blocks on disk that were encoded with the old secret are then lost.
    """
    path = state_dir / SECRET_FILE
    for _ in range(100):
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o600)
        except FileExistsError:
            secret = read_private(path)
            if secret is not None and len(secret) == SECRET_BYTES:
                return secret
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > 1:
                    path.unlink()
            time.sleep(0.02)  # the process that created the file is still writing it
            continue
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error
        secret = secrets.token_bytes(SECRET_BYTES)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(secret)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from error
        return secret
    raise ConfigError(f"{path} does not hold {SECRET_BYTES} bytes; delete it, and start again")


def temporary_name() -> str:
    """Return a new name for a file that is being written. It contains the process id."""
    return f"{_TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"


def temporary_owner(file_name: str) -> int | None:
    """Return the id of the process that writes, or wrote, a temporary file; None for any other file name."""
    match = re.fullmatch(rf"{_TEMPORARY_PREFIX}(\d+)-[0-9a-f]+", file_name)
    return int(match[1]) if match else None


def root_record_name(root: bytes) -> str:
    return f"{root[:ROOT_BYTES].hex()}{_RECORD_SUFFIX}"


def encode_root_record(record: RootRecord) -> bytes:
    """Return a RootRecord as the content of its file. Nothing is written."""
    fields = {"model": record.model, "client": record.client, "settings": dict(record.settings)}
    return json.dumps(fields).encode()


def read_root_records(folder: Path) -> dict[bytes, RootRecord]:
    """Return the RootRecord of each root in the folder. Unreadable files are skipped; no error is raised."""
    known = {}
    with contextlib.suppress(OSError):
        for name in list_names(folder):
            if _RECORD_NAME.fullmatch(name):
                record = _read_root_record(folder / name)
                if record is not None:
                    known[bytes.fromhex(name.removesuffix(_RECORD_SUFFIX))] = record
    return known


def _read_root_record(path: Path) -> RootRecord | None:
    try:
        match json.loads(read_private(path) or b"null"):
            case {"model": str(model), "client": str(client), **rest}:
                settings = rest.get("settings")
                known = settings.items() if isinstance(settings, dict) else ()
                return RootRecord(model, client, {name: text for name, text in known if isinstance(text, str)})
    except (ConfigError, ValueError, RecursionError):
        pass
    return None


@dataclass(frozen=True, slots=True)
class FolderShare:
    """The cached blocks with the same root: one model, one client, one set of settings.

    `record` is None if the root's file cannot be read. `unused_s`: seconds since the latest use of any of the blocks.
    """

    record: RootRecord | None
    num_blocks: int
    num_tokens: int
    num_bytes: int
    unused_s: float

    def described(self) -> dict[str, str | int | float | None]:
        """Return the values as they are listed in JSON."""
        return {
            "model": self.record.model if self.record else None,
            "client": self.record.client if self.record else None,
            "num_blocks": self.num_blocks,
            "num_tokens": self.num_tokens,
            "num_bytes": self.num_bytes,
            "unused_s": round(self.unused_s, 1),
        }


def list_parts(cache_dir: Path) -> list[FolderShare]:
    """Return the totals of the cache's blocks, one FolderShare for each root. The most recently used share is first.

    A model and client with blocks for several settings have several shares. The result is empty if there is no folder.
    Raise OSError if a folder cannot be listed.
    """
    parts = [part for folder in _folders(cache_dir) for part in _parts_of(folder)]
    return sorted(parts, key=lambda part: part.unused_s)


def _folders(cache_dir: Path) -> list[Path]:
    """Return all folders with blocks. Older versions kept those of all models in the cache folder itself."""
    return [cache_dir, *model_folders(cache_dir)] if cache_dir.is_dir() else []


def _parts_of(folder: Path) -> list[FolderShare]:
    records, state, wall_s = read_root_records(folder), read_state(folder), time.time()
    now_s = wall_s if state is None else state.now_after(wall_s, math.inf)
    roots: dict[bytes, list[BlockFile]] = {}
    for found in scan(folder):
        roots.setdefault(found.name.root, []).append(found)
    return [
        FolderShare(
            record=records.get(root),
            num_blocks=len(blocks),
            num_tokens=sum(block.name.length for block in blocks),
            num_bytes=sum(block.num_bytes for block in blocks),
            unused_s=max(0.0, now_s - max(block.used_s for block in blocks)),
        )
        for root, blocks in roots.items()
    ]


def purge_unfinished(cache_dir: Path) -> None:
    """Remove the files that a worker had not finished when it died. No worker may use the cache.

    Raise OSError if a file cannot be removed.
    """
    for folder in _folders(cache_dir):
        for name in list_names(folder):
            if temporary_owner(name) is not None:
                (folder / name).unlink(missing_ok=True)


def purge(cache_dir: Path, client: str | None = None) -> int:
    """Remove all blocks, or those of one client, with their RootRecords. Return how many blocks were removed.

    The files of known prefixes are removed in any case. A running daemon writes those of the other clients again.

    A process that is reading a removed block gets a cache miss. Blocks whose client is unknown are always removed, even
    if `client` is given. Raise OSError if a file cannot be removed.
    """
    return sum(_purge(folder, client) for folder in _folders(cache_dir))


def _purge(folder: Path, client: str | None) -> int:
    records = read_root_records(folder)
    num_removed = 0
    for name in list_names(folder):
        if PREFIXES_FILE in name:  # a crash may have left an unfinished one, which has another name
            (folder / name).unlink(missing_ok=True)
        block = parse_name(name)
        root = block.root if block else bytes.fromhex(name[:16]) if _RECORD_NAME.fullmatch(name) else None
        if root is None:
            continue
        record = records.get(root)
        if client is None or record is None or record.client == client:
            (folder / name).unlink(missing_ok=True)
            num_removed += block is not None
    return num_removed


def remove_files(folder: Path) -> int:
    """Remove all files of the cache from a folder that no worker uses. Return how many blocks were removed.

    Subfolders and other files stay. Raise OSError if a file cannot be removed.
    """
    num_removed = _purge(folder, None)
    for name in list_names(folder):
        if name in (STATE_FILE, LOCK_FILE) or temporary_owner(name) is not None:
            (folder / name).unlink(missing_ok=True)
    return num_removed


def list_names(folder: Path) -> list[str]:
    """Return the names of all files in the folder; raise OSError if it cannot be listed."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]
