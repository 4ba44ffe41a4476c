"""A temporary daemon for one command: a child process with its own state folder and port, stopped afterwards."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgeagent.cli.link import address_of, ask
from edgeagent.client import Address
from edgeagent.errors import BackendUnavailable, ConfigError, EdgeAgentError
from edgeagent.runtime_file import find_daemon
from edgeagent.store.file_records import lend_records
from edgeagent.units import load_stage

# How often a daemon is asked whether its model is ready, since no event reports that. There is no timeout here: the
# daemon gives up a load that makes no progress, and the wait ends when the daemon ends.
POLL_S = 0.05
STOP_TIMEOUT_S = 15.0


@contextlib.contextmanager
def temporary_daemon(
    flags: Sequence[str], progress: Callable[[str], None], *, owner: Path | None = None
) -> Iterator[Address]:
    """Start `edgeagent serve` with these flags, and yield its address when its model is ready. Stop it at the end.

    `progress` is called with the current stage of the start, as text. `owner` is the user's state folder. If it is
    given, the temporary daemon knows the names that the user gave to models. If this process dies without clean-up, the
    daemon stops too, since its standard input closes.

    If the daemon ends early, raise ConfigError for a wrong setting, otherwise BackendUnavailable. The message is the
    error in the daemon's log, or else the end of the log. Raise EdgeAgentError if the model cannot be loaded.
    """
    # On Windows the log may still be open when the folder is removed, until the daemon's last worker has ended.
    with tempfile.TemporaryDirectory(prefix="edgeagent-", ignore_cleanup_errors=True) as folder:
        state_dir, log = Path(folder, "state"), Path(folder, "daemon.log")
        if owner is not None:
            lend_records(owner, state_dir)
        with log.open("wb") as output:
            daemon = _start(state_dir, flags, output.fileno())

        try:
            yield _wait_until_ready(daemon, state_dir, log, progress)
        finally:
            _stop(daemon)


def wait_until_loaded(address: Address, progress: Callable[[str], None]) -> None:
    """Wait until one of the daemon's models is ready, and report the progress of the load.

    Stop waiting if no model is being loaded, if a model cannot be loaded, or if the daemon does not answer. No error is
    raised, since the next request reports it.
    """
    with contextlib.suppress(EdgeAgentError):
        while True:
            models = _models(address)
            is_ready, text = _load_state(models)
            if text:
                progress(text)
            # A stopped model is loaded only by its next request.
            if is_ready or not any(model["state"] in ("starting", "stopping") for model in models):
                return
            time.sleep(POLL_S)


def load_in_progress(address: Address) -> str:
    """Return the text of `_load_state`; "" if the daemon does not answer."""
    with contextlib.suppress(EdgeAgentError):
        return _load_state(_models(address))[1]
    return ""


def _start(state_dir: Path, flags: Sequence[str], output: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "edgeagent", "serve", *flags, "--host", "127.0.0.1", "--port", "0"]
    command += ["--state-dir", str(state_dir), "--until-stdin-closes"]
    # The daemon gets its own process group. Ctrl-C in the terminal cancels an answer and must not reach the daemon.
    flag = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    return subprocess.Popen(  # noqa: S603 our own command
        command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        start_new_session=os.name != "nt",
        creationflags=flag,
    )


def _wait_until_ready(
    daemon: subprocess.Popen[bytes], state_dir: Path, log: Path, progress: Callable[[str], None]
) -> Address:
    while daemon.poll() is None:
        found = find_daemon(state_dir)
        if found is None:
            progress("starting the daemon")
        else:
            address = address_of(found)
            with contextlib.suppress(BackendUnavailable):
                is_ready, text = _load_state(_models(address))
                if is_ready:
                    return address
                progress(text)
        time.sleep(POLL_S)
    kind = ConfigError if daemon.returncode == ConfigError.exit_status else BackendUnavailable
    raise kind(_last_error(log) or f"the daemon ended with status {daemon.returncode}")


def _models(address: Address) -> list[dict[str, Any]]:
    models: list[dict[str, Any]] = ask(address, "/edgeagent/status")["models"]
    return models


def _load_state(models: Sequence[dict[str, Any]]) -> tuple[bool, str]:
    """Return whether a model is ready, and the load progress or state of the last model before that one as text.

    An example is "builtin: loading 40%". Raise EdgeAgentError if a model before the ready one cannot be loaded.
    """
    text = ""
    for model in models:
        match model["state"]:
            case "ready":
                return True, text
            case "failed" | "quarantined":
                name, cause = model["name"], model["cause"] or "no cause is known"
                raise EdgeAgentError(cause if name in cause else f"{name} cannot be loaded: {cause}")
            case state:
                text = f"{model['name']}: {load_stage(model['progress']) if state == 'starting' else state}"
    return False, text


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    assert daemon.stdin is not None
    daemon.stdin.close()
    try:
        daemon.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _last_error(log: Path) -> str:
    """Return the last error in the daemon's log, or the last 15 lines if the log has no error."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    reasons = [line for line in lines if line.startswith("error: ")]
    return reasons[-1].removeprefix("error: ") if reasons else "\n".join(lines[-15:])
