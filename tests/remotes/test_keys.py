"""Keys come from a variable, a private file or the system's keyring; errors do not show the key."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from edgeagent.errors import ConfigError
from edgeagent.remotes import Key
from edgeagent.remotes.keys import RETRY_S, KeyFinder
from edgeagent.runtime_file import write_private

SECRET = "sk-hush-0123456789"


def test_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    find, key = KeyFinder(), Key("env", "GPU_KEY")
    monkeypatch.delenv("GPU_KEY", raising=False)
    with pytest.raises(ConfigError, match="variable GPU_KEY, which is not set; set it where the daemon is started"):
        find(key)
    monkeypatch.setenv("GPU_KEY", " ")
    with pytest.raises(ConfigError, match="GPU_KEY, which is empty"):
        find(key)
    monkeypatch.setenv("GPU_KEY", f"{SECRET}\n")
    assert find(key) == SECRET


@pytest.mark.parametrize("value", ["two words", "sk-hush-é", "sk-hush\r\nX: y", "hush" * 3000])
def test_what_no_header_can_carry_is_no_key(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_KEY", value)
    with pytest.raises(ConfigError, match="variable GPU_KEY has no valid key") as raised:
        KeyFinder()(Key("env", "GPU_KEY"))
    assert "hush" not in raised.value.message


def test_from_a_private_file(tmp_path: Path) -> None:
    path, find = tmp_path / "key", KeyFinder()
    key = Key("file", str(path))
    with pytest.raises(ConfigError, match="which does not exist; write it there"):
        find(key)
    write_private(path, b"")
    with pytest.raises(ConfigError, match="which is empty; write the key into it"):
        find(key)
    write_private(path, SECRET.encode() + b"\n")
    assert find(key) == SECRET
    write_private(path, b"another")
    assert find(key) == "another", "a key that was replaced is taken at once"


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(SECRET)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600") as raised:
        KeyFinder()(Key("file", str(path)))
    assert SECRET not in raised.value.message


class FakeKeyring(ModuleType):
    """Replaces the optional library `keyring`, which needs a desktop."""

    def __init__(self) -> None:
        super().__init__("keyring")
        self.errors = ModuleType("keyring.errors")
        self.errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]
        self.keys: dict[tuple[str, str], str] = {}
        self.asked: list[tuple[str, str]] = []
        self.is_locked = False
        self.is_open = threading.Event()
        self.is_open.set()

    def get_password(self, service: str, name: str) -> str | None:
        self.asked.append((service, name))
        self.is_open.wait()
        if self.is_locked:
            raise self.errors.KeyringError(SECRET)
        return self.keys.get((service, name))


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> FakeKeyring:
    fake = FakeKeyring()
    monkeypatch.setitem(sys.modules, "keyring", fake)
    monkeypatch.setitem(sys.modules, "keyring.errors", fake.errors)
    return fake


def test_from_the_keyring_which_is_asked_once(keyring: FakeKeyring) -> None:
    now_s = 0.0
    find, key = KeyFinder(clock=lambda: now_s), Key("keyring", "gpu")
    for _ in range(2):
        with pytest.raises(ConfigError, match="`keyring set edgeagent gpu`"):
            find(key)
    assert len(keyring.asked) == 1
    keyring.keys["edgeagent", "gpu"] = SECRET
    now_s = RETRY_S
    assert find(key) == find(key) == SECRET
    assert len(keyring.asked) == 2
    keyring.keys["edgeagent", "gpu"] = "another"
    find.forget(key)
    assert find(key) == "another"


def test_a_keyring_that_takes_long_holds_nobody_up(keyring: FakeKeyring) -> None:
    clock = iter(range(0, 10 * int(RETRY_S), 2 * int(RETRY_S)))
    find, key = KeyFinder(waits=False, clock=lambda: next(clock)), Key("keyring", "gpu")
    keyring.keys["edgeagent", "gpu"] = SECRET
    keyring.is_open.clear()
    for _ in range(3):
        with pytest.raises(ConfigError, match="has not given the remote's key yet"):
            find(key)
    keyring.is_open.set()
    for thread in threading.enumerate():
        if thread.name == "edgeagent-keyring":
            thread.join()
    assert find(key) == SECRET and len(keyring.asked) == 1


def test_a_locked_keyring_is_an_error_without_its_words(keyring: FakeKeyring) -> None:
    keyring.is_locked = True
    with pytest.raises(ConfigError, match="keyring does not give the key of 'gpu'") as raised:
        KeyFinder()(Key("keyring", "gpu"))
    assert SECRET not in raised.value.message


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match=r"pip install 'edgeagent\[keyring\]'"):
        KeyFinder()(Key("keyring", "gpu"))
