"""Which models there are: those that are served before those on this machine, each once, and their aliases."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgeagent.api.ollama.models import plan_removal, refuse_if_used
from edgeagent.config import Config, StoreConfig
from edgeagent.errors import InvalidRequest, ModelNotFound
from edgeagent.service.inventory import KnownModel, find_known, known_models
from edgeagent.store.names.own import OwnNamesFile, with_alias
from edgeagent.types import ModelStatus, WorkerState
from tests.api.services import INFO
from tests.store.gguf_bytes import small_model


@pytest.fixture
def config(tmp_path: Path) -> Config:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.gguf").write_bytes(small_model())
    (folder / "bad.gguf").write_bytes(b"GGUF")
    OwnNamesFile(tmp_path).change(lambda names: with_alias(names, "mine", "two"))
    return Config(model="one", state_dir=tmp_path, store=StoreConfig(models_dir=folder))


def served(name: str, state: WorkerState = WorkerState.STOPPED) -> ModelStatus:
    return ModelStatus(name, state)


def names(models: list[KnownModel]) -> list[str]:
    return [model.name for model in models if model.name != "builtin"]


def test_served_models_come_first_and_each_comes_once(config: Config) -> None:
    models, aliases = known_models(config, [served("two")])
    assert (names(models), names(aliases)) == (["two", "one"], ["mine"])
    assert [model.status is not None for model in models if model.name != "builtin"] == [True, False]
    assert aliases[0].status is None, "an alias is not loaded beside its model"


def test_a_served_model_without_a_readable_file_is_known_while_it_has_a_worker(config: Config) -> None:
    models, _ = known_models(config, [served("bad"), served("elsewhere", WorkerState.READY)])
    assert names(models) == ["elsewhere", "one", "two"]


def test_a_client_s_name_is_found(config: Config) -> None:
    for name, found in (("mine", "mine"), ("TWO", "two"), ("two.gguf", "two")):
        assert find_known(config, [], name, lambda name: name).name == found
    assert find_known(config, [served("one")], "default", lambda _: "one").name == "one"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/etc/passwd", "model '/etc/passwd' not found: clients name models, not paths"),
        ("a/b", "model 'a/b' not found: a/b is not on this machine: run `edgeagent pull a/b`"),
        ("not found", "model 'not found' not found: 'not found' cannot be a model: "),
    ],
)
def test_an_error_names_the_unknown_model_once_whatever_the_reason(config: Config, name: str, message: str) -> None:
    with pytest.raises(ModelNotFound, match=f"^{re.escape(message)}"):
        find_known(config, [], name, lambda name: name)


def test_a_removal_concerns_the_models_whose_files_it_deletes(config: Config) -> None:
    loading = served("two", WorkerState.STARTING)
    removal, in_use = plan_removal(config, "two", [served("one"), loading])
    assert (removal.name, in_use) == ("two", [loading])
    assert plan_removal(config, "mine", [loading])[1] == [], "only a name goes"
    refuse_if_used(loading, default_model="one")
    with pytest.raises(InvalidRequest, match="serve another one first"):
        refuse_if_used(loading, default_model="two")


@pytest.mark.parametrize("state", [WorkerState.STOPPED, WorkerState.FAILED, WorkerState.QUARANTINED])
def test_the_default_model_is_kept_also_without_a_worker(config: Config, state: WorkerState) -> None:
    default = served("one", state)
    assert plan_removal(config, "one", [default, served("two", state)])[1] == [default]
    by_alias = served("mine", state)
    assert plan_removal(config, "two", [by_alias])[1] == [by_alias], "an alias has the same file"
    with pytest.raises(InvalidRequest, match="serve another one first"):
        refuse_if_used(default, default_model="one")


def test_a_removal_concerns_the_models_that_draft_with_its_files(config: Config) -> None:
    assert config.store.models_dir is not None
    folder = config.store.models_dir
    info = replace(INFO, path=str(folder / "one.gguf"), draft=str(folder / "two.gguf"))
    drafting = ModelStatus("one", WorkerState.READY, info=info)
    assert plan_removal(config, "two", [drafting])[1] == [drafting]
