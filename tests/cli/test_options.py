"""Every declared option is a flag, and only its declaration decides the flag's form."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from edgeagent.cli.options import with_declared_options
from edgeagent.config_sources import LoadedConfig, declared_options


def _loaded_by(*arguments: str, positional: str = "") -> LoadedConfig:
    seen: list[LoadedConfig] = []

    def command(loaded: LoadedConfig) -> None:
        """Do it."""
        seen.append(loaded)

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(with_declared_options(command, positional=positional))
    app(list(arguments), standalone_mode=False)
    return seen[0]


def test_flags_reach_the_config_and_are_named_as_its_source() -> None:
    loaded = _loaded_by(
        "--ctx", "4096", "--gpu-layers", "-1", "--tensor-split", "3,1", "--kv-type-k", "q8_0", "--no-mmap"
    )
    engine = loaded.config.engine
    assert (engine.ctx, engine.gpu_layers, engine.tensor_split) == (4096, -1, (3.0, 1.0))
    assert (engine.kv_type_k, engine.mmap) == ("q8_0", False)
    given = {name for name, source in loaded.provenance.items() if source.startswith("--")}
    assert given == {"engine.ctx", "engine.gpu_layers", "engine.tensor_split", "engine.kv_type_k", "engine.mmap"}


def test_the_positional_option_is_an_argument() -> None:
    assert _loaded_by("some.gguf", "--draft", "small.gguf", positional="model").config.model == "some.gguf"
    assert _loaded_by(positional="model").config.model == "builtin"


def test_a_config_file_is_named_by_flag(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text('[log]\nlevel = "debug"\n')
    loaded = _loaded_by("--config", str(tmp_path / "x.toml"))
    assert loaded.config.log.level == "debug"
    assert loaded.file == tmp_path / "x.toml"


def test_help_tells_every_flag_with_its_meaning_bounds_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(with_declared_options(lambda loaded: None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "1000")
        patch.setenv("TERMINAL_WIDTH", "1000")
        app(["--help"], standalone_mode=False)
    words = " ".join(capsys.readouterr().out.split())
    for option in declared_options():
        assert f"{option.flag} " in words
        assert " ".join(option.help.split()) in words
        assert option.bounds in words
    assert "[0 to 65535, default 8127]" in words
