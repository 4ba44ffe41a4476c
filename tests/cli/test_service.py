"""`edgeagent service` and `uninstall-data` in a home of their own, with a `systemctl` that records its calls."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import edgeagent
import edgeagent.bench.saved
import edgeagent.client.start
import edgeagent.conversation.store
from edgeagent import cache_folder, egress
from edgeagent.cli import main
from edgeagent.cli.service import plan_of
from edgeagent.cli.uninstall import made_names
from edgeagent.config import Config, ServerConfig
from edgeagent.config_sources import load_config
from edgeagent.credentials.keys import CLIENTS_FILE
from edgeagent.daemon.state import SLO_FILE, locked_state_dir
from edgeagent.remotes import REMOTES_FILE
from edgeagent.runtime_file import LOCK_FILE, RUNTIME_FILE, TOKEN_FILE, Runtime, write_runtime
from edgeagent.state_files import HISTORY_FILE
from edgeagent.store.file_records import VERIFIED_FILE
from edgeagent.store.names.own import NAMES_FILE
from tests.patience import patient
from tests.store.gguf_bytes import small_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="for systemd")
CHECK = "--user show --property=Version"
START = ["--user daemon-reload", "--user enable --now edgeagent.socket", "--user disable edgeagent.service"]
REPLACE = "--user disable --now edgeagent.socket edgeagent.service"
# It does what FAKE says: nothing, or fail at the words that match.
SYSTEMCTL = """\
#!/bin/sh
echo "$*" >> "$CALLS"
case "$*" in
    *is-active*edgeagent.socket) echo active;;
    *is-active*) [ -n "$RUNS" ];;
    $FAILS) echo "$PROBLEM" >&2; exit 1;;
esac
"""
# What edgeagent makes in a state folder, beside folders.
MADE = (
    *(
        CLIENTS_FILE,
        HISTORY_FILE,
        LOCK_FILE,
        NAMES_FILE,
        REMOTES_FILE,
        RUNTIME_FILE,
        SLO_FILE,
        TOKEN_FILE,
        VERIFIED_FILE,
    ),
    *(cache_folder.SECRET_FILE, edgeagent.client.start.LOCK_FILE, edgeagent.client.start.LOG_FILE, "daemon.log.1"),
    *(edgeagent.bench.saved.FILE, edgeagent.conversation.store.FILE, f"{edgeagent.conversation.store.FILE}-wal"),
    f"{edgeagent.conversation.store.FILE}.damaged",
    *("clients.lock", "models.lock", "remotes.lock", f"{VERIFIED_FILE}.4711", f".{TOKEN_FILE}.0123456789ab"),
)
Service = Callable[..., int]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in list(os.environ):
        if variable.startswith(("EDGEAGENT_", "XDG_", "HF_")):
            monkeypatch.delenv(variable)
    home, program = tmp_path / "home", tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    (home / ".config/edgeagent").mkdir(parents=True)
    (home / ".config/edgeagent/config.toml").write_text(f'state_dir = "{home}/state"\n[server]\nport = 18127\n')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAILS", "nothing")
    return home


def calls(home: Path) -> list[str]:
    """Return the calls of systemctl since the last time."""
    path = home.parent / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def files(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}


def test_install_status_and_uninstall(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(home)
    assert main(["service", "status", "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["installed"]
    assert main(["service", "install"]) == 0
    assert calls(home) == [CHECK, *START]
    units = home / ".config/systemd/user"
    assert files(home) - before == {f".config/systemd/user/edgeagent.{kind}" for kind in ("service", "socket")}
    assert "ListenStream=127.0.0.1:18127\n" in (units / "edgeagent.socket").read_text()
    assert "ReadWritePaths=-%h/state -%C\n" in (units / "edgeagent.service").read_text()
    assert (home / "state").stat().st_mode & 0o777 == 0o700
    assert "The first request to 127.0.0.1:18127 starts the daemon" in capsys.readouterr().out
    # Again, unchanged: nothing is stopped.
    assert main(["service", "install"]) == 0
    assert calls(home) == [CHECK, *START]
    assert "wrote" not in capsys.readouterr().out
    # A changed setting: the old units are stopped before the new ones are written.
    assert main(["config", "set", "server.drain_s", "60"]) == 0
    assert main(["service", "status"]) == 0
    assert re.search(r"edgeagent\.service +differs", capsys.readouterr().out)
    calls(home)
    assert main(["service", "install", "--preload"]) == 0
    assert calls(home) == [CHECK, REPLACE, *START[:2], "--user enable --now edgeagent.service"]
    assert "TimeoutStopSec=130\n" in (units / "edgeagent.service").read_text()
    assert "enable-linger" in capsys.readouterr().out
    assert main(["service", "status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert set(status["files"].values()) == {"up to date"}
    assert status["states"]["edgeagent.socket"] == "active"
    calls(home)
    assert main(["service", "uninstall"]) == 0
    assert calls(home) == [
        CHECK,
        REPLACE,
        "--user daemon-reload",
        "--user reset-failed edgeagent.socket edgeagent.service",
    ]
    assert files(home) == before
    assert main(["service", "uninstall"]) == 0
    assert calls(home) == []


def test_a_dry_run_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(home)
    assert main(["service", "install", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert f"# {home}/.config/systemd/user/edgeagent.service\n" in out
    assert "\nsystemctl --user enable --now edgeagent.socket\n" in out
    assert main(["service", "install", "--system", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "# /etc/systemd/system/edgeagent.service\n" in out and "User=edgeagent\n" in out
    assert "\nsystemd-sysusers edgeagent.conf\n" in out
    assert (files(home), calls(home)) == (before, [])


@pytest.mark.parametrize(
    ("fails", "problem", "told"),
    [
        ("*Version", "Failed to connect to bus: No medium found", "sudo loginctl enable-linger"),
        ("*Version", "System has not been booted with systemd as init system", "without systemd, start"),
        ("*enable*", "Unit is masked.", "`systemctl --user enable --now edgeagent.socket` failed: Unit is masked."),
    ],
)
def test_what_systemd_refuses_is_told_with_what_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: str, problem: str, told: str
) -> None:
    monkeypatch.setenv("FAILS", fails)
    monkeypatch.setenv("PROBLEM", problem)
    before = files(home)
    assert main(["service", "install"]) != 0
    error = capsys.readouterr().err
    assert problem in error and told in error
    assert fails == "*enable*" or files(home) == before


def test_what_a_service_could_not_use_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDGEAGENT_MODEL", "x")
    assert main(["service", "install"]) == 2
    assert "EDGEAGENT_MODEL: a service does not see" in capsys.readouterr().err
    monkeypatch.delenv("EDGEAGENT_MODEL")
    main(["config", "set", "server.port", "0"])
    assert main(["service", "install"]) == 2
    assert "a service needs a fixed port" in capsys.readouterr().err
    main(["config", "set", "server.port", "18127"])
    (home / "state").mkdir(mode=0o700)
    with locked_state_dir(home / "state"):
        import psutil

        started_at_s = psutil.Process().create_time()
        write_runtime(home / "state", Runtime(os.getpid(), started_at_s, 1, "http://127.0.0.1:1", "0"))
        assert main(["service", "install"]) == 2
        assert "run `edgeagent stop`, then install" in capsys.readouterr().err
        assert main(["uninstall-data", "--yes"]) == 2
        assert f"a daemon runs (process {os.getpid()})" in capsys.readouterr().err
        monkeypatch.setenv("RUNS", "yes")
        assert main(["service", "install"]) == 0


def test_paths_with_odd_characters(home: Path) -> None:
    odd = home / 'a b%c"d'
    config = Config(state_dir=odd, server=ServerConfig(unix=odd / "s"))
    unit, unix = plan_of(config, odd / "$x.toml").files.values()
    assert r' serve --config "' in unit and r'/a b%%c\"d/$$x.toml"' in unit
    assert r'ReadWritePaths="-%h/a b%%c\"d" -%C' in unit
    assert f'ListenStream={home}/a b%%c"d/s\nSocketMode=0600\n' in unix


def test_the_other_systems(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mac = plan_of(Config(), None, platform="darwin")
    (agent,) = mac.files
    assert agent == home / "Library/LaunchAgents/edgeagent.plist"
    assert mac.start == (("launchctl", "bootstrap", f"gui/{os.getuid()}", str(agent)),)
    windows = plan_of(Config(), None, platform="win32")
    assert [shlex.join(command[:2]) for command in windows.start] == ["schtasks /Create", "schtasks /Run"]
    (content,) = windows.contents.values()
    assert content.decode("utf-16").startswith('<?xml version="1.0" encoding="UTF-16"?>')


def test_uninstall_data_removes_what_is_edgeagent_s(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The settings are removed too. Without this, the next command would remove the state of who runs the tests.
    monkeypatch.setenv("EDGEAGENT_STATE_DIR", str(home / "state"))
    models, cache, mine = home / "models", home / "cache", home / "models/mine.gguf"
    for name, value in {"store.models_dir": models, "cache.dir": cache, "log.file": home / "e.log"}.items():
        assert main(["config", "set", name, str(value)]) == 0
    model = cache / "m-0123456789abcdef"
    for folder in (models, model, home / "state"):
        folder.mkdir(parents=True)
    for path in (
        cache / "mine",
        model / "state.json",
        home / "state/daemon.lock",
        home / "state/token",
        home / "e.log",
    ):
        path.write_text("x" * 1000)
    mine.write_bytes(small_model())
    assert main(["uninstall-data"]) == 2
    shown = capsys.readouterr().err
    assert "repeat with --yes" in shown and mine.exists() and (home / "state/token").exists()
    assert re.search(r"^mine +.* no: you put it there .*mine\.gguf$", shown, re.MULTILINE)
    assert main(["uninstall-data", "--yes"]) == 0
    assert files(home) == {"models/mine.gguf", "cache/mine"}
    assert main(["uninstall-data", "--yes"]) == 0
    assert "There is nothing to remove." in capsys.readouterr().out


def test_a_folder_that_is_no_state_folder_stays(home: Path) -> None:
    (home / "state").mkdir()
    (home / "state" / "thesis.txt").write_text("x")
    assert main(["uninstall-data", "--yes"]) == 0
    assert files(home) == {"state/thesis.txt"}


def test_other_things_in_the_state_folder_stay(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A daemon accepts a private folder that has other things, such as a home.
    state = home / "state"
    for folder in ("cache/m-0123456789abcdef", egress.EGRESS_FOLDER, "last-use", "profiles"):
        (state / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in MADE:
        (state / name).touch(0o600)
        (state / name).write_text('{"aliases": {}, "imports": {}}')
    mine = [state / name for name in ("thesis.txt", "tokens", ".profile", "pictures/me.jpg", "cache/me.jpg")]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x" * 1000)
    assert main(["uninstall-data", "--yes"]) == 0
    shown = capsys.readouterr().err
    assert re.search(r"^\.profile and 3 more +4\.0 kB +no: edgeagent did not make it", shown, re.MULTILINE), shown
    assert files(home) == {str(path.relative_to(home)) for path in mine}
    assert sorted(path.name for path in state.iterdir()) == [".profile", "cache", "pictures", "thesis.txt", "tokens"]


def test_each_name_that_the_source_joins_to_the_state_folder_is_known() -> None:
    found = set()
    for path in (root := Path(edgeagent.__file__).parent).rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if "state_dir" not in source:  # to parse all modules takes a second
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.BinOp(left, ast.Div(), ast.Constant(str(name))) if _is_state_folder(left):
                    found.add(name)
                case ast.BinOp(left, ast.Div(), ast.Name(constant)) if _is_state_folder(left):
                    parts = path.relative_to(root.parent).with_suffix("").parts
                    found.add(getattr(importlib.import_module(".".join(parts)), constant))
    found.remove("cache")  # its folder can be elsewhere, and is removed by its own rules
    assert {TOKEN_FILE, CLIENTS_FILE, "clients.lock", "profiles", "last-use"} <= found
    assert [name for name in found if not made_names().fullmatch(name)] == []


def _is_state_folder(folder: ast.expr) -> bool:
    return re.search(r"\bstate_dir(\.absolute\(\))?$", ast.unparse(folder)) is not None


@pytest.mark.parametrize("is_default", [True, False])
def test_models_log_and_settings_in_the_state_folder(
    is_default: bool, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state, config = home / "state", home / "state/config.toml"
    if is_default:
        monkeypatch.setattr("edgeagent.cli.uninstall.DEFAULT_STATE_DIR", state)
    (state / "models").mkdir(parents=True)
    for name in ("daemon.lock", "my.log", "my.log.1"):
        (state / name).write_text("x")
    mine = state / "models/mine.gguf"
    mine.write_bytes(small_model())
    (home / ".config/edgeagent/config.toml").unlink()
    config.write_text(
        f'state_dir = "{state}"\n[store]\nmodels_dir = "{state}/models"\n[log]\nfile = "{state}/my.log"\n'
    )
    assert main(["uninstall-data", "--yes", "--config", str(config)]) == 0
    assert re.search(r"^models .* no: ", capsys.readouterr().err, re.MULTILINE)
    assert files(home) == {"state/models/mine.gguf"}


def test_what_commands_write_without_a_daemon_is_removed(home: Path) -> None:
    script = (
        "from pathlib import Path\n"
        "from edgeagent.cli import main\n"
        "from edgeagent.config_sources import load_config\n"
        "from edgeagent.store.file_records import LastUse\n"
        "LastUse(load_config().config.state_dir).note(Path('model.gguf'))  # as `edgeagent run` does\n"
        "raise SystemExit(main(['uninstall-data', '--yes']))"
    )
    (home / ".config/edgeagent/config.toml").unlink()
    subprocess.run([sys.executable, "-c", script], check=True, timeout=patient(60))
    assert files(home) == set()
    assert not (home / ".local/state/edgeagent").exists()


def test_the_units_of_a_package_are_used(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = tmp_path / "usr/lib"
    monkeypatch.setattr("edgeagent.cli.service.PACKAGES_DIR", packages)
    (home / ".config/edgeagent/config.toml").write_text(f'state_dir = "{home}/state"\n')
    before = files(home)
    plan = plan_of(load_config().config, None)
    for path, packaged in plan.packaged.items():
        packaged.parent.mkdir(parents=True, exist_ok=True)
        packaged.write_bytes(plan.contents[path])
    assert main(["service", "install"]) == 0
    assert files(home) == before
    assert calls(home) == [CHECK, *START]
    capsys.readouterr()
    assert main(["service", "status", "--json"]) == 0
    used = {str(path): "up to date" for path in plan.packaged.values()}
    assert json.loads(capsys.readouterr().out)["files"] == used
    # A setting that the packaged units do not fit: the socket's own file goes over that of the package.
    assert main(["config", "set", "server.port", "18128"]) == 0
    calls(home)
    assert main(["service", "install"]) == 0
    assert files(home) - before == {".config/systemd/user/edgeagent.socket"}
    # The setting is as before: the file is in the way.
    assert main(["config", "unset", "server.port"]) == 0
    calls(home)
    assert main(["service", "install"]) == 0
    assert calls(home) == [CHECK, REPLACE, *START]
    assert files(home) == before
    assert main(["uninstall-data", "--yes"]) == 2
    assert main(["service", "uninstall"]) == 0
    assert REPLACE in calls(home) and all(path.exists() for path in plan.packaged.values())
    monkeypatch.setenv("FAILS", "*is-enabled*")
    assert main(["service", "status"]) == 1
