"""Every option, declared once: field, default, help and check together.

The command line, the environment (EDGEAGENT_SECTION__OPTION) and config.toml in the platform's config folder are all
read from these declarations. Unknown keys are errors. A changed config is a new config.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]


class Section(BaseModel):
    """A group of options; frozen, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ServerConfig(Section):
    """Where the daemon listens and what it bears."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback makes a token mandatory."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8127
    """TCP port; 0 takes a free one and prints it."""
    token_required: bool = False
    """Ask every client for the token in the state folder, on loopback too."""
    allowed_origins: tuple[str, ...] = ()
    """Exact Origins of web pages that may use the daemon, e.g. http://localhost:3000."""
    allowed_hosts: tuple[str, ...] = ()
    """Further exact Host header values beside the loopback names (needed behind another name)."""
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 << 20
    """Largest HTTP body."""
    max_frame_bytes: Annotated[int, Field(ge=1024)] = 16 << 20
    """Largest WebSocket message."""
    max_connections: Annotated[int, Field(ge=1)] = 2000
    """Connections at a time; more are refused."""
    max_stored_responses: Annotated[int, Field(ge=1)] = 1000
    """Responses kept for previous_response_id; the least recently used go first."""
    drain_s: Annotated[float, Field(ge=0)] = 10.0
    """How long live requests may go on after a stop was asked for."""


class EngineConfig(Section):
    """How a model is run. Every worker gets a copy."""

    ctx: Annotated[int, Field(ge=0)] = 0
    """Tokens of KV cache, shared by all requests of a model (0: what the model was trained for, at most 8192)."""
    parallel: Annotated[int, Field(ge=1, le=64)] = 8
    """Requests that run at the same time; more wait."""
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads (0: one for each physical core this process may use)."""
    batch: Annotated[int, Field(ge=32)] = 512
    """Most tokens in one decode call."""
    gpu_layers: Annotated[int, Field(ge=-1)] = -1
    """Layers on the GPU: -1 all that fit, 0 none. Asking for more than 0 without a GPU is an error."""
    main_gpu: Annotated[int, Field(ge=0)] = 0
    """The GPU for a model that is not split."""
    tensor_split: tuple[float, ...] = ()
    """Share of the model for each GPU, e.g. 3,1."""
    flash_attention: Literal["auto", "on", "off"] = "auto"
    """Flash attention."""
    kv_type_k: KvType = "f16"
    """Type of the K cache."""
    kv_type_v: KvType = "f16"
    """Type of the V cache; quantized types need flash attention."""
    mmap: bool = True
    """Map the model file instead of reading it."""
    mlock: bool = False
    """Keep the model in RAM."""
    itl_budget_ms: Annotated[float, Field(gt=0)] = 100.0
    """Longest step, predicted, while others are decoding; prompts are cut into chunks that keep it."""
    draft_tokens: Annotated[int, Field(ge=0, le=32)] = 3
    """Most tokens the draft model proposes at a time (0: no speculation)."""
    max_waiting: Annotated[int, Field(ge=0)] = 64
    """Requests that may wait for a free sequence; more are refused with 429."""
    load_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """A load without progress for this long has failed."""
    hang_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """A step that takes longer than this (and 20 times the usual) is a hang: the worker is replaced."""


class StoreConfig(Section):
    """Model files."""

    models_dir: Path | None = None
    """Folder for downloaded models (default: the shared Hugging Face cache)."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 1 << 30
    """Disk space a download must leave free."""


class LogConfig(Section):
    """Logging; never holds prompts or answers."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    format: Literal["console", "json"] = "console"
    """Lines for people or for machines."""


class Config(BaseSettings):
    """All of edgeagent's settings."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="EDGEAGENT_", env_nested_delimiter="__", use_attribute_docstrings=True
    )

    model: str = "builtin"
    """The model to serve: a path to a .gguf, org/repo[:QUANT], or builtin."""
    draft: str | None = None
    """A small model that speculates for it (same vocabulary); builtin's own is used with builtin."""
    state_dir: Path = Path(platformdirs.user_state_dir("edgeagent", appauthor=False))
    """Folder for the token, the runtime file and caches; private to the user."""
    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    store: StoreConfig = StoreConfig()
    log: LogConfig = LogConfig()
