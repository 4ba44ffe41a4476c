"""The private files with which other processes find the daemon: daemon.json (process id, URL, version) and the token.

A client trusts daemon.json only while the process that wrote it runs. Otherwise the client would send the token to any
program that took over the port of a dead daemon.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import stat
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from edgeagent.errors import BackendUnavailable, ConfigError
from edgeagent.state_files import NO_FOLLOW, NO_WAIT, holder

RUNTIME_FILE = "daemon.json"
LOCK_FILE = "daemon.lock"
TOKEN_FILE = "token"  # noqa: S105 a file's name
MIN_TOKEN_CHARS = 22
MAX_TOKEN_CHARS = 512
_LOOPBACKS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 compared, not bound
# The characters that a Bearer token may have (RFC 6750, section 2.1).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")


class Runtime(Struct, frozen=True):
    """A running daemon. `started_at_s` is the start of its process in seconds since 1970, as psutil reports it.

    `token` is the owner's token, None if there is no token file. `certificate` is the path of the daemon's TLS
    certificate, None without TLS. A client that found the path here trusts no other certificate. `forgets`: the daemon
    keeps no conversation on the disk, so its clients must not keep any either.
    """

    pid: Annotated[int, Meta(gt=0)]
    started_at_s: float
    port: int
    url: str
    version: str
    token: str | None = None
    certificate: str | None = None
    forgets: bool = False
    network_urls: tuple[str, ...] = ()


def bracketed(host: str) -> str:
    """Return a host as it is written in a URL: an IPv6 address gets brackets."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.version == 6:
            return f"[{address.compressed}]"
    return host


def local_url(host: str, port: int, *, is_encrypted: bool) -> str:
    """Return the URL at which this machine reaches a daemon that listens on `host`.

    If the daemon listens on every address, the URL contains the loopback address.
    """
    return f"{'https' if is_encrypted else 'http'}://{bracketed(_LOOPBACKS.get(host, host))}:{port}"


def find_daemon(state_dir: Path) -> Runtime | None:
    """Return the daemon that runs with this state folder; None if there is none. Raise the errors of `read_token`."""
    runtime = _read_runtime(state_dir / RUNTIME_FILE)
    if runtime is None or not _is_running(runtime):
        return None
    return replace(runtime, token=read_token(state_dir))


def no_daemon(state_dir: Path) -> BackendUnavailable:
    """Return the error to raise if `find_daemon` returns None. It says why no daemon was found."""
    process = holder(state_dir / LOCK_FILE)
    if not _can_look_into(state_dir):
        message = (
            f"the state folder {state_dir} is closed to this user: run the command as the user of its daemon, "
            "or choose another folder with --state-dir"
        )
    elif process is None:
        message = f"no daemon runs with the state folder {state_dir}; start one with `edgeagent serve`"
    else:
        message = (
            f"process {process} holds the state folder {state_dir}, but {RUNTIME_FILE}, which says where it listens, "
            "is not there: it is starting, or the disk is full (the file is written as soon as there is room; "
            f"`kill {process}` stops the daemon)"
        )
    return BackendUnavailable(message, retry_after_s=0.5)


def write_runtime(state_dir: Path, runtime: Runtime) -> None:
    """Write a daemon's runtime file atomically, readable by this user only; raise ConfigError if that fails.

    The token is not written to this file. It has a file of its own.
    """
    fields = asdict(runtime)
    del fields["token"]
    content = msgspec.json.format(msgspec.json.encode(fields), indent=1)
    write_private(state_dir / RUNTIME_FILE, content + b"\n")


def remove_runtime(state_dir: Path, pid: int) -> None:
    """Remove the runtime file of the daemon with this process id. The file of another daemon stays."""
    if is_published(state_dir, pid):
        (state_dir / RUNTIME_FILE).unlink(missing_ok=True)


def is_published(state_dir: Path, pid: int) -> bool:
    """Whether the runtime file is there, whole, and that of the daemon with this process id."""
    runtime = _read_runtime(state_dir / RUNTIME_FILE)
    return runtime is not None and runtime.pid == pid


def read_token(state_dir: Path) -> str | None:
    """Return the owner's token; None if the state folder has no token file.

    Raise ConfigError if other users could have read or written the file, if it cannot be read, or if it does not hold
    a token.
    """
    path = state_dir / TOKEN_FILE
    content = read_private(path)
    if content is None:
        return None
    token = content.decode("ascii", errors="replace").strip()
    if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS or not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"{path} does not hold a token ({MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} letters, digits and -._~+/=); "
            "delete it, and start again"
        )
    return token


def write_private(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 atomically; raise ConfigError if that fails."""
    try:
        _write_whole(path, content)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _write_whole(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | NO_FOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_private(path: Path, max_bytes: int = 1 << 16) -> bytes | None:
    """Return the first `max_bytes` bytes of a private file; None if there is no file.

    Raise ConfigError if the file cannot be read, is not a regular file, or could have been read or written by other
    users.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        # In another user's folder even this check raises PermissionError.
        with contextlib.suppress(PermissionError):
            if path.is_symlink():
                raise ConfigError(f"{path} is a link; replace it by a regular file, or delete it") from error
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        check_private(path, os.fstat(descriptor))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(max_bytes)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def check_private(path: Path, status: os.stat_result) -> None:
    """Raise ConfigError if a file is not a regular file, or if other users could have read or written it.

    `status` is the result of `os.fstat` for the file. The error says what to do.
    """
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a regular file; delete it")
    # Windows has no such mode bits; there the user's own folder keeps other users out.
    if sys.platform == "win32":
        return
    if status.st_uid != os.getuid():
        raise ConfigError(
            f"{path} belongs to another user (uid {status.st_uid}); take it back with `chown`, or delete it"
        )
    if status.st_mode & 0o077:
        raise ConfigError(f"{path} is open to other users; run `chmod 600 {path}`, or delete it for a new one")


def _read_runtime(path: Path) -> Runtime | None:
    """Return what a runtime file says; None if there is no file, or if it cannot be trusted, read or parsed."""
    with contextlib.suppress(ConfigError, msgspec.MsgspecError, UnicodeDecodeError):
        content = read_private(path)
        return None if content is None else msgspec.json.decode(content, type=Runtime)
    return None


def _can_look_into(folder: Path) -> bool:
    try:
        (folder / RUNTIME_FILE).lstat()
    except PermissionError:
        return False
    except OSError:
        pass
    return True


def _is_running(runtime: Runtime) -> bool:
    # psutil takes 20 ms to import, and most commands that look for a daemon find no file.
    import psutil

    try:
        process = psutil.Process(runtime.pid)
        # The times are read from clocks with a granularity of 10 ms.
        is_same: bool = abs(process.create_time() - runtime.started_at_s) <= 1.0
        return is_same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
