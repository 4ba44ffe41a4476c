"""`edgeagent config`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeagent.cli import main
from edgeagent.config_sources import TABLES, declared_options, table_options


@pytest.fixture(autouse=True)
def config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in list(os.environ):
        if variable.startswith("EDGEAGENT_"):
            monkeypatch.delenv(variable)
    path = tmp_path / "config.toml"
    path.write_text("[server]\nport = 1234\n")
    monkeypatch.setenv("EDGEAGENT_CONFIG", str(path))
    return path


def test_show_tells_the_value_and_source_of_every_option(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--ctx", "99", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["file"] == str(config_file)
    assert set(shown["options"]) == {option.name for option in declared_options()}
    assert shown["options"]["engine.ctx"] == {"value": 99, "source": "--ctx"}
    assert shown["options"]["server.port"] == {"value": 1234, "source": f"file ({config_file}:2)"}
    assert shown["options"]["model"] == {"value": "builtin", "source": "default"}


def test_show_for_people_has_one_line_an_option(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["option", "value", "from"]
    assert [line.split()[0] for line in lines[1:-2]] == [option.name for option in declared_options()]
    port = next(line for line in lines if line.startswith("server.port "))
    assert port.split(maxsplit=2) == ["server.port", "1234", f"file ({config_file}:2)"]
    assert lines[-1] == f"Config file: {config_file}"


def test_path_prints_the_path(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "path"]) == 0
    assert capsys.readouterr().out == f"{config_file}\n"


def test_options_is_a_table_of_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "options"]) == 0
    rows = capsys.readouterr().out.splitlines()
    in_tables = [option for name in TABLES for option in table_options(name)]
    listed = [option.name for option in (*declared_options(), *in_tables)]
    assert [row.split("`")[1] for row in rows if row.startswith("| `")] == listed
    assert "| `server.port` | `--port` | `8127` | TCP port. 0 chooses a free port and prints it. (0 to 65535) |" in rows


def test_without_a_command_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show"]) == 0
    shown = capsys.readouterr().out
    assert main(["config"]) == 0
    assert capsys.readouterr().out == shown


def test_show_has_the_tables_of_single_models(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config_file.write_text('[models."a/b:Q4"]\nkeep_alive = "5m"\n[models."a/b:Q4".engine]\nctx = 512\n')
    assert main(["config", "show", "--json"]) == 0
    options = json.loads(capsys.readouterr().out)["options"]
    assert options['models."a/b:Q4".keep_alive'] == {"value": "5m", "source": f"file ({config_file})"}
    assert options['models."a/b:Q4".engine.ctx']["value"] == 512
    assert not [name for name in options if name.endswith("preload") and name.startswith("models")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '[models."m"]\nkeep_alife = "5m"',
            '[models."m"] keep_alife: there is no such option; did you mean keep_alive?',
        ),
        ('[models."m"]\nkeep_alive = "5x"', "[models.\"m\"] keep_alive: '5x' is not a duration"),
        ('[models."m"]\npreload = "maybe"', "[models.\"m\"] preload: must be true or false, not 'maybe'"),
        ('[models."m".engine]\nctxx = 5', '[models."m"] engine.ctxx: there is no such option'),
        (
            '[models."m".engine]\nctx = -5',
            '[models."m"] engine.ctx: must be a whole number from 0 to 2147483647, not -5',
        ),
        ("[models]\nm = 3", 'tables of models look like [models."NAME"], not 3'),
        ("models = 3", 'tables of models look like [models."NAME"], not 3'),
    ],
)
def test_a_mistake_in_a_model_s_table_is_told_with_its_place(
    config_file: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    config_file.write_text(f"{text}\n")
    assert main(["config", "show"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {config_file}: {problem}")
