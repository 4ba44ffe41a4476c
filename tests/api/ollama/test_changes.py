"""Models deleted, copied and described through Ollama's API, with the real ollama package."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from ollama import AsyncClient, ResponseError

from edgeagent.config import Config, StoreConfig
from edgeagent.store.names.own import Imported, OwnNamesFile, with_import
from edgeagent.types import ModelStatus, WorkerState, replace
from tests.api.services import INFO, Answering
from tests.daemon.running import TOKEN, Running, running
from tests.store.gguf_bytes import BOOL, MODEL_KEYS, GgufBytes, key, small_model
from tests.store.test_library import put

REPO = "org/model-GGUF"

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Serving(Answering):
    """A backend that has loaded `served.gguf` and `loaded.gguf` of the models' folder; the first is the default.

    Models named in `starting` are still loading.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(models=("served", "loaded"))
        self._folder = folder
        self.num_answers = 0
        self.starting: tuple[str, ...] = ()

    def statuses(self) -> list[ModelStatus]:
        paths = {name: str(self._folder / f"{name}.gguf") for name in ("served", "loaded")}
        num_live = self.num_answers
        ready = [
            ModelStatus(name, WorkerState.READY, info=replace(INFO, path=path), num_live=num_live)
            for name, path in paths.items()
        ]
        return ready + [ModelStatus(name, WorkerState.STARTING, num_live=num_live) for name in self.starting]


@pytest.fixture
def store(tmp_path: Path) -> StoreConfig:
    return StoreConfig(models_dir=tmp_path / "models")


@pytest_asyncio.fixture(loop_scope="module")
async def daemon(tmp_path: Path, store: StoreConfig) -> AsyncIterator[Running]:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("served", "loaded", "other"):
        (folder / f"{name}.gguf").write_bytes(small_model())
    put(store, "model-Q4_0.gguf", small_model(1))
    put(store, "model-Q8_0.gguf", small_model(2))
    config = Config(model="served", state_dir=tmp_path, store=store)
    async with running(Serving(folder), config) as daemon:
        yield daemon


@pytest_asyncio.fixture(loop_scope="module")
async def client(daemon: Running) -> AsyncIterator[AsyncClient]:
    client = AsyncClient(host=daemon.url, headers={"Authorization": f"Bearer {TOKEN}"})
    yield client
    await client._client.aclose()


async def names(client: AsyncClient) -> set[str | None]:
    return {model.model for model in (await client.list()).models} - {"builtin:latest"}


async def test_delete(client: AsyncClient, store: StoreConfig) -> None:
    assert await names(client) == {"served:latest", "loaded:latest", "other:latest", f"{REPO}:Q4_0", f"{REPO}:Q8_0"}
    assert (await client.delete(f"{REPO}:Q4_0")).status == "success"
    assert (await client.delete("other:latest")).status == "success"
    assert await names(client) == {"served:latest", "loaded:latest", f"{REPO}:Q8_0"}
    assert store.models_dir is not None and not (store.models_dir / "other.gguf").exists()


async def test_copy_then_show_then_delete_the_copy(client: AsyncClient) -> None:
    assert (await client.copy(f"{REPO}:Q8_0", "mine:v1")).status == "success"
    listed = {model.model: model for model in (await client.list()).models}
    assert listed["mine:v1"].digest == listed[f"{REPO}:Q8_0"].digest
    shown = await client.show("mine:v1")
    assert shown.modelinfo is not None and shown.modelinfo["general.architecture"] == "llama"
    assert (await client.delete("mine:v1")).status == "success"
    assert f"{REPO}:Q8_0" in await names(client) and "mine:v1" not in await names(client)


async def test_show_by_any_name(client: AsyncClient) -> None:
    for name in (f"hf.co/{REPO}:q8_0", f"{REPO}:Q8_0", "OTHER", "other.gguf"):
        assert (await client.show(name)).details is not None


async def test_a_loaded_model_has_its_copies_and_is_loaded_once(client: AsyncClient) -> None:
    await client.copy("served", "mine")
    assert "mine:latest" in await names(client)
    assert [model.model for model in (await client.ps()).models] == ["served:latest", "loaded:latest"]


async def test_the_default_model_is_not_deleted(client: AsyncClient, store: StoreConfig) -> None:
    with pytest.raises(ResponseError, match="served is the model that this daemon serves") as refusal:
        await client.delete("served")
    assert refusal.value.status_code == 400
    assert store.models_dir is not None and (store.models_dir / "served.gguf").exists()


async def test_a_loaded_model_is_unloaded_first(client: AsyncClient, daemon: Running, store: StoreConfig) -> None:
    service = daemon.service
    assert isinstance(service, Serving) and store.models_dir is not None
    service.num_answers = 2
    with pytest.raises(ResponseError, match="loaded has 2 requests to answer"):
        await client.delete("loaded")
    assert (store.models_dir / "loaded.gguf").exists()
    assert service.unloaded == [], "a refusal does not even end it later"
    service.num_answers = 0
    await client.delete("loaded")
    assert service.unloaded == ["loaded"] and not (store.models_dir / "loaded.gguf").exists()


async def test_a_model_that_is_being_loaded_keeps_its_file(
    client: AsyncClient, daemon: Running, store: StoreConfig
) -> None:
    service = daemon.service
    assert isinstance(service, Serving) and store.models_dir is not None
    service.starting, service.num_answers = ("other",), 1
    with pytest.raises(ResponseError, match="other has a request to answer"):
        await client.delete("other")
    assert (store.models_dir / "other.gguf").exists()


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("othr", 404, "model 'othr' not found: .*near names: other"),
        ("org/none", 404, "model 'org/none' not found: org/none is not on this machine"),
        ("builtin", 400, "comes with edgeagent"),
        ("/etc/passwd", 404, "clients name models, not paths"),
        ("./served.gguf", 404, "clients name models, not paths"),
        ("x" * 600, 400, "model must have at most 512 characters"),
    ],
)
async def test_what_cannot_be_deleted(client: AsyncClient, name: str, status: int, text: str) -> None:
    with pytest.raises(ResponseError, match=text) as refusal:
        await client.delete(name)
    assert refusal.value.status_code == status


@pytest.mark.parametrize(
    ("source", "destination", "status", "text"),
    [
        ("none", "mine", 404, "model 'none' not found: none is not on this machine"),
        ("other", "a/b", 400, "cannot be a model's name"),
        ("other", "served", 400, "served is a model's name already"),
        ("other", "qwen3-4b", 400, "a name of the catalog"),
        ("/etc/passwd", "mine", 404, "clients name models, not paths"),
        ("", "mine", 400, "source must have at least 1 character"),
    ],
)
async def test_what_cannot_be_copied(
    client: AsyncClient, source: str, destination: str, status: int, text: str
) -> None:
    with pytest.raises(ResponseError, match=text) as refusal:
        await client.copy(source, destination)
    assert refusal.value.status_code == status


async def test_an_imported_model_is_forgotten_and_its_file_stays(
    client: AsyncClient, daemon: Running, tmp_path: Path
) -> None:
    path = GgufBytes(keys=(*MODEL_KEYS, key("llama.attention.causal", BOOL, False))).write(tmp_path / "theirs.gguf")
    OwnNamesFile(tmp_path).change(lambda own: with_import(own, "theirs:1b", Imported((path,), "ollama")))
    assert (await client.show("theirs:1b")).capabilities == ["embedding"]
    await client.delete("theirs:1b")
    assert path.exists() and "theirs:1b" not in await names(client)
