"""`edgeagent service install`, `uninstall`, `status` and `logs`: the daemon under the system's service manager."""

from __future__ import annotations

import getpass
import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

import edgeagent
from edgeagent.cli.display import table, tell, wrapped
from edgeagent.cli.options import AsJson, ConfigFile
from edgeagent.cli.service_files import (
    NAME,
    PACKAGED_PROGRAM,
    PACKAGES_DIR,
    SYSTEM_CONFIG_FILE,
    SYSTEM_ENVIRONMENT,
    SYSTEM_STATE_DIR,
    Command,
    Plan,
    Settings,
    launchd_plan,
    systemd_plan,
    windows_plan,
)
from edgeagent.config import DEFAULT_STATE_DIR, ENV_PREFIX, Config
from edgeagent.config_sources import CONFIG_FILE_VARIABLE, config_file, load_config
from edgeagent.errors import BackendUnavailable, ConfigError, EdgeAgentError
from edgeagent.runtime_file import bracketed, find_daemon
from edgeagent.usable import port_user, process_text

service_app = typer.Typer(rich_markup_mode=None)

ForSystem = Annotated[
    bool, typer.Option("--system", help="One service for all users, which runs without a log-in (Linux, as root).")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the files and commands, and change nothing.")]
# These variables say where files are. A service does not see those of a shell.
_PLACES = ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
_HIDDEN_FROM_SYSTEM = ("/home/", "/root/", "/run/user/")
_LINGER = Path("/var/lib/systemd/linger")


@service_app.command("install")
def install(
    system: ForSystem = False,
    preload: Annotated[
        bool,
        typer.Option("--preload", help="Start with the machine, for one without a screen. Else a request does it."),
    ] = False,
    dry_run: DryRun = False,
    config: ConfigFile = None,
) -> None:
    """Install the daemon as a service. If it is installed already, bring it up to date with the settings."""
    settings = service_config(config, is_system=system)
    plan = plan_of(settings, config, is_system=system, is_preloaded=preload)
    if not settings.server.port:
        raise ConfigError("server.port is 0, and a service needs a fixed port: `edgeagent config set server.port 8127`")
    packaged = _packaged(plan)
    if dry_run:
        for path, text in plan.files.items():
            typer.echo(f"# {packaged[path]} is used\n" if path in packaged else f"# {path}\n{text}")
        for command in plan.start:
            typer.echo(shlex.join(command))
        return
    _check_reachable(plan, is_system=system)
    if system:
        _check_program()
    running = find_daemon(settings.state_dir)
    if running is not None and not _succeeds(plan.is_running):
        raise ConfigError(
            f"a daemon that is not this service uses {settings.state_dir} ({process_text(running.pid)}); "
            "run `edgeagent stop`, then install"
        )
    changed = {
        path: content for path, content in plan.contents.items() if _content(path) != content and path not in packaged
    }
    replaced = [path for path in packaged if path.exists()]
    if (changed or replaced) and any(path.exists() for path in plan.files):
        for command in plan.replace:
            _run(command)
    if not system:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, content in changed.items():
        _write(path, content)
        typer.echo(wrapped(f"wrote {path}"))
    for path in replaced:
        _remove(path)
        typer.echo(wrapped(f"removed {path}: {packaged[path]} is the same"))
    for command in plan.start:
        _run_or_raise(command, settings.server.port)
    typer.echo(wrapped(_outcome(plan, settings, is_preloaded=preload)))
    if plan.manager == "systemd" and preload and not system and not _LINGER.joinpath(getpass.getuser()).exists():
        advice = (
            f"It runs only while you are logged in. To change that: sudo loginctl enable-linger {getpass.getuser()}"
        )
        typer.echo(wrapped(advice))


@service_app.command("uninstall")
def uninstall(system: ForSystem = False, dry_run: DryRun = False) -> None:
    """Stop the service and remove its files. Settings, state and models stay; see `edgeagent uninstall-data`."""
    plan = plan_of(Config(), None, is_system=system)
    there = [path for path in plan.files if path.exists()]
    if not is_installed(plan):
        typer.echo("No service is installed.")
        return
    if dry_run:
        for line in (*map(shlex.join, plan.stop), *(f"remove {path}" for path in there), *map(shlex.join, plan.forget)):
            typer.echo(line)
        return
    _check_reachable(plan, is_system=system)
    for command in plan.stop:
        _run(command)
    for path in there:
        _remove(path)
        typer.echo(wrapped(f"removed {path}"))
    for command in plan.forget:
        _run(command)
    typer.echo(wrapped("The service is gone. `edgeagent uninstall-data` shows what is left of its data."))


@service_app.command("status")
def status(system: ForSystem = False, as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Show whether the service is installed, up to date and running. Exits with 1 if it is not installed."""
    settings = service_config(config, is_system=system)
    plan = plan_of(settings, config, is_system=system)
    there, packaged = is_installed(plan), _packaged(plan)
    used = {path: packaged[path] if path in packaged and not path.exists() else path for path in plan.files}
    files = {str(used[path]): _state_of(used[path], content) for path, content in plan.contents.items()}
    states = {name: _output(command) or "unknown" for name, command in plan.states.items()} if there else {}
    # The runtime file of a system service is private to its account.
    daemon = None if system else find_daemon(settings.state_dir)
    running = {"pid": daemon.pid, "url": daemon.url} if daemon else None
    where = f"daemon: {process_text(daemon.pid)}, {daemon.url}" if daemon else "daemon: not running"
    if system:
        where = f"for more: sudo -u {NAME} edgeagent status --state-dir {settings.state_dir}" if there else ""
    advice = "`edgeagent service install` brings the files up to date with the settings."
    tell(
        {"installed": there, "files": files, "states": states, "daemon": running},
        table(("file", "state"), list(files.items()), left_columns=2),
        *(f"{name}: {state}" for name, state in states.items()),
        wrapped(where),
        wrapped(advice) if "differs" in files.values() else "",
        as_json=as_json,
    )
    if not there:
        raise typer.Exit(1)


@service_app.command("logs")
def logs(
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, metavar="N", help="How many of the last lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new lines, and show them.")] = False,
    system: ForSystem = False,
    config: ConfigFile = None,
) -> None:
    """Show the log of the service."""
    plan = plan_of(service_config(config, is_system=system), config, is_system=system)
    command = [word.replace("{lines}", str(lines)) for word in (plan.follow if follow else plan.logs)]
    try:
        raise typer.Exit(subprocess.run(command).returncode)  # noqa: S603 see service_files
    except OSError as error:
        raise BackendUnavailable(f"cannot run {command[0]}: {error.strerror}") from None


def service_config(file: Path | None, *, is_system: bool) -> Config:
    """Return the settings that a service will have. Raise ConfigError if it would not see those of this shell."""
    set_here = [name for name in os.environ if name.startswith(ENV_PREFIX) and name != CONFIG_FILE_VARIABLE]
    if set_here:
        raise ConfigError(
            f"{', '.join(set_here)}: a service does not see the variables of a shell; use `edgeagent config set`, and "
            "unset them here"
        )
    if not is_system:
        return load_config(file=file).config
    file, state_dir = file or Path(SYSTEM_CONFIG_FILE), Path(SYSTEM_STATE_DIR)
    return load_config({"state_dir": state_dir}, file).config if file.exists() else Config(state_dir=state_dir)


def is_installed(plan: Plan) -> bool:
    """Whether the service is installed: its files were written, or those of a package are enabled."""
    if any(path.exists() for path in plan.files):
        return True
    return any(path.exists() for path in plan.packaged.values()) and _succeeds(plan.is_enabled)


def _packaged(plan: Plan) -> dict[Path, Path]:
    """Return the files that need not be written, and where a package has put each with the same content."""
    return {path: other for path, other in plan.packaged.items() if _content(other) == plan.contents[path]}


def plan_of(
    config: Config,
    file: Path | None,
    *,
    is_system: bool = False,
    is_preloaded: bool = False,
    platform: str = sys.platform,
) -> Plan:
    """Return what a service with these settings consists of. `file` is the config file that was named, if any."""
    home = Path.home()
    is_named = file is not None or os.environ.get(CONFIG_FILE_VARIABLE)
    config_flag = ("--config", str(config_file(file).absolute())) if is_named else ()
    settings = Settings(
        command=(*_program(platform), "serve", *config_flag),
        home=home,
        address=_address(config),
        state_dir=config.state_dir,
        unix=config.server.unix,
        writable=tuple(_writable(config, is_system=is_system)),
        environment=SYSTEM_ENVIRONMENT if is_system else _places(),
        drain_s=config.server.drain_s,
        is_system=is_system,
        is_preloaded=is_preloaded,
        log_file=config.log.file or _log_file(platform, config, home),
        user=_user(platform),
    )
    match platform:
        case "linux" if is_system:
            return systemd_plan(settings, Path("/etc/systemd/system"), PACKAGES_DIR)
        case "linux":
            config_home = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
            return systemd_plan(settings, config_home / "systemd" / "user", PACKAGES_DIR)
        case _ if is_system:
            raise ConfigError("--system is for Linux; leave it out, and install the service for each user")
        case "darwin":
            return launchd_plan(settings, home / "Library" / "LaunchAgents")
        case "win32":
            return windows_plan(settings, DEFAULT_STATE_DIR)
        case _:
            raise ConfigError(f"no service manager is known for {platform}; start `edgeagent serve` from that of yours")


def _program(platform: str) -> Command:
    python = Path(sys.executable)
    if platform == "win32":  # python.exe would open a window
        return (str(python.with_name("pythonw.exe")), "-m", NAME)
    script = python.with_name(NAME)
    if not script.is_file():
        return (sys.executable, "-m", NAME)
    is_packaged = PACKAGED_PROGRAM.exists() and PACKAGED_PROGRAM.samefile(script)
    return (str(PACKAGED_PROGRAM if is_packaged else script),)


def _check_program() -> None:
    """Raise ConfigError if the program is where a service of the system sees nothing (ProtectHome)."""
    for path in (Path(sys.executable), Path(sys.executable).resolve(), Path(edgeagent.__file__)):
        if str(path).startswith(_HIDDEN_FROM_SYSTEM):
            raise ConfigError(
                f"{path} is in a home folder, which a service of the system cannot use; "
                "install edgeagent for all users, e.g. `sudo pipx install --global edgeagent`"
            )


def _address(config: Config) -> str:
    """Return the IP address and the port. systemd knows no host names. The daemon checks that both mean the same."""
    server = config.server
    try:
        found = socket.getaddrinfo(server.host or None, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"server.host: {server.host!r} is no address of this machine: {error.strerror}") from None
    return f"{bracketed(str(found[0][-1][0]))}:{server.port}"


def _writable(config: Config, *, is_system: bool) -> Iterator[Path]:
    log_folder = config.log.file.parent if config.log.file else None
    for folder in (config.cache.dir, config.store.models_dir, log_folder):
        if folder is not None:
            yield folder.absolute()
    if not is_system:
        yield from (Path(path) for name, path in _places().items() if name != "XDG_CONFIG_HOME")


def _places() -> dict[str, str]:
    return {name: os.environ[name] for name in _PLACES if os.environ.get(name)}


def _log_file(platform: str, config: Config, home: Path) -> Path | None:
    match platform:
        case "darwin":
            return home / "Library" / "Logs" / f"{NAME}.log"
        case "win32":
            return config.state_dir / "daemon.log"
        case _:
            return None


def _user(platform: str) -> str:
    if platform == "win32":
        return "\\".join(filter(None, (os.environ.get("USERDOMAIN"), getpass.getuser())))
    return str(os.getuid()) if sys.platform != "win32" else ""


def _outcome(plan: Plan, config: Config, *, is_preloaded: bool) -> str:
    if plan.manager != "systemd" or is_preloaded:
        return f"The service is installed, and runs: {config.server.host}:{config.server.port}"
    return (
        f"The service is installed. The first request to {config.server.host}:{config.server.port} starts the daemon."
    )


def _check_reachable(plan: Plan, *, is_system: bool) -> None:
    """Raise ConfigError unless the service manager answers, and this user may change it. The error says what to do."""
    if is_system and sys.platform != "win32" and os.geteuid():
        raise ConfigError(f"--system changes the whole machine: run `sudo {sys.argv[0]} service …`")
    if (problem := _run(plan.check)) is None:
        return
    advice = ""
    if plan.manager == "systemd" and not is_system and "bus" in problem:
        name, uid = getpass.getuser(), _user("linux")
        advice = (
            f"; there is no session of {name}: log in as {name}, not with su or sudo, or run `sudo loginctl "
            f"enable-linger {name}` and set XDG_RUNTIME_DIR=/run/user/{uid}; or install for all users with --system"
        )
    elif plan.manager == "systemd":
        advice = "; without systemd, start `edgeagent serve` from the service manager that runs here"
    raise ConfigError(f"{plan.manager} cannot be reached: {problem}{advice}")


def _run(command: Command) -> str | None:
    """Run a command. Return None if it succeeds, else its error."""
    try:
        done = subprocess.run(  # noqa: S603 see service_files
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        return f"cannot run {command[0]}: {error.strerror}"
    if not done.returncode:
        return None
    return (done.stderr or done.stdout).strip() or f"`{shlex.join(command)}` ended with status {done.returncode}"


def _succeeds(command: Command) -> bool:
    return _run(command) is None


def _run_or_raise(command: Command, port: int) -> None:
    if (problem := _run(command)) is None:
        return
    who = port_user(port)
    taken = f"; port {port} is taken by {who}" if who and not who.startswith("systemd") else ""
    raise EdgeAgentError(f"`{shlex.join(command)}` failed: {problem}{taken}")


def _output(command: Command) -> str:
    with suppress(OSError):
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)  # noqa: S603
        return done.stdout.strip()
    return ""


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _state_of(path: Path, wanted: bytes) -> str:
    content = _content(path)
    return "missing" if content is None else "up to date" if content == wanted else "differs"


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as draft:
            draft.write(content)
        Path(draft.name).chmod(0o644)
        Path(draft.name).replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot remove {path}: {error.strerror}") from None
