"""The policy's file: its content and its owner. Anything wrong with it forbids remotes, pulls and further models."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeagent import machine_policy as module
from edgeagent.errors import ConfigError, Forbidden, ModelLoadFailed
from edgeagent.machine_policy import (
    CLOSED,
    MAX_ENTRIES,
    MachinePolicy,
    PolicyFile,
    described,
    load_policy,
    policy_path,
)
from edgeagent.remotes import Budget, EndpointConfig, Remote
from edgeagent.state_files import RETRY_S
from edgeagent.types import RouteMode

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
HASH = "ab" * 32
WHOLE = f"""
route = "prefer_local"
remote_hosts = ["gpu.example", "*.corp.example:8443", "[::1]:8000"]
pulls = false
model_sha256 = ["{HASH}"]
ca_file = "/etc/edgeagent/ca.pem"
proxy = "http://proxy.example:3128"

[budget]
tokens = 1000000
client_money = 2.5
"""
GPU = Remote("gpu", (EndpointConfig("https://gpu.example/v1"),))


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def test_a_whole_policy_is_read(machine_policy: Path) -> None:
    write(machine_policy, WHOLE)
    policy = load_policy(machine_policy)
    assert policy == MachinePolicy(
        route=RouteMode.PREFER_LOCAL,
        remote_hosts=("gpu.example", "*.corp.example:8443", "[::1]:8000"),
        pulls=False,
        model_sha256=(HASH,),
        budget=Budget(tokens=1_000_000, client_money=2.5),
        ca_file="/etc/edgeagent/ca.pem",
        proxy="http://proxy.example:3128",
    )
    assert described(policy)["budget"] == {"tokens": 1_000_000, "client_money": 2.5}
    assert list(described(MachinePolicy(pulls=False))) == ["pulls"] and described(MachinePolicy()) == {}


def test_without_a_file_nothing_is_forbidden(machine_policy: Path) -> None:
    for _ in range(2):
        file = PolicyFile()
        assert (file.policy, file.trouble, file.is_there) == (MachinePolicy(), "", False)
        assert file.why_not(GPU) == "" and file.why_local == ""
        file.check_pull()
        machine_policy.parent.rmdir() if machine_policy.parent.exists() else None
    machine_policy.parent.mkdir(mode=0o755)
    write(machine_policy, "")
    assert (file.policy, file.is_there) == (MachinePolicy(), True)


WRONG = {
    'route = "sometimes"': "route",
    "route = 1": "route",
    "rout = 'local_only'": "rout",
    "pulls = 0": "pulls",
    "pulls = 'no'": "pulls",
    "remote_hosts = 'gpu.example'": "remote_hosts",
    "remote_hosts = ['https://gpu.example']": "remote_hosts",
    "remote_hosts = ['gpu.example/v1']": "remote_hosts",
    "remote_hosts = ['']": "remote_hosts",
    "remote_hosts = ['*']": "remote_hosts",
    "remote_hosts = ['a.*.example']": "remote_hosts",
    "remote_hosts = ['gpu.example:0']": "remote_hosts",
    "remote_hosts = ['gpu.example:99999']": "remote_hosts",
    "remote_hosts = [" + "'a'," * (MAX_ENTRIES + 1) + "]": "remote_hosts",
    "model_sha256 = ['abc']": "model_sha256",
    f"model_sha256 = ['{HASH.upper()}']": "model_sha256",
    "budget = {tokens = -1}": "budget",
    "budget = {tokens = 1.5}": "budget.tokens",
    "budget = {money = nan}": "budget",
    "budget = {requests = 5}": "requests",
    "ca_file = 'ca.pem'": "ca_file",
    "proxy = 'socks5://proxy.example'": "proxy",
    "proxy = 'http://user:secret@proxy.example'": "proxy",
    "route = 'local_only": "not TOML",
    "\udcff": "not TOML",
}


def assert_closed(file: PolicyFile, why: str) -> None:
    assert file.policy == CLOSED and why in file.trouble and str(file.path) in file.trouble
    assert file.why_local == file.why_not(GPU) == file.trouble
    with pytest.raises(Forbidden) as refused:
        file.check_pull()
    assert refused.value.message == file.trouble
    file.check_model(Path("any"), lambda _: HASH)  # models of this machine still run


@pytest.mark.parametrize("text", WRONG, ids=lambda text: ascii(text[:40]))
def test_what_is_wrong_closes_the_machine_and_is_named(machine_policy: Path, text: str) -> None:
    machine_policy.write_bytes(text.encode(errors="surrogateescape"))
    machine_policy.chmod(0o644)
    file = PolicyFile()
    assert_closed(file, WRONG[text])
    assert "secret" not in file.trouble


@posix
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
@pytest.mark.parametrize("is_folder", [False, True])
def test_who_else_can_write_is_not_trusted(machine_policy: Path, mode: int, is_folder: bool) -> None:
    write(machine_policy, "pulls = true")
    target = machine_policy.parent if is_folder else machine_policy
    target.chmod(mode | 0o111 if is_folder else mode)
    file = PolicyFile()
    assert_closed(file, "can be changed by other users")
    if is_folder:
        # A user who can write there could have removed the policy.
        machine_policy.unlink()
        assert_closed(PolicyFile(), "can be changed by other users")


@posix
@pytest.mark.parametrize(("owner", "user", "is_trusted"), [(0, 1000, True), (1000, 1000, True), (1001, 1000, False)])
def test_the_file_is_roots_or_the_users_own(
    machine_policy: Path, monkeypatch: pytest.MonkeyPatch, owner: int, user: int, is_trusted: bool
) -> None:
    write(machine_policy, "pulls = true")
    real = os.fstat

    def fstat(descriptor: int) -> os.stat_result:
        return os.stat_result((*real(descriptor)[:4], owner, *real(descriptor)[5:]))

    monkeypatch.setattr(module, "_check_owner", _for_files(module._check_owner))
    monkeypatch.setattr(os, "fstat", fstat)
    monkeypatch.setattr(os, "getuid", lambda: user)
    if is_trusted:
        assert load_policy(machine_policy) == MachinePolicy()
    else:
        with pytest.raises(ConfigError, match=r"another user \(uid 1001\)"):
            load_policy(machine_policy)


def _for_files(check: Any) -> Any:
    return lambda status, what: None if "folder" in what else check(status, what)


@posix
def test_only_a_regular_file_that_can_be_read_is_a_policy(machine_policy: Path, tmp_path: Path) -> None:
    write(tmp_path / "other.toml", "")
    machine_policy.symlink_to(tmp_path / "other.toml")
    assert_closed(PolicyFile(), "it is a link")
    machine_policy.unlink()
    machine_policy.mkdir()
    assert_closed(PolicyFile(), "not a regular file")
    machine_policy.rmdir()
    os.mkfifo(machine_policy)
    assert_closed(PolicyFile(), "not a regular file")
    machine_policy.unlink()
    write(machine_policy, "#" * ((1 << 20) + 1))
    assert_closed(PolicyFile(), "more than")
    machine_policy.unlink()
    machine_policy.parent.rmdir()
    write(machine_policy.parent, "")  # a file in the place of the folder
    assert_closed(PolicyFile(), "cannot be read")


def test_what_cannot_be_read_closes_the_machine_until_it_can(
    machine_policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(machine_policy, "route = 'prefer_remote'")
    now_s, real = [0.0], os.open

    def refuse(path: Any, *more: Any) -> int:
        if path == machine_policy:
            raise PermissionError(13, "Permission denied")
        return real(path, *more)

    file = PolicyFile(clock=lambda: now_s[0])
    monkeypatch.setattr(os, "open", refuse)
    assert_closed(file, "cannot be read: Permission denied")
    monkeypatch.undo()
    monkeypatch.setattr(module, "policy_path", lambda: machine_policy)
    assert file.trouble, "it is not asked for at every question"
    now_s[0] += RETRY_S
    assert (file.trouble, file.policy.route) == ("", RouteMode.PREFER_REMOTE)


def test_a_change_holds_at_once(machine_policy: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "edgeagent")
    file = PolicyFile()
    seen = [file.revision]
    for text, route in (("pulls = false", None), ("route = 'local_only'", RouteMode.LOCAL_ONLY), ("?", CLOSED.route)):
        write(machine_policy, text)
        seen.append(file.revision)
        assert file.policy.route is route
    machine_policy.unlink()
    seen.append(file.revision)
    assert file.policy == MachinePolicy()
    assert len(set(seen)) == len(seen)
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO", "WARNING", "WARNING"]
    assert "holds: pulls" in caplog.messages[0] and "is gone" in caplog.messages[-1]


def test_only_listed_models_may_be_loaded(machine_policy: Path) -> None:
    write(machine_policy, f"model_sha256 = ['{HASH}']")
    file = PolicyFile()
    file.check_model(Path("a.gguf"), lambda _: HASH)
    with pytest.raises(ModelLoadFailed, match=rf"b.gguf has the sha256 {'00' * 32}, which is not among model_sha256"):
        file.check_model(Path("b.gguf"), lambda _: "00" * 32)


@pytest.mark.parametrize(
    ("platform", "folder"),
    [
        ("linux", "/etc/edgeagent"),
        ("darwin", "/Library/Application Support/edgeagent"),
        ("win32", "/programs/edgeagent"),
    ],
)
def test_each_system_has_its_place(monkeypatch: pytest.MonkeyPatch, platform: str, folder: str) -> None:
    monkeypatch.setattr(module, "_program_data", lambda: "/programs")
    monkeypatch.setattr(sys, "platform", platform)
    assert policy_path() == Path(folder) / "policy.toml"


@pytest.mark.skipif(sys.platform == "win32", reason="there the system is asked")
def test_no_variable_moves_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "ProgramData", "EDGEAGENT_POLICY", "EDGEAGENT_CONFIG"):
        monkeypatch.setenv(name, str(tmp_path))
    assert policy_path().parent.parent in (Path("/etc"), Path("/Library/Application Support"))
