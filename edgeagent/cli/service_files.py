"""What a service consists of, for each service manager: files and commands. Nothing is written or run here.

The only texts of the units are here. The files in packaging/ are made from them (`make documents`).
"""

from __future__ import annotations

import plistlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Literal
from xml.sax.saxutils import escape

NAME = "edgeagent"
Manager = Literal["systemd", "launchd", "windows"]
Command = tuple[str, ...]
SYSTEM_CONFIG_FILE = PurePosixPath("/etc/edgeagent/config.toml")
SYSTEM_STATE_DIR, SYSTEM_CACHE_DIR = PurePosixPath("/var/lib/edgeagent"), PurePosixPath("/var/cache/edgeagent")
SYSTEM_ENVIRONMENT = {
    "XDG_CONFIG_HOME": str(SYSTEM_CONFIG_FILE.parents[1]),
    "XDG_STATE_HOME": str(SYSTEM_STATE_DIR.parent),
    "XDG_CACHE_HOME": str(SYSTEM_CACHE_DIR),
    "HF_HOME": str(SYSTEM_CACHE_DIR),
    "HOME": str(SYSTEM_CACHE_DIR),
}
PACKAGED_PROGRAM, PACKAGES_DIR = Path("/usr/bin/edgeagent"), Path("/usr/lib")
"""Where a package of the system puts the command, and below what it puts units."""
GPU_GROUPS = ("render", "video")
"""Groups whose members may use GPUs."""
STOP_MARGIN_S = 10.0
"""Seconds that a stopping daemon has, in addition to 2 * server.drain_s.

It waits server.drain_s for its requests, writes prompts to disk for as long, and ends its workers.
"""
# The event loop's longest turn in the storms of tests/robust is under a second. A machine that swaps needs more.
_WATCHDOG_S = 60


@dataclass(frozen=True, slots=True)
class Settings:
    """What the files of a service depend on.

    `command` starts the daemon. `address` is its IP address and port. `writable` are the folders, other than
    the state folder and the user's cache folder, into which the daemon writes. `log_file` is None with a journal.
    """

    command: Command
    home: PurePath
    address: str
    state_dir: PurePath
    unix: PurePath | None = None
    writable: tuple[PurePath, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    drain_s: float = 10.0
    is_system: bool = False
    is_preloaded: bool = False
    log_file: PurePath | None = None
    user: str = ""
    """The user's name (Windows) or number (macOS)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A service: its files by path, and the commands that a command of `edgeagent service` runs."""

    manager: Manager
    files: Mapping[Path, str]
    check: Command
    """Fails if the service manager cannot be reached."""
    replace: tuple[Command, ...]
    """Run before other files than those that are there are taken over. They may fail."""
    start: tuple[Command, ...]
    stop: tuple[Command, ...]
    """Run before the files are removed. They may fail."""
    forget: tuple[Command, ...]
    """Run after the files were removed. They may fail."""
    is_running: Command
    """Succeeds if the daemon runs as this service."""
    states: Mapping[str, Command]
    """Print one word each: the state of a unit."""
    logs: Command
    """Prints the log. {lines} stands for the number of lines."""
    follow: Command
    is_enabled: Command = ()
    """Succeeds if files of a package are in use."""
    packaged: Mapping[Path, Path] = field(default_factory=dict)
    """Where a package puts each file. If it is there with the same content, none is written."""

    @property
    def contents(self) -> dict[Path, bytes]:
        """The files as they are written. schtasks reads UTF-16 only."""
        encoding = "utf-16" if self.manager == "windows" else "utf-8"
        return {path: text.encode(encoding) for path, text in self.files.items()}


def systemd_plan(settings: Settings, units_dir: Path, packages_dir: Path) -> Plan:
    """Return the plan of a user's service or, with `is_system`, of one for the whole machine."""
    ask = ("systemctl",) if settings.is_system else ("systemctl", "--user")
    journal = ("journalctl", *ask[1:], f"--unit={NAME}", "--lines={lines}")
    socket, service = f"{NAME}.socket", f"{NAME}.service"
    files = {units_dir / service: systemd_service(settings), units_dir / socket: systemd_socket(settings)}
    folder = packages_dir / "systemd" / ("system" if settings.is_system else "user")
    packaged = {units_dir / unit: folder / unit for unit in (service, socket)}
    account: tuple[Command, ...] = ()
    if settings.is_system:
        conf = Path("/etc/sysusers.d", f"{NAME}.conf")
        files[conf], packaged[conf] = SYSUSERS, packages_dir / "sysusers.d" / conf.name
        # systemd-sysusers finds the file by its name, also that of a package.
        account = (("systemd-sysusers", conf.name),)
    enable, at_boot = (*ask, "enable", "--now", socket), (*ask, "enable", "--now", service)
    only_then: Command = (*ask, "disable", service)
    return Plan(
        "systemd",
        files,
        check=(*ask, "show", "--property=Version"),
        # A socket cannot be started while its service runs without it.
        replace=((*ask, "disable", "--now", socket, service),),
        start=(*account, (*ask, "daemon-reload"), enable, at_boot if settings.is_preloaded else only_then),
        stop=((*ask, "disable", "--now", socket, service),),
        forget=((*ask, "daemon-reload"), (*ask, "reset-failed", socket, service)),
        is_running=(*ask, "is-active", "--quiet", service),
        is_enabled=(*ask, "is-enabled", "--quiet", socket),
        packaged=packaged,
        states={
            socket: (*ask, "is-active", socket),
            service: (*ask, "is-active", service),
            "at boot": (*ask, "is-enabled", service),
        },
        logs=(*journal, "--no-pager"),
        follow=(*journal, "--follow"),
    )


_SANDBOX = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
SystemCallArchitectures=native
# The last four are for the worker, which closes itself in further. By name: systemd before 254 has no group for them.
SystemCallFilter=@system-service landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp
SystemCallErrorNumber=EPERM
ProtectSystem=strict
PrivateTmp=yes
# MemoryDenyWriteExecute is left out: GPU drivers compile kernels at run time. DevicePolicy likewise.
"""
# In a user's service these need a right that the user's manager lacks before systemd 254: it would not start (218).
_SYSTEM_SANDBOX = """\
CapabilityBoundingSet=
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
"""


def systemd_service(settings: Settings) -> str:
    """Return the text of edgeagent.service."""
    environment = "".join(
        f"Environment={_word(f'{name}={value}')}\n" for name, value in sorted(settings.environment.items())
    )
    return f"""\
# Made by `edgeagent service install`. Run it again when a folder, the address or server.drain_s changes. Write other
# changes into a drop-in (systemctl edit), which stays.

[Unit]
Description=edgeagent, language models on this machine

[Service]
Type=notify
ExecStart={" ".join(_word(word).replace("$", "$$") for word in settings.command)}
{environment}Restart=on-failure
# The first restart comes at once. What fails each time, for example for lack of memory, is tried every five minutes.
# systemd before 254 knows RestartSec only.
RestartSec=2
RestartSteps=8
RestartMaxDelaySec=5min
# A wrong setting and a missing or damaged model (2), a taken port (3) and a state folder in use (4) must be corrected
# first.
RestartPreventExitStatus=2 3 4
WatchdogSec={_WATCHDOG_S}
TimeoutStopSec={2 * settings.drain_s + STOP_MARGIN_S:g}
KillMode=mixed
# A large model that does not fit takes the worker, not the daemon.
OOMPolicy=continue
UMask=0077

{_SANDBOX}{_system_part(settings) if settings.is_system else _user_part(settings)}
[Install]
WantedBy={"multi-user.target" if settings.is_system else "default.target"}
"""


def _user_part(settings: Settings) -> str:
    folders = [_path(path, settings) for path in (settings.state_dir, *settings.writable)] + ["%C"]
    # The minus sign stands inside of the quotes.
    writable = [re.sub('^("?)', r"\1-", folder) for folder in folders]
    return f"""\
# ProtectSystem, ProtectHome and PrivateTmp hold where the user's manager may make mount namespaces (systemd 254 or
# newer, unprivileged user namespaces allowed), and have no effect elsewhere. A path is writable in such a namespace
# only if it exists when the service starts, so mkdir makes them outside of it.
ProtectHome=read-only
ExecStartPre=+/bin/mkdir -p -m 0700 {" ".join(folders)}
ReadWritePaths={" ".join(writable)}
"""


def _system_part(settings: Settings) -> str:
    writable = "".join(f"ReadWritePaths={_path(path, settings)}\n" for path in settings.writable)
    return f"""\
{_SYSTEM_SANDBOX}ProtectHome=yes
User={NAME}
SupplementaryGroups={" ".join(GPU_GROUPS)}
StateDirectory={NAME}
StateDirectoryMode=0700
CacheDirectory={NAME}
{writable}"""


def systemd_socket(settings: Settings) -> str:
    """Return the text of edgeagent.socket. systemd listens, and starts the daemon for the first connection."""
    # A path here is one word whatever is in it.
    unix = f"ListenStream={str(settings.unix).replace('%', '%%')}\n" if settings.unix else ""
    return f"""\
# Made by `edgeagent service install`, as edgeagent.service.

[Unit]
Description=address of edgeagent

[Socket]
ListenStream={settings.address}
{unix}SocketMode=0600
DirectoryMode=0700
Backlog=2048
# The address may come up later than this socket.
FreeBind=yes

[Install]
WantedBy=sockets.target
"""


SYSUSERS = f"""\
# Made by `edgeagent service install --system`.
u {NAME} - "edgeagent daemon" {SYSTEM_STATE_DIR}
# A unit whose groups are missing does not start.
{"".join(f"g {name} -{chr(10)}" for name in GPU_GROUPS)}"""


def launchd_plan(settings: Settings, agents_dir: Path) -> Plan:
    """Return the plan of a launchd agent for one user of macOS."""
    path, domain = agents_dir / f"{NAME}.plist", f"gui/{settings.user}"
    stop = (("launchctl", "bootout", f"{domain}/{NAME}"),)
    tail = ("tail", "-n", "{lines}")
    return Plan(
        "launchd",
        {path: launchd_agent(settings)},
        check=("launchctl", "print", domain),
        replace=stop,
        start=(("launchctl", "bootstrap", domain, str(path)),),
        stop=stop,
        forget=(),
        is_running=("launchctl", "print", f"{domain}/{NAME}"),
        states={},
        logs=(*tail, str(settings.log_file)),
        follow=(*tail, "-F", str(settings.log_file)),
    )


def launchd_agent(settings: Settings) -> str:
    """Return the text of edgeagent.plist. Not tried on a Mac: written from launchd.plist(5)."""
    agent = {
        "Label": NAME,
        "ProgramArguments": [*settings.command, "--log-file", str(settings.log_file)],
        "EnvironmentVariables": dict(sorted(settings.environment.items())),
        "RunAtLoad": True,
        # launchd cannot tell the statuses of failures apart.
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 5,
        "ExitTimeOut": int(2 * settings.drain_s + STOP_MARGIN_S),
        "Umask": 0o077,
        # Interactive: macOS would throttle CPU and I/O of a background agent.
        "ProcessType": "Interactive",
        "HardResourceLimits": {"Core": 0},
    }
    return plistlib.dumps({name: value for name, value in agent.items() if value != {}}, sort_keys=False).decode()


def windows_plan(settings: Settings, folder: Path) -> Plan:
    """Return the plan of a task of the Task Scheduler that starts when the user logs on."""
    path = folder / f"{NAME}-task.xml"
    stop = (("schtasks", "/End", "/TN", NAME), ("schtasks", "/Delete", "/TN", NAME, "/F"))
    tail = f"Get-Content -LiteralPath '{str(settings.log_file).replace(chr(39), chr(39) * 2)}' -Tail {{lines}}"
    shell = ("powershell", "-NoProfile", "-Command")
    return Plan(
        "windows",
        {path: windows_task(settings)},
        check=("schtasks", "/Query"),
        replace=stop[:1],
        start=(("schtasks", "/Create", "/TN", NAME, "/XML", str(path), "/F"), ("schtasks", "/Run", "/TN", NAME)),
        stop=stop,
        forget=(),
        is_running=("schtasks", "/Query", "/TN", NAME),
        states={},
        logs=(*shell, tail),
        follow=(*shell, f"{tail} -Wait"),
    )


def windows_task(settings: Settings) -> str:
    """Return the XML of the task. Not tried on Windows: written from the Task Scheduler Schema."""
    program, *arguments = settings.command
    arguments += ["--log-file", str(settings.log_file)]
    words = " ".join(f'"{word}"' if " " in word else word for word in arguments)
    return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.4" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>edgeagent, language models on this machine</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <UserId>{escape(settings.user)}</UserId>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <UserId>{escape(settings.user)}</UserId>
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <Priority>5</Priority>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>255</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{escape(program)}</Command>
      <Arguments>{escape(words)}</Arguments>
    </Exec>
  </Actions>
</Task>
"""


def _path(path: PurePath, settings: Settings) -> str:
    """Return a path as a word of a unit, with %h for the user's home folder."""
    word, home = _word(str(path)), f"{_word(str(settings.home))}/"
    return word if settings.is_system else re.sub(f'^("?){re.escape(home)}', r"\1%h/", word)


def _word(text: str) -> str:
    """Return a text as one word of a unit, see "Quoting" in systemd.syntax(7) and "Specifiers" in systemd.unit(5)."""
    text = text.replace("\\", "\\\\").replace("%", "%%").replace('"', '\\"')
    return f'"{text}"' if any(character in " \t';\"" for character in text) else text


def packaged_files() -> dict[str, str]:
    """Return the files in packaging/, by path: those of a package that installs /usr/bin/edgeagent, and examples."""
    unix = Settings(
        command=("/usr/bin/edgeagent", "serve"),
        home=PurePosixPath("/home/USER"),
        address="127.0.0.1:8127",
        state_dir=PurePosixPath("/home/USER/.local/state/edgeagent"),
        environment={},
    )
    system = replace(unix, is_system=True, environment=SYSTEM_ENVIRONMENT)
    mac = replace(unix, log_file=PurePosixPath("/Users/USER/Library/Logs/edgeagent.log"))
    windows = replace(
        unix,
        command=(r"C:\Program Files\edgeagent\pythonw.exe", "-m", "edgeagent", "serve"),
        log_file=PureWindowsPath(r"C:\Users\USER\AppData\Local\edgeagent\daemon.log"),
        user=r"MACHINE\USER",
    )
    return {
        "systemd/edgeagent.service": systemd_service(unix),
        "systemd/edgeagent.socket": systemd_socket(unix),
        "systemd/system/edgeagent.service": systemd_service(system),
        "systemd/system/edgeagent.socket": systemd_socket(system),
        "systemd/system/sysusers.conf": SYSUSERS,
        "launchd/edgeagent.plist": launchd_agent(mac),
        "windows/edgeagent-task.xml": windows_task(windows),
    }


if __name__ == "__main__":
    for name, text in packaged_files().items():
        path = Path(sys.argv[1], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
