"""`edgeagent uninstall-data`: show what edgeagent has left on this machine, and remove it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgeagent import cache_folder
from edgeagent.cli.changes import agree
from edgeagent.cli.display import print_json, size_text, table
from edgeagent.cli.options import AsJson, ConfigFile, Yes
from edgeagent.cli.service import ForSystem, is_installed, plan_of, service_config
from edgeagent.cli.service_files import NAME, SYSTEM_CACHE_DIR, SYSTEM_CONFIG_FILE
from edgeagent.config import DEFAULT_STATE_DIR, Config
from edgeagent.config_sources import load_config
from edgeagent.errors import ConfigError, EdgeAgentError
from edgeagent.runtime_file import LOCK_FILE, find_daemon

COLUMNS = ("what", "size", "remove", "where")


@dataclass(frozen=True, slots=True)
class Left:
    """Something that is left. `remove` removes it; None: it stays, because of `why`."""

    what: str
    path: Path
    size_bytes: int
    remove: Callable[[], object] | None
    why: str = ""


def uninstall_data(
    models: Annotated[
        bool, typer.Option("--models", help="Also remove pulled models from the shared Hugging Face cache.")
    ] = False,
    system: ForSystem = False,
    yes: Yes = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show what edgeagent has left on this machine, with sizes, and remove it after a question.

    These are the state (token, responses, cached prompts, names of models), settings, logs and models that `edgeagent
    pull` has downloaded. Models that other programs may share stay, unless you give --models; your own files stay.
    """
    if system:
        settings = service_config(None, is_system=True)
        left = list(_of_system(settings))
    else:
        loaded = load_config(file=config)
        settings = loaded.config
        # The models first: which were pulled is recorded in the state folder.
        left = [*_models(settings, is_shared_too=models), *_of_user(settings, loaded.file)]
    _check_free(settings, is_system=system)
    rows = [
        (each.what, size_text(each.size_bytes), "yes" if each.remove else f"no: {each.why}", str(each.path))
        for each in left
    ]
    if as_json:
        fields = ("what", "size_bytes", "why")
        print_json([{**{name: getattr(each, name) for name in fields}, "path": str(each.path)} for each in left])
    elif rows:
        typer.echo(table(COLUMNS, rows, last_left=True), err=True)
    removable = [each for each in left if each.remove is not None]
    if not removable:
        typer.echo("There is nothing to remove.", err=as_json)
        return
    agree("Remove this?", yes=yes)
    for each in removable:
        try:
            assert each.remove is not None
            each.remove()
        except OSError as error:
            raise EdgeAgentError(f"cannot remove {each.path}: {error.strerror}") from None
    typer.echo(f"{size_text(sum(each.size_bytes for each in removable))} are free again.", err=as_json)


def _check_free(settings: Config, *, is_system: bool) -> None:
    """Raise ConfigError if a service is installed, or if a daemon uses the data."""
    if is_installed(plan_of(Config(), None, is_system=is_system)):
        raise ConfigError(
            f"the service is installed; run `edgeagent service uninstall{' --system' if is_system else ''}` first"
        )
    if (daemon := find_daemon(settings.state_dir)) is not None:
        raise ConfigError(f"a daemon runs (process {daemon.pid}); run `edgeagent stop` first")


def _of_user(settings: Config, file: Path) -> Iterator[Left]:
    state, cache, log = settings.state_dir, settings.cache_dir, settings.log.file
    logs = () if log is None else (log, log.with_name(f"{log.name}.1"))
    is_inside = cache.is_relative_to(state)
    if cache.is_dir() and not is_inside:
        yield Left("prompt cache", cache, _size(cache), lambda: _remove_cache(cache))
    if state.is_dir():
        # The name of a folder may be misspelt in the settings. Only a daemon makes the lock file, but other commands
        # write into the folder too.
        is_own = state == DEFAULT_STATE_DIR or (state / LOCK_FILE).exists() or not any(state.iterdir())
        why = "" if is_own else "no daemon has used it"
        what = "state and prompt cache" if is_inside else "state"
        others = _others(settings, {file, *logs}) if is_own else []
        size, size_of_others = _size(state), sum(map(_size, others))
        remove = lambda: _remove_state(state, cache, others)  # noqa: E731
        yield Left(what, state, size - size_of_others, remove if is_own else None, why)
        if others:
            names = f"{others[0].name} and {len(others) - 1} more" if len(others) > 1 else others[0].name
            yield Left(names, state, size_of_others, None, "edgeagent did not make it")
    # The log and the settings may be in the state folder, and are then gone already.
    for path in logs:
        if path.is_file():
            yield Left("log", path, path.stat().st_size, lambda path=path: path.unlink(missing_ok=True))  # type: ignore[misc]
    if file.is_file():
        yield Left("settings", file, file.stat().st_size, lambda: _remove_settings(file))


def _models(settings: Config, *, is_shared_too: bool) -> Iterator[Left]:
    """Yield the models that were pulled. A pull verifies a file, and the state folder has a record of that."""
    from edgeagent.store.file_records import VerifiedFiles
    from edgeagent.store.library import Library
    from edgeagent.store.library_editor import LibraryEditor

    verified, editor = VerifiedFiles(settings.state_dir), LibraryEditor(settings)
    is_own = settings.store.models_dir is not None
    for found in Library.of(settings).found():
        if found.origin == "folder":
            yield Left(found.name, found.path, found.size_bytes, None, "you put it there")
        elif found.origin == "hub" and any(verified.noted_sha256(path) for path in found.paths):
            remove = lambda name=found.name: editor.remove(editor.plan(name))  # noqa: E731
            may_go = is_own or is_shared_too
            why = "" if may_go else "other programs may use it (--models)"
            yield Left(found.name, found.path, found.size_bytes, remove if may_go else None, why)


def _of_system(settings: Config) -> Iterator[Left]:
    state, cache, file = settings.state_dir, Path(SYSTEM_CACHE_DIR), Path(SYSTEM_CONFIG_FILE)
    for what, folder in (("state and prompt cache", state), ("models and caches", cache)):
        if folder.is_dir():
            yield Left(what, folder, _size(folder), lambda folder=folder: shutil.rmtree(folder))  # type: ignore[misc]
    if file.is_file():
        yield Left("settings", file, file.stat().st_size, lambda: _remove_settings(file))
    if sys.platform != "win32":
        import pwd

        with suppress(KeyError):
            home = Path(pwd.getpwnam(NAME).pw_dir)
            yield Left("account", home, 0, lambda: subprocess.run(["userdel", NAME], check=False))  # noqa: S603, S607


def made_names() -> re.Pattern[str]:
    """Return a pattern of the names that edgeagent makes in a state folder.

    They are the names of its files, with their locks, drafts, rotated logs, and a database's damaged and further files.
    """
    # Imported here, since no other command needs all of them.
    from edgeagent.bench.saved import FILE as BENCH_FILE
    from edgeagent.cache_folder import SECRET_FILE
    from edgeagent.client.start import LOCK_FILE as START_LOCK_FILE
    from edgeagent.client.start import LOG_FILE
    from edgeagent.conversation.store import FILE as RESPONSES_FILE
    from edgeagent.credentials.keys import CLIENTS_FILE
    from edgeagent.daemon.state import SLO_FILE
    from edgeagent.egress import EGRESS_FOLDER
    from edgeagent.remotes import REMOTES_FILE
    from edgeagent.runtime_file import RUNTIME_FILE, TOKEN_FILE
    from edgeagent.state_files import HISTORY_FILE
    from edgeagent.store.file_records import LAST_USE_FOLDER, VERIFIED_FILE
    from edgeagent.store.names.own import NAMES_FILE
    from edgeagent.worker.parent.pool.profile_store import PROFILES_FOLDER

    changed = (CLIENTS_FILE, NAMES_FILE, REMOTES_FILE)  # by commands, which lock them
    locks = (LOCK_FILE, START_LOCK_FILE, *(str(Path(name).with_suffix(".lock")) for name in changed))
    databases = (BENCH_FILE, RESPONSES_FILE)
    plain = (HISTORY_FILE, LOG_FILE, RUNTIME_FILE, SECRET_FILE, SLO_FILE, TOKEN_FILE, VERIFIED_FILE)
    folders = (EGRESS_FOLDER, LAST_USE_FOLDER, PROFILES_FOLDER)
    names = "|".join(map(re.escape, (*changed, *locks, *databases, *plain, *folders)))
    return re.compile(rf"\.?({names})(\.[0-9a-f]+|\.damaged|-wal|-shm|-journal)?")


def _others(settings: Config, own: set[Path]) -> list[Path]:
    """Return what stays in the state folder: the folder of the models, and what edgeagent did not make.

    In the default folder all else is edgeagent's. The settings may name a folder with other things, such as the home.
    """
    state, cache, models = settings.state_dir, settings.cache_dir, settings.store.models_dir
    made = made_names()
    is_shared = state == models or state != DEFAULT_STATE_DIR
    return sorted(
        path
        for path in state.iterdir()
        if (models is not None and models.is_relative_to(path))
        or (is_shared and not made.fullmatch(path.name) and not cache.is_relative_to(path) and path not in own)
    )


def _remove_state(state: Path, cache: Path, others: list[Path]) -> None:
    if not others:
        shutil.rmtree(state)
        return
    for path in state.iterdir():
        if path in others:
            continue
        if cache.is_relative_to(path):
            _remove_cache(cache)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _remove_cache(folder: Path) -> None:
    for model in cache_folder.model_folders(folder):
        shutil.rmtree(model)
    with suppress(OSError):  # not empty: something else is in it
        folder.rmdir()


def _remove_settings(file: Path) -> None:
    file.unlink(missing_ok=True)
    with suppress(OSError):
        file.parent.rmdir()


def _size(folder: Path) -> int:
    total = folder.lstat().st_size if folder.is_file() else 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size if path.is_file() and not path.is_symlink() else 0
    return total
