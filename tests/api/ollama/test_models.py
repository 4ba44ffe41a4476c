"""The models that Ollama's API lists, shows and knows by several names."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from edgeagent.api.ollama.models import _model_info
from edgeagent.config import Config, StoreConfig
from edgeagent.service.inventory import KnownModel
from edgeagent.store.gguf.header import validate_model
from edgeagent.store.names.catalog import builtin_model
from edgeagent.store.names.own import OwnNamesFile, with_alias
from edgeagent.types import (
    ModelStatus,
    SamplingParams,
    WorkerState,
    replace,
)
from tests.api.ollama.requests import HI, body_of, error_of, post
from tests.api.services import INFO, OneModel
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running
from tests.store.gguf_bytes import small_model

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestNames:
    @pytest.mark.parametrize(
        ("name", "model"),
        [
            ("fake", "fake"),
            ("fake:latest", "fake"),
            ("default", "fake"),
            ("org/repo:Q4_K_M", "org/repo:Q4_K_M"),
        ],
    )
    async def test_a_model_has_several(self, daemon: Running, backend: FakeBackend, name: str, model: str) -> None:
        body = await body_of(daemon, "chat", model=name, messages=HI)
        assert (body["model"], backend.requests[0].model) == (name, model)

    @pytest.mark.parametrize("path", ["chat", "generate", "show"])
    @pytest.mark.parametrize("name", ["nope", "fake:7b", "org/repo", "/etc/passwd", "../fake"])
    async def test_an_unknown_one(self, daemon: Running, backend: FakeBackend, path: str, name: str) -> None:
        error = await error_of(daemon, path, 404, model=name, messages=HI, prompt="hi")
        assert error.startswith(f"model '{name}' not found")
        assert backend.requests == []


class Loaded(FakeBackend):
    """A backend whose model is the bundled file under another name."""

    def statuses(self) -> list[ModelStatus]:
        path = str(builtin_model().path)
        sampling = SamplingParams(temperature=0.8, top_k=40)
        info = replace(INFO, path=path, sampling=sampling)
        return [ModelStatus("mine", WorkerState.READY, info=info), ModelStatus("other", WorkerState.STARTING)]


class TestModels:
    @pytest_asyncio.fixture(loop_scope="module")
    async def loaded(self, tmp_path: Path) -> AsyncIterator[Running]:
        config = Config(state_dir=tmp_path, store=StoreConfig(models_dir=tmp_path / "models"))
        async with running(Loaded(models=("mine",)), config) as daemon:
            yield daemon

    async def test_tags(self, loaded: Running) -> None:
        document = (await loaded.http.get(f"{loaded.url}/api/tags")).json()
        mine, other = document["models"]  # the bundled file is loaded under this name, so it is not listed twice
        assert (mine["name"], mine["model"], other["name"]) == ("mine:latest", "mine:latest", "other:latest")
        assert mine["size"] == INFO.size_bytes
        assert re.fullmatch("[0-9a-f]{64}", mine["digest"])
        details = mine["details"]
        assert (details["format"], details["family"], details["families"]) == ("gguf", "llama", ["llama"])
        assert re.fullmatch(r"\d+\.\dM", details["parameter_size"]) and details["quantization_level"]
        assert set(details) == {
            "parent_model", "format", "family", "families", "parameter_size", "quantization_level"
        }  # fmt: skip
        modified_at = datetime.fromisoformat(mine["modified_at"]).timestamp()
        assert modified_at == pytest.approx(builtin_model().path.stat().st_mtime, abs=1e-3)

    async def test_tags_list_what_is_on_disk(self, daemon: Running) -> None:
        models = (await daemon.http.get(f"{daemon.url}/api/tags")).json()["models"]
        assert [model["name"] for model in models] == ["fake:latest", "org/repo:Q4_K_M", "builtin:latest"]
        assert models[2]["size"] == builtin_model().path.stat().st_size

    async def test_ps(self, loaded: Running) -> None:
        [mine] = (await loaded.http.get(f"{loaded.url}/api/ps")).json()["models"]
        assert (mine["name"], mine["context_length"], mine["size_vram"]) == ("mine:latest", 4096, 0)
        assert datetime.fromisoformat(mine["expires_at"]) > datetime.fromisoformat("2100-01-01T00:00:00Z")

    async def test_ps_lists_no_model_of_a_remote(self, tmp_path: Path) -> None:
        backend = OneModel(WorkerState.READY)
        backend.status = replace(backend.status, is_remote=True)
        async with running(backend, Config(state_dir=tmp_path)) as daemon:
            assert (await daemon.http.get(f"{daemon.url}/api/ps")).json() == {"models": []}

    async def test_ps_says_when_an_unused_model_leaves(self, tmp_path: Path) -> None:
        backend = OneModel(WorkerState.READY, info=INFO)
        backend.status = replace(backend.status, unload_in_s=60.0)
        async with running(backend, Config(state_dir=tmp_path)) as daemon:
            [mine] = (await daemon.http.get(f"{daemon.url}/api/ps")).json()["models"]
            left = datetime.fromisoformat(mine["expires_at"]) - datetime.now(UTC)
            assert timedelta() < left <= timedelta(seconds=60)

    @pytest.mark.parametrize("key", ["model", "name"])
    async def test_show(self, loaded: Running, key: str) -> None:
        reply = await loaded.http.post(f"{loaded.url}/api/show", json={key: "mine:latest", "verbose": True})
        body = reply.json()
        info = body["model_info"]
        assert info["general.architecture"] == "llama"
        assert info["general.parameter_count"] > 1_000_000
        assert info["llama.context_length"] > 0 and info["llama.block_count"] > 0
        assert body["capabilities"] == ["completion", "tools"]
        assert body["parameters"].splitlines() == ["num_ctx 4096", "temperature 0.8", "top_k 40"]
        assert {"details", "template", "modelfile", "license", "modified_at"} <= set(body)
        assert str(builtin_model().path) not in reply.text

    async def test_show_what_is_only_on_disk(self, daemon: Running) -> None:
        body = (await post(daemon, "show", model="builtin")).json()
        assert body["model_info"]["general.architecture"] == "llama"
        assert (body["capabilities"], body["parameters"]) == (["completion", "tools", "embedding"], "")

    async def test_show_of_an_unknown_or_damaged_model_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "bad.gguf").write_bytes(b"GGUF")
        config = Config(state_dir=tmp_path, store=StoreConfig(models_dir=tmp_path))
        async with running(FakeBackend(), config) as daemon:
            unknown, bad = [await post(daemon, "show", model=name) for name in ("buildin", "bad")]
        assert unknown.status_code == 404
        assert (
            unknown.json()["error"].startswith("model 'buildin' not found; ") and "builtin" in unknown.json()["error"]
        )
        assert (bad.status_code, "the file ends at byte 4" in bad.json()["error"]) == (422, True)

    async def test_a_name_for_a_file_elsewhere_is_listed(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside.gguf"
        outside.write_bytes(small_model())
        OwnNamesFile(tmp_path).change(lambda names: with_alias(names, "mine", str(outside)))
        config = Config(state_dir=tmp_path, store=StoreConfig(models_dir=tmp_path / "models"))
        async with running(FakeBackend(), config) as daemon:
            tags = (await daemon.http.get(f"{daemon.url}/api/tags")).json()["models"]
            models = (await daemon.http.get(f"{daemon.url}/v1/models")).json()["data"]
            shown = await post(daemon, "show", model="mine")
        assert [model["name"] for model in tags][-1] == "mine:latest"
        assert [model["id"] for model in models][-1] == "mine"
        assert shown.status_code == 200

    async def test_show_needs_a_name(self, daemon: Running) -> None:
        reply = await daemon.http.post(f"{daemon.url}/api/show", json={})
        assert (reply.status_code, "model is required" in reply.json()["error"]) == (400, True)

    async def test_thinking_is_refused_where_the_model_cannot(self, loaded: Running) -> None:
        for think in (True, "low"):
            error = await error_of(loaded, "chat", 400, model="mine", messages=HI, think=think)
            assert error == '"mine" does not support thinking'
        assert (await post(loaded, "chat", model="mine", messages=HI, think=False)).status_code == 200


async def test_a_value_that_the_file_lacks_is_that_of_the_loaded_model() -> None:
    path = builtin_model().path
    header = dataclasses.replace(validate_model(path), context_length=None)
    info = replace(INFO, architecture=header.architecture, context_length_trained=512)
    known = _model_info(KnownModel("mine", path, header=header, info=info))
    assert known[f"{header.architecture}.context_length"] == 512
