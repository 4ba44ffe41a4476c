"""What the daemon's own routes and llama-server's answer, as the documents show it."""

from __future__ import annotations

from typing import Literal

from pydantic import RootModel

from edgeagent.api.documents.answers import OpenAnswer
from edgeagent.api.wire.shape import Json
from edgeagent.types import RouteMode, WorkerState


class HealthError(OpenAnswer):
    """Why the daemon is not ready, in llama-server's words."""

    code: int
    message: str
    type: str


class NotHealthy(OpenAnswer):
    """The answer of a daemon that is not ready."""

    error: HealthError


class Health(OpenAnswer):
    """The daemon is up, and the default model is loaded."""

    status: Literal["ok"]


class Ready(OpenAnswer):
    """A token was generated a moment ago."""

    status: Literal["ready"]


class Version(OpenAnswer):
    """The versions that run."""

    version: str
    llama_cpp_commit: str | None
    llama_cpp_python: str | None
    python: str


class WorkerReport(OpenAnswer):
    """The state of a model's process."""

    num_running: int
    num_waiting: int
    tokens_per_second: float


class ModelReport(OpenAnswer):
    """A model and its process."""

    name: str
    state: WorkerState
    progress: float
    cause: str | None
    pid: int | None
    num_restarts: int
    is_pinned: bool
    unload_in_s: float | None
    idle_s: float
    sha256: str | None
    info: Json | None
    worker: WorkerReport | None


class EndpointReport(OpenAnswer):
    """A remote's base URL; the fields after `region` are of one that is used."""

    url: str
    region: str
    breaker: Literal["closed", "half_open", "open"] | None = None
    cause: str | None = None
    num_live: int | None = None
    first_token_s: float | None = None
    token_s: float | None = None
    num_waiting: int | None = None
    kv_usage: float | None = None


class BudgetReport(OpenAnswer):
    """Most that a day (UTC) may take; null: no limit."""

    tokens: int | None
    money: float | None
    client_tokens: int | None
    client_money: float | None


class RemoteReport(OpenAnswer):
    """A remote: whether requests may go to it, and what they took today."""

    name: str
    trouble: str | None
    is_used: bool
    num_live: int
    num_tokens_today: int
    money_today: float
    budget: BudgetReport
    budget_trouble: str | None
    """Why its owner's requests may not go there today; null if they may."""
    endpoints: list[EndpointReport]


class RouteReport(OpenAnswer):
    """Where requests may run, by the machine's mode; a client and a request can be stricter."""

    mode: RouteMode
    trouble: str | None
    """Why no remote is used; null if nothing is wrong."""
    ledger_trouble: str | None
    """Why nothing may be sent: no row of the egress ledger can be written."""
    remotes: list[RemoteReport]


class EgressRow(OpenAnswer):
    """A request that left this machine, without its content."""

    row: int
    at: str
    request: str
    client: str
    mode: RouteMode
    reason: str
    remote: str
    host: str
    model: str
    num_bytes: int
    outcome: str
    ended_at: str
    num_prompt_tokens: int
    num_output_tokens: int
    money: float


class EgressRows(OpenAnswer):
    """The newest rows of the ledger, the oldest of them first."""

    rows: list[EgressRow]


class EgressPurged(OpenAnswer):
    """The rows of the ledger were deleted: those of `num_days` days."""

    status: Literal["purged"]
    num_days: int


class Status(OpenAnswer):
    """The daemon's status."""

    version: str
    pid: int
    uptime_s: float
    is_draining: bool
    trouble: str | None
    """What is wrong with the daemon itself, e.g. a disk too full for its runtime file; null if nothing is."""
    num_connections: int
    num_live_requests: int
    num_requests_total: int
    tokens_per_second: float
    default_model: str
    token_trouble: str | None
    response_trouble: str | None
    """Why stored responses are in memory only, e.g. a full disk; null if all are written."""
    models: list[ModelReport]
    route: RouteReport


class Stopping(OpenAnswer):
    """The daemon drains and ends."""

    status: Literal["stopping"]
    num_live_requests: int


class Reloading(OpenAnswer):
    """The model is being loaded again."""

    status: Literal["reloading"]
    model: str


class Loaded(OpenAnswer):
    """The model is loaded."""

    status: Literal["loaded"]
    model: str
    took_s: float


class Unloaded(OpenAnswer):
    """The model is not loaded any more (200), or will not be once its requests have ended (202)."""

    status: Literal["unloaded", "unloading"]
    model: str
    num_live_requests: int


class CachePart(OpenAnswer):
    """What the cache on disk holds of one model and client."""

    model: str | None
    client: str | None
    num_blocks: int
    num_tokens: int
    num_bytes: int
    unused_s: float


class CacheReport(OpenAnswer):
    """What the cache on disk holds."""

    dir: str
    parts: list[CachePart]


class Purged(OpenAnswer):
    """The prompts are forgotten."""

    status: Literal["purged"]


class Warmed(OpenAnswer):
    """The prompt is computed, and kept."""

    num_prompt_tokens: int
    num_cached_tokens: int


class TokenPiece(OpenAnswer):
    """A token and its text, or its bytes where it is a part of a character."""

    id: int
    piece: str | list[int]


class Tokens(OpenAnswer):
    """A text's tokens."""

    tokens: list[int] | list[TokenPiece]


class Content(OpenAnswer):
    """The text of tokens."""

    content: str


class RenderedPrompt(OpenAnswer):
    """The prompt that the model's chat template renders for a conversation."""

    prompt: str


class Props(OpenAnswer):
    """The default model's settings, under llama-server's names."""

    default_generation_settings: Json
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str | None


class Slot(OpenAnswer):
    """A slot, which runs one request."""

    id: int
    n_ctx: int
    is_processing: bool


class Slots(RootModel[list[Slot]]):
    """As many slots as requests can run at a time."""


class PulledFile(OpenAnswer):
    """A model that is here. `is_current` is false where the hub could not be asked for a newer one."""

    id: str
    size_bytes: int
    downloaded_bytes: int
    is_current: bool


class ModelPull(PulledFile):
    """What a pull brought; in a stream `model.pull.progress` events come before it."""

    object: Literal["model.pull"]
    draft: PulledFile | None
