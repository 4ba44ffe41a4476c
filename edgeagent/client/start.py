"""Starts the daemon for an application that finds none. One process at a time does that, and the others wait for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import edgeagent
from edgeagent.errors import BackendUnavailable, ConfigError
from edgeagent.runtime_file import Runtime, find_daemon
from edgeagent.state_files import NO_FOLLOW, open_own, try_lock

LOCK_FILE = "start.lock"
LOG_FILE = "daemon.log"
# The default of systemd for a service (DefaultTimeoutStartSec). On a warm disk a daemon listens after half a second.
START_TIMEOUT_S = 90.0
POLL_S = 0.05
_ALREADY_RUNNING = 4
"""The exit status of a daemon whose state folder another one uses (see daemon.ExitCode)."""


def ensure_daemon(state_dir: Path | None = None) -> Runtime:
    """Return the daemon that uses a state folder. Start one if none runs, and wait until it listens.

    Without `state_dir`, the folder and the port are those of the user's settings; if the user installed the service, it
    is started. With `state_dir`, the application has a daemon of its own, on a free port. A started daemon outlives
    this process, and logs to daemon.log in the folder.

    Raise ConfigError if the settings are wrong, or BackendUnavailable if the daemon cannot start, or not in
    START_TIMEOUT_S.
    """
    if state_dir is None:
        from edgeagent.config_sources import load_config

        folder = load_config().config.state_dir
    else:
        folder = state_dir.absolute()
    if (found := find_daemon(folder)) is not None:
        return found
    give_up_at_s = time.monotonic() + START_TIMEOUT_S
    with _turn(folder, give_up_at_s):
        # The process that had the turn before may have started it.
        if (found := find_daemon(folder)) is not None:
            return found
        if state_dir is not None or not _started_by_systemd(give_up_at_s):
            return _spawned(folder, has_own_port=state_dir is not None, give_up_at_s=give_up_at_s)
        return _wait(folder, None, give_up_at_s)


@contextmanager
def _turn(folder: Path, give_up_at_s: float) -> Iterator[None]:
    """Hold the lock of those who start a daemon. The kernel releases it if this process ends."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = open_own(folder / LOCK_FILE)
    except OSError as error:
        raise ConfigError(f"cannot use the state folder {folder}: {error.strerror}") from None
    try:
        while not try_lock(lock):
            if time.monotonic() > give_up_at_s:
                raise _too_slow(folder)
            time.sleep(POLL_S)
        yield
    finally:
        os.close(lock)


def _started_by_systemd(give_up_at_s: float) -> bool:
    """Start the user's service if it is installed, and wait until it listens. Return whether it is installed."""
    if sys.platform != "linux" or (systemctl := shutil.which("systemctl")) is None:
        return False
    ask = [systemctl, "--user"]
    try:
        if subprocess.run([*ask, "is-active", "--quiet", "edgeagent.socket"], capture_output=True).returncode:  # noqa: S603
            return False
        left_s = max(0.0, give_up_at_s - time.monotonic())
        done = subprocess.run([*ask, "start", "edgeagent.service"], capture_output=True, text=True, timeout=left_s)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return False
    if done.returncode:
        raise BackendUnavailable(f"systemd cannot start edgeagent: {done.stderr.strip()}; see `edgeagent service logs`")
    return True


def _spawned(folder: Path, *, has_own_port: bool, give_up_at_s: float) -> Runtime:
    log = folder / LOG_FILE
    command = [sys.executable, "-m", "edgeagent", "serve", "--log-file", str(log)]
    if has_own_port:
        command += ["--state-dir", str(folder), "--port", "0"]
    # It prints here only what is wrong before it has read its settings.
    output = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY | NO_FOLLOW, 0o600)
    try:
        num_before = os.fstat(output).st_size
        process = subprocess.Popen(  # noqa: S603 our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # `-m` takes the package that this process uses.
            cwd=Path(edgeagent.__file__).parents[1],
            start_new_session=os.name != "nt",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
            | getattr(subprocess, "DETACHED_PROCESS", 0),
        )
    except OSError as error:
        raise BackendUnavailable(f"cannot start {command[0]}: {error.strerror}") from None
    finally:
        os.close(output)
    # If the daemon ends before this process, its exit status must be collected.
    threading.Thread(target=process.wait, name="daemon's end", daemon=True).start()
    try:
        return _wait(folder, process, give_up_at_s)
    except ChildProcessError:
        kind = ConfigError if process.returncode == ConfigError.exit_status else BackendUnavailable
        raise kind(_last_error(log, num_before) or f"the daemon ended with status {process.returncode}") from None


def _wait(folder: Path, process: subprocess.Popen[bytes] | None, give_up_at_s: float) -> Runtime:
    """Return the daemon once it listens. Raise ChildProcessError if the process ends before."""
    while (found := find_daemon(folder)) is None:
        # A daemon that was started in another way holds the folder. It will listen soon.
        if process is not None and process.returncode not in (None, _ALREADY_RUNNING):
            raise ChildProcessError
        if time.monotonic() > give_up_at_s:
            raise _too_slow(folder)
        time.sleep(POLL_S)
    return found


def _too_slow(folder: Path) -> BackendUnavailable:
    return BackendUnavailable(
        f"no daemon listens after {START_TIMEOUT_S:g} s; see {folder / LOG_FILE}", retry_after_s=1.0
    )


def _last_error(log: Path, num_before: int) -> str:
    """Return the last error in the log beyond its first `num_before` bytes; "" if there is none."""
    text = log.read_bytes()
    lines = text[num_before if num_before <= len(text) else 0 :].decode(errors="replace").splitlines()
    errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
    return errors[-1] if errors else ""
