"""The Debian package in a clean Debian, booted with systemd as process 1 (systemd-nspawn), without a network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.installation.steps import OLD_VERSION, answer_of, ask, check, run, step, wait_for

SUITE = "bookworm"
# What a Debian has anyway, and what the package depends on: nothing is fetched while it is installed.
PRESENT = "systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,python3,libgomp1,libstdc++6,zlib1g,libvulkan1"
SYSTEM, USER = "http://127.0.0.1:8127", "http://127.0.0.1:8128"
# What dpkg, systemd and logins write in any case.
NOT_OURS = (
    "var/lib/dpkg/",
    "var/log/",
    "var/cache/",
    "var/lib/apt/",
    "var/lib/systemd/",
    "run/",
    "tmp/",
    "var/tmp/",
    "home/",
)
CHANGED_BY_ACCOUNTS = {"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-"}


class Debian:
    """A root folder that is booted. `leader` is its process 1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._boot()

    def reboot(self) -> None:
        """Shut down in order, and boot again."""
        self.run("systemctl", "poweroff", "--no-block")
        self._nspawn.wait(120)
        self._boot()

    def lose_power(self) -> None:
        """End every process at once, and boot again."""
        os.kill(self.leader, signal.SIGKILL)  # process 1 of the container, which takes all others with it
        self._nspawn.wait(60)
        self._boot()

    def shut_down(self) -> None:
        """Shut down for good."""
        self._nspawn.terminate()
        self._nspawn.wait(60)

    def _boot(self) -> None:
        flags = ("--register=no", "--keep-unit", "--private-network", "--quiet", "--machine=edgeagent-trial")
        with (self.root.parent / "boot.log").open("ab") as log:
            self._nspawn = subprocess.Popen(
                ["systemd-nspawn", f"--directory={self.root}", "--boot", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for("process 1", lambda: _leader(self._nspawn.pid), 60)
        self.leader = _leader(self._nspawn.pid) or 0
        # "degraded": some unit of Debian does not work in a container.
        wait_for("the boot", lambda: _state(self.leader) in ("running", "degraded"))

    def run(self, *command: str, status: int = 0) -> str:
        """Run a command in it as root."""
        # A shell, since the command would begin in a folder that it cannot see.
        enter = ("nsenter", "--target", str(self.leader), "--all", "sh", "-c", 'cd / && exec "$@"', "sh")
        return run(*enter, *command, status=status)

    def as_user(self, *command: str, status: int = 0) -> str:
        """Run a command in it as the user alice."""
        places = ("XDG_RUNTIME_DIR=/run/user/1000", "HOME=/home/alice", "PATH=/usr/bin:/bin")
        become = ("setpriv", "--reuid=1000", "--regid=1000", "--init-groups", "--reset-env", "env", *places)
        return self.run(*become, *command, status=status)

    def install(self, package: Path) -> str:
        """Install a package file with apt, as a user does."""
        (self.root / "root" / package.name).write_bytes(package.read_bytes())
        options = ("--yes", "--option=Dpkg::Use-Pty=0")
        return self.run("apt-get", "install", *options, f"/root/{package.name}")

    def files(self) -> set[str]:
        """Return the paths in it that a package may leave behind."""
        everything = (path.relative_to(self.root).as_posix() for path in self.root.rglob("*"))
        return {path for path in everything if not path.startswith(NOT_OURS)} - CHANGED_BY_ACCOUNTS


def clean_root(archive: Path) -> Path:
    """Return a tar file of a clean Debian; make it if it is not there."""
    if not archive.exists():
        with step("fetching a clean Debian"):
            draft = archive.with_suffix(".draft.tar")
            archive.parent.mkdir(parents=True, exist_ok=True)
            run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={PRESENT}", SUITE, draft)
            draft.replace(archive)
    return archive


@contextmanager
def booted(archive: Path, root: Path) -> Iterator[Debian]:
    """Unpack a clean Debian, boot it, and shut it down at the end."""
    root.mkdir(parents=True)
    run("tar", "--extract", "--file", archive, "--directory", root)
    debian = Debian(root)
    try:
        yield debian
    finally:
        debian.shut_down()


def _leader(nspawn: int) -> int | None:
    children = Path(f"/proc/{nspawn}/task/{nspawn}/children").read_text().split()
    return next((int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "systemd\n"), None)


def _state(leader: int) -> str:
    command = ["nsenter", "--target", str(leader), "--all", "systemctl", "is-system-running"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def try_package(old: Path, new: Path, archive: Path, folder: Path) -> None:
    """Install, start, ask, upgrade, remove and purge; raise TrialError for what is not as it should be."""
    with booted(archive, folder / "debian") as debian:
        debian.run("useradd", "--create-home", "--uid=1000", "--shell=/bin/sh", "alice")
        debian.run("loginctl", "enable-linger", "alice")
        (debian.root / "root" / old.name).write_bytes(b"")
        (debian.root / "root" / new.name).write_bytes(b"")
        before = debian.files()
        with step(f"deb: install {old.name}"):
            debian.install(old)
        check(OLD_VERSION in debian.run("edgeagent", "version"), "another version was installed")
        check(ask(debian.leader, f"{SYSTEM}/health")[0] == 0, "a service runs before it was installed")
        with step("deb: the system's service, started by the first request"):
            debian.run("edgeagent", "service", "install", "--system")
            stored = answer_of(debian.leader, SYSTEM)
        token = (debian.root / "var/lib/edgeagent/token").read_text()
        check((debian.root / "var/lib/edgeagent/daemon.json").stat().st_uid != 0, "the system's daemon runs as root")
        with step("deb: a user's service, with a port of its own"):
            wait_for("alice's manager", lambda: (debian.root / "run/user/1000/bus").exists() or _has_bus(debian))
            debian.as_user("edgeagent", "config", "set", "server.port", "8128")
            debian.as_user("edgeagent", "service", "install")
            answer_of(debian.leader, USER)
        with step(f"deb: upgrade to {new.name}"):
            debian.install(new)
            version = new.name.split("_")[1].partition("-")[0]
            for url in (SYSTEM, USER):
                wait_for(f"{url} of the new version", partial(_is_version, debian, url, version))
        with step("deb: the units of the package are used, and none beside them"):
            debian.run("edgeagent", "service", "install", "--system")
            debian.as_user("edgeagent", "service", "install")
            written = {path.name for path in (debian.root / "etc/systemd/system").glob("edgeagent.*")}
            check(not written, f"units of the system beside the packaged ones: {written}")
            written = {path.name for path in (debian.root / "home/alice/.config/systemd/user").glob("edgeagent.*")}
            check(written == {"edgeagent.socket"}, f"alice's port needs a socket of hers, and nothing else: {written}")
        with step("deb: its state is kept"):
            check((debian.root / "var/lib/edgeagent/token").read_text() == token, "the token is another")
            status, response = ask(debian.leader, f"{SYSTEM}/v1/responses/{stored}")
            check(status == 200 and response["id"] == stored, f"the stored response is gone: {status} {response}")
            answer_of(debian.leader, SYSTEM)
            states = json.loads(debian.run("edgeagent", "service", "status", "--system", "--json"))
            check(set(states["files"].values()) == {"up to date"}, f"the units do not fit the settings: {states}")
            check(all(path.startswith("/usr/lib/") for path in states["files"]), f"whose units are these: {states}")
            answer_of(debian.leader, USER)
            check(debian.as_user("edgeagent", "health").strip() == "ok", "`edgeagent health` does not say ok")
        for happens, how in (("a reboot", debian.reboot), ("a power loss", debian.lose_power)):
            with step(f"deb: {happens}, after which both services answer and the stored response is there"):
                how()
                for url in (SYSTEM, USER):
                    answer_of(debian.leader, url)
                status, response = ask(debian.leader, f"{SYSTEM}/v1/responses/{stored}")
                check(status == 200 and response["id"] == stored, f"the stored response is gone: {status} {response}")
        with step("deb: man page and completion"):
            check((debian.root / "usr/share/man/man1/edgeagent.1.gz").exists(), "no man page")
            words = "COMP_WORDS='edgeagent ser' COMP_CWORD=1 _EDGEAGENT_COMPLETE=complete_bash edgeagent"
            check(debian.run("sh", "-c", words).split() == ["serve", "service"], "bash gets no completions")
        with step("deb: remove"):
            debian.run("apt-get", "remove", "--yes", "edgeagent")
            check(ask(debian.leader, f"{SYSTEM}/health")[0] == 0, "the system's daemon still listens")
            check(ask(debian.leader, f"{USER}/health")[0] == 0, "the user's daemon still listens")
            check(not (debian.root / "usr/lib/edgeagent").exists(), "/usr/lib/edgeagent is still there")
            check((debian.root / "var/lib/edgeagent/token").exists(), "the state is gone before a purge")
        with step("deb: purge"):
            said = debian.run("apt-get", "purge", "--yes", "edgeagent")
            check("/home/alice/.local/state/edgeagent" in said, f"it does not say what alice has left: {said}")
            check("edgeagent" not in (debian.root / "etc/passwd").read_text(), "the account is left")
            left = sorted(debian.files() - before)
            check(not left, f"left behind: {left[:20]}")
            check(not (debian.root / "var/cache/edgeagent").exists(), "/var/cache/edgeagent is left")


def _has_bus(debian: Debian) -> bool:
    command = ["nsenter", "--target", str(debian.leader), "--all", "test", "-S", "/run/user/1000/bus"]
    return subprocess.run(command).returncode == 0


def _is_version(debian: Debian, url: str, version: str) -> bool:
    status, reply = ask(debian.leader, f"{url}/version")
    return status == 200 and reply["version"] == version
