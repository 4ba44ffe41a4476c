"""`edgeagent config set`, `unset`, `check` and `edit`."""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from pathlib import Path

import pytest

from edgeagent.cli import main
from edgeagent.cli.settings import with_value, without_value
from edgeagent.config_sources import load_config
from edgeagent.errors import ConfigError

WRITTEN = """\
# mine
model = "builtin"  # the #1

[server]
port = 1234 # here

# about the engine
[engine]
tensor_split = [
  3,
  1,
]
"""


@pytest.fixture(autouse=True)
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in list(os.environ):
        if variable.startswith("EDGEAGENT_"):
            monkeypatch.delenv(variable)
    path = tmp_path / "config.toml"
    path.write_text(f'{WRITTEN}[log]\nfile = "{tmp_path}/log"\n')
    monkeypatch.setenv("EDGEAGENT_CONFIG", str(path))
    monkeypatch.setenv("EDGEAGENT_STATE_DIR", str(tmp_path / "state"))
    return path


@pytest.mark.parametrize(
    ("name", "literal", "old", "new"),
    [
        ("server.port", "99", "port = 1234 # here", "port = 99 # here"),
        ("model", '"a"', '"builtin"  # the', '"a"  # the'),
        ("route", '"auto"', "# the #1\n", '# the #1\nroute = "auto"\n'),
        ("server.docs", "true", "# here\n", "# here\ndocs = true\n"),
        ("load.max_models", "2", "  1,\n]\n", "  1,\n]\n\n[load]\nmax_models = 2\n"),
    ],
)
def test_a_value_is_set_and_all_else_stays(name: str, literal: str, old: str, new: str) -> None:
    changed = with_value(WRITTEN, name, literal)
    assert changed == WRITTEN.replace(old, new)
    assert with_value(changed, name, literal) == changed
    if name not in ("model", "server.port"):
        assert without_value(changed, name) == WRITTEN, "no empty table is left"
    remarked = '[server] # mine\nport = 1\n[log]\n# to a file\nlevel = "info"\n'
    assert without_value(without_value(remarked, "server.port"), "log.level") == "[server] # mine\n[log]\n# to a file\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (WRITTEN, "engine.tensor_split"),
        ("server = { port = 1 }\n", "server.port"),
        ('model = """\nport = 1"""\n[server]\n', "model"),
    ],
)
def test_what_is_written_over_several_lines_is_left_to_an_editor(text: str, name: str) -> None:
    with pytest.raises(ConfigError, match="edgeagent config edit"):
        with_value(text, name, "3")
    with pytest.raises(ConfigError, match="edgeagent config edit"):
        without_value(text, name)


def test_set_and_unset(config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    config_file.chmod(0o640)
    for name, value in [("engine.gpu_layers", "-1"), ("server.unix", "~/s/x"), ("server.allowed_hosts", "a,b")]:
        assert main(["config", "set", name, value]) == 0
    assert main(["config", "set", "store.models_dir", "models"]) == 0
    config = load_config().config
    assert (config.engine.gpu_layers, config.server.allowed_hosts) == (-1, ("a", "b"))
    assert config.server.unix == Path.home() / "s/x"
    assert config.store.models_dir == Path.cwd() / "models"
    assert stat.S_IMODE(config_file.stat().st_mode) == 0o640
    assert main(["config", "unset", "server.unix", "store.models_dir"]) == 0
    assert load_config().config.server.unix is None
    monkeypatch.setenv("EDGEAGENT_SERVER__PORT", "7")
    assert main(["config", "set", "server.port", "8"]) == 0
    assert "environment (EDGEAGENT_SERVER__PORT) is another value, and wins" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("set", "server.prt", "1"), "there is no option 'server.prt'; did you mean server.port?"),
        (("set", "server.port", "x"), "server.port: must be a whole number from 0 to 65535, not 'x'"),
        (("set", "tiers.batch.token_s", "1"), "a table is written with `edgeagent config edit`"),
        (("unset", "bla"), "there is no option 'bla'"),
    ],
)
def test_a_mistake_changes_nothing(
    config_file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str
) -> None:
    before = config_file.read_text()
    assert main(["config", *arguments]) == 2
    assert problem in capsys.readouterr().err
    assert config_file.read_text() == before
    assert [path.name for path in config_file.parent.iterdir()] == ["config.toml"]


def test_check(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check"]) == 0
    assert capsys.readouterr().out == f"{config_file} is fine: it sets 4 options.\n"
    assert main(["config", "check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(config_file), "is_there": True, "num_options": 4}
    config_file.write_text('[tiers.realtime]\ntoken_s = 1\n[models."a b"]\npreload = true\n')
    assert main(["config", "check"]) == 0
    assert 'it sets 0 options and has the tables models."a b", tiers."realtime"' in " ".join(
        capsys.readouterr().out.split()
    )
    config_file.write_text("[server]\nport = -1\n")
    assert main(["config", "check"]) == 2
    assert f"{config_file}:2: server.port: must be" in capsys.readouterr().err


def test_edit_replaces_the_file_only_by_a_right_one(
    config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(config_file)
    monkeypatch.setenv("EDGEAGENT_CONFIG", str(link))

    def edit(old: str, new: str) -> int:
        script = tmp_path / "editor.py"
        script.write_text(
            f"import pathlib, sys\np = pathlib.Path(sys.argv[1])\np.write_text(p.read_text().replace({old!r}, {new!r}))"
        )
        monkeypatch.setenv("VISUAL", shlex.join([sys.executable, str(script)]))
        return main(["config", "edit"])

    assert edit("1234", "4321") == 0
    assert "port = 4321 # here" in config_file.read_text()
    assert link.is_symlink()
    assert edit("4321", "-4") == 2
    errors = capsys.readouterr().err
    assert f"{config_file}:5: server.port: must be" in errors and "was not changed" in errors
    assert "port = 4321 # here" in config_file.read_text()
    assert edit("4321", "4321") == 0
    assert capsys.readouterr().out == "Nothing was changed.\n"
    monkeypatch.setenv("VISUAL", str(tmp_path / "no-editor"))
    assert main(["config", "edit"]) == 2
    assert "set EDITOR" in capsys.readouterr().err
