"""The machine's policy: what the administrator allows, for every user of edgeagent. It overrides every option.

No option and no environment variable can name another path of its file, so only users who may write to this path set
the policy. The file is read again after changes. While it cannot be trusted or parsed, the policy is CLOSED: it forbids
remotes and downloads. `trouble` says why.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from edgeagent.config import checked_image_hosts
from edgeagent.errors import ConfigError, Forbidden, ModelLoadFailed
from edgeagent.remotes import Budget, Remote
from edgeagent.remotes.check import check_budget, check_url, host_of, is_loopback
from edgeagent.state_files import NO_FOLLOW, NO_WAIT, FollowedFiles
from edgeagent.types import RouteMode, Tier


class MachinePolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """What is allowed. A field that is not given forbids nothing.

    `route`: the least strict routing mode that is allowed. `tier`: the highest tier of requests. `remote_hosts`: the
    only hosts that remotes may have, as "gpu.example", "gpu.example:8443" or "*.example". `pulls`: whether models may
    be downloaded. `image_hosts`: the only hosts from which images may be fetched for clients, as in the option
    server.image_hosts, which the owner sets. `answers`: whether answers may be kept and given again. `model_sha256`:
    the hashes of the only files that may be loaded. `budget`: the limits of a day's spending on all remotes together.
    `ca_file`: the PEM file of the only CA that is trusted for remotes. `proxy`: the proxy for every remote that is not
    on this machine.
    """

    route: RouteMode | None = None
    tier: Tier | None = None
    remote_hosts: tuple[str, ...] | None = None
    pulls: bool = True
    image_hosts: tuple[str, ...] | None = None
    answers: bool = True
    model_sha256: tuple[str, ...] | None = None
    budget: Budget = Budget()
    ca_file: str | None = None
    proxy: str | None = None


CLOSED = MachinePolicy(route=RouteMode.LOCAL_ONLY, remote_hosts=(), pulls=False, image_hosts=(), answers=False)
"""The policy while its file cannot be trusted or understood: nothing leaves the machine, nothing is downloaded, and no
answer is kept."""

_PORTS = {"https": 443, "http": 80, "redis": 6379, "rediss": 6379}


def under(policy: MachinePolicy, remote: Remote) -> Remote:
    """Return a remote with the CA and the proxy that the policy sets.

    The proxy is not set if all endpoints of the remote are on this machine.
    """
    if policy.ca_file is not None:
        remote = replace(remote, tls=replace(remote.tls, ca_file=policy.ca_file))
    if policy.proxy is not None and not all(is_loopback(endpoint.url) for endpoint in remote.endpoints):
        remote = replace(remote, proxy=policy.proxy)
    return remote


def why_forbidden(policy: MachinePolicy, remote: Remote) -> str:
    """Return the rule of the policy that a remote breaks, in words; empty if the remote may be used."""
    for endpoint in remote.endpoints:
        if policy.remote_hosts is not None and not _is_allowed(endpoint.url, policy.remote_hosts):
            return f"{host_of(endpoint.url)} is not among its remote_hosts"
        if policy.ca_file is not None and endpoint.url.startswith("http:") and not is_loopback(endpoint.url):
            return f"{endpoint.url} is not encrypted, so its ca_file cannot be applied"
    return ""


def why_not_kept_at(policy: MachinePolicy, url: str) -> str:
    """Return the rule that keeping answers at a server would break, in words; empty if they may be kept there.

    `url`: redis:// or rediss://. A server on this machine is like a file: only `answers` forbids it.
    """
    if not policy.answers:
        return "it says answers = false"
    if is_loopback(url):
        return ""
    if policy.route is RouteMode.LOCAL_ONLY:
        return "it says route = local_only"
    if policy.remote_hosts is not None and not _is_allowed(url, policy.remote_hosts):
        return f"{urlsplit(url).hostname} is not among its remote_hosts"
    if policy.ca_file is not None and url.startswith("redis:"):
        return "the connection is not encrypted, so its ca_file cannot be applied; use rediss://"
    if policy.proxy is not None:
        return "a store of answers cannot use its proxy"
    return ""


def _is_allowed(url: str, hosts: tuple[str, ...]) -> bool:
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS[parts.scheme]
    return any(_matches(host, port, allowed) for allowed in hosts)


def _matches(host: str, port: int, allowed: str) -> bool:
    parts = urlsplit(f"//{allowed}")
    name = (parts.hostname or "").rstrip(".")
    is_host = host.endswith(name[1:]) and len(host) >= len(name) if name.startswith("*.") else host == name
    return is_host and parts.port in (None, port)


FILE = "policy.toml"
MAX_ENTRIES = 10_000
_MAX_BYTES = 1 << 20
_HOST = re.compile(r"(\*\.)?([a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:\d{1,5})?", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")

logger = logging.getLogger(__name__)
# The daemon logs this. A command prints it instead.
logger.addHandler(logging.NullHandler())


def policy_path() -> Path:
    """Return the path of the policy's file. It is the same for every user. Only administrators can write its folder."""
    if sys.platform == "win32":
        return Path(_program_data()) / "edgeagent" / FILE
    if sys.platform == "darwin":
        return Path("/Library/Application Support/edgeagent") / FILE
    return Path("/etc/edgeagent") / FILE


def _program_data() -> str:
    """Return %ProgramData% as the system knows it. The user could change the environment variable of that name."""
    import ctypes

    buffer = ctypes.create_unicode_buffer(260)
    shell: Any = getattr(ctypes, "windll").shell32  # noqa: B009 - exists on Windows only
    shell.SHGetFolderPathW(None, 0x23, None, 0, buffer)  # CSIDL_COMMON_APPDATA
    return buffer.value or r"C:\ProgramData"


class PolicyFile(FollowedFiles[MachinePolicy | None]):
    """The machine's current policy."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = policy_path()
        super().__init__(self.path.parent, [self.path], None, clock)

    @property
    def policy(self) -> MachinePolicy:
        """The policy. Without a file it allows everything. While `trouble` is set, it is CLOSED."""
        policy = self._current
        return CLOSED if self._trouble else policy or MachinePolicy()

    @property
    def is_there(self) -> bool:
        """Whether there is a policy file, even one that cannot be used."""
        return self._current is not None or bool(self._trouble)

    @property
    def why_local(self) -> str:
        """Why no request may leave this machine; empty if the policy allows remotes."""
        if self.policy.route is not RouteMode.LOCAL_ONLY:
            return ""
        return self._trouble or f"the machine's policy ({self.path}) says route = local_only"

    def why_not(self, remote: Remote) -> str:
        """Return why a remote may not be used; empty if it may."""
        why = why_forbidden(self.policy, remote)
        return why and (self._trouble or f"the machine's policy ({self.path}) does not allow it: {why}")

    def why_not_kept_at(self, url: str) -> str:
        """Return why answers may not be kept at a server; empty if they may."""
        why = why_not_kept_at(self.policy, url)
        return why and (self._trouble or f"the machine's policy ({self.path}) does not allow it: {why}")

    def check_pull(self) -> None:
        """Raise Forbidden if no model may be downloaded."""
        if not self.policy.pulls:
            raise Forbidden(self._trouble or f"the machine's policy ({self.path}) says pulls = false")

    def check_model(self, path: Path, sha256: Callable[[Path], str]) -> None:
        """Raise ModelLoadFailed if a model's file may not be loaded.

        `sha256` computes the hash of a file. It is called only if the policy allows certain hashes only.
        """
        allowed = self.policy.model_sha256
        if allowed is not None and (found := sha256(path)) not in allowed:
            raise ModelLoadFailed(
                f"{path} has the sha256 {found}, which is not among model_sha256 of the machine's policy ({self.path})",
                param="model",
            )

    def _read(self) -> MachinePolicy | None:
        return load_policy(self.path)

    def _note_change(self, value: MachinePolicy | None, trouble: str) -> None:
        del value, trouble
        if self._trouble:
            logger.warning("%s", self._trouble)
        elif self._value is not None:
            logger.info("the machine's policy (%s) holds: %s", self.path, ", ".join(described(self._value)) or "empty")
        else:
            logger.warning("there is no machine policy any more: %s is gone", self.path)


class QuietPolicyFile(PolicyFile):
    """The machine's policy for a thread of its own. The daemon's other copy logs its changes."""

    def _note_change(self, value: MachinePolicy | None, trouble: str) -> None:
        del value, trouble


def load_policy(path: Path) -> MachinePolicy | None:
    """Return the policy in a file; None if there is no file.

    Raise ConfigError if the file cannot be trusted or read, or if a field is wrong. The error names the field.
    """
    try:
        content = _read(path)
        return None if content is None else _checked(_parsed(content))
    except ConfigError as error:
        raise ConfigError(
            f"the machine's policy {path}: {error.message}; until that is fixed nothing leaves this machine and no "
            "model is downloaded"
        ) from None


def described(policy: MachinePolicy) -> dict[str, Any]:
    """Return the fields that a policy sets, as a dict for JSON."""
    fields: dict[str, Any] = msgspec.to_builtins(policy)
    empty: dict[str, Any] = msgspec.to_builtins(MachinePolicy())
    fields["budget"] = {name: most for name, most in fields["budget"].items() if most is not None}
    empty["budget"] = {}
    return {name: value for name, value in fields.items() if value != empty[name]}


def _read(path: Path) -> bytes | None:
    try:
        _check_owner(path.parent.stat(), f"the folder {path.parent}")
        descriptor = os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        is_link = error.errno == errno.ELOOP
        raise ConfigError("it is a link" if is_link else f"it cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError("it is not a regular file")
        _check_owner(status, "it")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"it has more than {_MAX_BYTES} bytes")
    return content


def _check_owner(status: os.stat_result, what: str) -> None:
    """Raise ConfigError if a user other than root and the current user could have written the file or folder.

    `status` is that of the file or folder, and `what` names it in the error. Windows has no such owner and mode bits,
    so nothing is checked there.
    """
    if sys.platform == "win32":
        return
    if status.st_uid not in (0, os.getuid()):
        raise ConfigError(f"{what} belongs to another user (uid {status.st_uid}); give it to root (chown root)")
    if status.st_mode & 0o022:
        raise ConfigError(f"{what} can be changed by other users; take that from them (chmod go-w)")


def _parsed(content: bytes) -> MachinePolicy:
    try:
        return msgspec.convert(tomllib.loads(content.decode()), MachinePolicy)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"it is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        raise ConfigError(f"{field}: {problem}" if field else problem) from None


def _checked(policy: MachinePolicy) -> MachinePolicy:
    hosts, hashes, images = policy.remote_hosts or (), policy.model_sha256 or (), policy.image_hosts or ()
    for name, entries in (("remote_hosts", hosts), ("model_sha256", hashes), ("image_hosts", images)):
        if len(entries) > MAX_ENTRIES:
            raise ConfigError(f"{name}: at most {MAX_ENTRIES}, not {len(entries)}")
    try:
        checked_image_hosts(images)
    except ValueError as error:
        raise ConfigError(f"image_hosts: {error}") from None
    for host in hosts:
        if not (_HOST.fullmatch(host) and _has_port_or_none(host)):
            raise ConfigError(
                f"remote_hosts: {host!r:.300} is not a host: a name or an address, and :PORT if it matters"
            )
    for digest in hashes:
        if not _SHA256.fullmatch(digest):
            raise ConfigError(f"model_sha256: {digest!r:.80} is not a sha256, 64 hexadecimal digits in small letters")
    check_budget(policy.budget, "budget")
    if policy.ca_file is not None and not Path(policy.ca_file).is_absolute():
        raise ConfigError(f"ca_file: must be an absolute path, not {policy.ca_file!r:.200}")
    if policy.proxy is not None:
        check_url(policy.proxy, "proxy")
    return policy


def _has_port_or_none(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").port != 0
    except ValueError:
        return False
