"""A hub for each test, and pullers and libraries that use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeagent.config import StoreConfig
from edgeagent.store.hub import pull
from edgeagent.store.hub.pull import Puller
from edgeagent.store.library import Library
from tests.hub_server import HubServer, hub_server

MakePuller = Callable[..., Puller]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A running hub without repositories; the client's connections are closed before and after."""
    from huggingface_hub import close_session

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(pull, "RETRY_WAIT_S", 0.0)
    close_session()
    with hub_server() as server:
        yield server
        close_session()


@pytest.fixture
def store(tmp_path: Path) -> StoreConfig:
    return StoreConfig(models_dir=tmp_path / "cache", min_free_bytes=0)


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def puller(hub: HubServer, store: StoreConfig, state_dir: Path) -> Puller:
    return Puller(store, state_dir, endpoint=hub.url, token="hf_test_token")


@pytest.fixture
def library(store: StoreConfig, state_dir: Path) -> Library:
    return Library(store, state_dir)
