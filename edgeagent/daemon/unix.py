"""The Unix socket, if one is configured: checks of its folder, removal of an old socket, and each client's user."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgeagent.daemon.state import ExitCode, StartError

BACKLOG = 2048
# struct xucred (macOS, sys/ucred.h) begins with a version and the user.
_LOCAL_PEERCRED, _SOL_LOCAL = 0x001, 0


@contextmanager
def unix_listener(path: Path | None) -> Iterator[socket.socket | None]:
    """Yield a listening socket at a path, and remove it at the end. Yield None if `path` is None.

    Raise StartError if the folder is not private to this user, if another file or program uses the path, or if
    listening fails. On Windows, every path raises it.
    """
    if path is None:
        yield None
        return
    if sys.platform == "win32":
        raise StartError("there are no Unix sockets on Windows; leave server.unix empty", ExitCode.WRONG_SETTING)
    _check_folder(path.parent)
    _clear(path)
    with contextlib.closing(_bind(path)) as listener:
        inode = path.lstat().st_ino
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:
                    path.unlink()


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise StartError(f"cannot use the folder {folder} for a socket: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StartError(
            f"{folder} is not a folder (or a link to one); choose another for server.unix", ExitCode.WRONG_SETTING
        )
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise StartError(
            f"the folder {folder} is open to other users; run `chmod 700 {folder}`, or choose another",
            ExitCode.WRONG_SETTING,
        )


def _clear(path: Path) -> None:
    """Remove the socket that a killed daemon has left. Raise StartError if anything else is at the path."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        raise StartError(
            f"{path} exists and is not this user's socket; remove it, or choose another server.unix",
            ExitCode.WRONG_SETTING,
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise StartError(f"another program listens on {path}; stop it first", ExitCode.PORT_TAKEN)
    path.unlink(missing_ok=True)


def _bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # With this mask the socket is private from its first moment. No other thread creates files while the daemon starts.
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {path}: {error.strerror or error}") from error
    finally:
        os.umask(mask)
    return listener


def is_other_user(connection: socket.socket) -> bool:
    """Whether the client of a Unix socket belongs to another or an unknown user. False for a socket of another kind."""
    if sys.platform == "win32" or connection.family != socket.AF_UNIX:
        return False
    # Use a copy, since event loops return stand-ins for their sockets, without options.
    with socket.socket(connection.family, connection.type, fileno=os.dup(connection.fileno())) as copy:
        try:
            return _peer_uid(copy) != os.getuid()
        except OSError:
            return True


def _peer_uid(connection: socket.socket) -> int:
    uid: int
    if sys.platform == "linux":
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    else:
        _, uid = struct.unpack("2I", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)[:8])
    return uid
