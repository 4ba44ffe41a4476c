"""What a model can do is the same whether it is loaded or not: an editor's agent mode must not appear and vanish."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from edgeagent.api.ollama.models import capabilities
from edgeagent.config import EngineConfig
from edgeagent.engine.llama.encoder import needs_whole_texts
from edgeagent.service.inventory import KnownModel
from edgeagent.store.gguf.header import read_header
from edgeagent.store.names.catalog import builtin_model
from edgeagent.types import MemoryKind, ModelInfo
from edgeagent.worker.child.encoder.host import EncoderHost
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.protocol import Load
from tests.encoder_models import make_encoder
from tests.local_template import open_here
from tests.models import INFILL_TOKENS, MEMORIES, make_tiny_model
from tests.smollm2 import MODEL

KINDS = ("builtin", "smollm2", "infill", "encoder", "ranker", *MEMORIES)


def make(kind: str, folder: Path) -> Path:
    path = folder / "model.gguf"
    match kind:
        case "builtin":
            return builtin_model().path
        case "smollm2":
            return MODEL
        case "infill":
            return make_tiny_model(path, MemoryKind.FULL_ATTENTION, controls=INFILL_TOKENS)
        case "encoder":
            return make_encoder(path)
        case "ranker":
            return make_encoder(path, pooling=gguf.PoolingType.RANK)
    return make_tiny_model(path, MemoryKind(kind))


def info_of(path: Path) -> ModelInfo:
    """Load a model as a worker does, and return what it tells the daemon."""
    load = Load("m", str(path), None, EngineConfig(threads=1, ctx=512))
    opened = open_model(load)
    host: Host | EncoderHost = (
        EncoderHost(load, opened) if needs_whole_texts(opened.model) else Host(load, opened, open_here)
    )
    try:
        return host.info
    finally:
        host.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_model_can_do_what_its_header_says(kind: str, tmp_path: Path) -> None:
    path = make(kind, tmp_path)
    header, info = read_header(path), info_of(path)
    before = capabilities(KnownModel("m", path, header=header))
    assert before == capabilities(KnownModel("m", path, header=header, info=info))
