"""Declarations of all options: field, default, help text and validation in one place. Configs are immutable.

The command line, the environment, config.toml and the documentation all use these declarations; see config_sources.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import platformdirs
from msgspec import Meta, Struct
from msgspec.structs import replace

from edgeagent.units import seconds_of


@dataclass(frozen=True, slots=True)
class Rule:
    """A part of an option's annotation: how its value is read, beyond its type.

    `prepare` gets the value before it is converted to the option's type, `check` the converted one. Each returns a
    value, or raises ValueError with a complete message.
    """

    prepare: Callable[[object], object] = lambda value: value
    check: Callable[[Any], Any] = lambda value: value


def with_home(path: Path) -> Path:
    """Return a path with `~` or `~user` expanded. If there is no such user, the path is returned unchanged."""
    with contextlib.suppress(RuntimeError):
        return path.expanduser()
    return path


def _split_commas(value: object) -> object:
    """Split a text at its commas: "3,1" becomes ["3", "1"]. Return values of other types unchanged."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _duration(value: object) -> object:
    """Return the text of a duration, which is given as a number or a text. Return values of other types unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    seconds_of(value)
    return str(value)


def _projector(value: str) -> str:
    return value if value in ("auto", "none") else str(with_home(Path(value)))


def _draft(value: str) -> str:
    """Refuse an empty name, which would mean the model itself."""
    if not value:
        raise ValueError("must be auto, none, ngram or the name of a model, not empty")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"must be a finite number, not {value}")
    return value


def _shares(shares: tuple[float, ...]) -> tuple[float, ...]:
    for share in shares:
        if not 0 <= share < math.inf:
            raise ValueError(f"each must be a finite number of 0 or more, not {share}")
    return shares


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/*?#@\sA-Z]*")


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse values that no browser sends as an Origin. They would never match a request."""
    for origin in origins:
        if origin == "null":
            raise ValueError(
                "null is the Origin of all sandboxed pages and local files and cannot be allowed: serve the page "
                "from an address, e.g. http://localhost:3000"
            )
        if not _ORIGIN.fullmatch(origin):
            raise ValueError(
                f"{origin} is not an Origin: give a scheme and a host, e.g. http://localhost:3000, and no path or *"
            )
    return origins


def _hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    for host in hosts:
        if set(host) & set("/*@ "):
            raise ValueError(
                f"{host} is not a Host: give a name without scheme or path, e.g. box.example (any port) or "
                "box.example:8443 (only this port)"
            )
    return hosts


_IMAGE_HOST = re.compile(
    r"(\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(:[1-9]\d{0,4})?", re.IGNORECASE
)


def checked_image_hosts(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the hosts from which images may be fetched; raise ValueError if one is not valid."""
    for host in hosts:
        match = _IMAGE_HOST.fullmatch(host)
        if match is None or int((match[4] or ":0")[1:]) > 65535:
            raise ValueError(
                f"{host} is not a host: give a name like images.example, with a port if it is not the usual one "
                "(images.example:8443), *.example for all hosts below a name, or * for all public ones"
            )
    return tuple(host.lower() for host in hosts)


_ANSWER_STORE = re.compile(
    r"sqlite|rediss?://([^\s/:@?#\[\]]+@)?([A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?(/\d{0,4})?|unix:///[^\s?#@]+"
)
_PASSWORD = re.compile(r"[a-z]*://[^/?#@]*:[^/?#]*@")


def _answer_store(value: str) -> str:
    """Refuse what is neither `sqlite` nor the address of a server. An address must not show a password."""
    if _PASSWORD.match(value):
        raise ValueError("must have no password; write it into a file, and name that in answers.store_password_file")
    if not _ANSWER_STORE.fullmatch(value):
        raise ValueError(
            f"must be sqlite, redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///SOCKET, not {value!r:.200}"
        )
    return value


AnswerStore = Annotated[str, Rule(check=_answer_store)]
Draft = Annotated[str, Rule(check=_draft)]
Projector = Annotated[str, Rule(check=_projector)]
Duration = Annotated[str, Rule(prepare=_duration)]
Strings = Annotated[tuple[str, ...], Rule(prepare=_split_commas)]
Shares = Annotated[tuple[float, ...], Rule(prepare=_split_commas, check=_shares)]
LatencyTarget = Annotated[float, Meta(gt=0, le=3600)]
# Shells do not expand ~ in files, variables and `--flag=~/x`.
UserPath = Annotated[Path, Rule(check=with_home)]
AdapterName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]

ENV_PREFIX = "EDGEAGENT_"

KvType = Literal["auto", "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
UNQUANTIZED_KV_TYPES = ("auto", "f32", "f16", "bf16")
# llama.cpp uses 32-bit numbers, and ctypes truncates larger ones silently. llama.cpp supports at most MAX_THREADS.
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1
MAX_THREADS = 512
MAX_DRAFT_TOKENS = 32  # by estimate
DEFAULT_STATE_DIR = Path(platformdirs.user_state_dir("edgeagent", appauthor=False))
NOT_AN_OPTION = "not an option"
"""Marks a field that the program sets itself: no flag, no variable and no file can set it."""
DEFAULT_PARALLEL = 4
VOICE_INSTRUCTIONS = (
    "You are a voice assistant. Your answers are spoken aloud: answer in one or two short sentences, without lists and "
    "markup."
)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. False for any host name other than localhost."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of options. The text below an option is its help."""

    flag_prefix: ClassVar[str] = ""
    """The prefix of the flags of its options; empty if the options' own names are clear enough."""


class ServerConfig(Section, frozen=True):
    """Listening addresses and limits."""

    # Limits that no option changes. Tests make them smaller in a subclass.
    max_body_bytes: ClassVar[int] = 16 << 20
    """Largest HTTP body."""
    max_frame_bytes: ClassVar[int] = 16 << 20
    """Largest WebSocket message."""
    max_connections: ClassVar[int] = 2000
    """Connections at the same time. More are refused, or replace one of the client that has the most."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address except loopback requires a token and TLS."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8127
    """TCP port. 0 chooses a free port and prints it."""
    unix: UserPath | None = None
    """Also listen on this Unix socket. Only programs of this user can connect, and they need no token there."""
    tls_certificate: UserPath | None = None
    """PEM file with the certificate (and its chain) to serve HTTPS with."""
    tls_key: UserPath | None = None
    """PEM file with the certificate's private key."""
    plaintext: bool = False
    """Let other machines connect without TLS. The token and all traffic can then be read on the network."""
    token_required: bool = False
    """Require a token from every client, on loopback too. The owner's token is in the state folder."""
    allowed_origins: Annotated[Strings, Rule(check=_origins)] = ()
    """Exact Origins of web pages that may use the daemon, e.g. http://localhost:3000."""
    allowed_hosts: Annotated[Strings, Rule(check=_hosts)] = ()
    """Further host names of this daemon, e.g. box.example (with any port) or box.example:8443 (only with this port)."""
    image_hosts: Annotated[Strings, Rule(check=checked_image_hosts)] = ()
    """Hosts from which images are fetched if a message has their address, e.g. images.example (*: all public hosts)."""
    docs: bool = False
    """Serve /docs, /openapi.json and /asyncapi.json."""
    max_stored_bytes: Annotated[int, Meta(ge=1)] = 256 << 20
    """Disk space for stored responses, which are compressed. The least recently used are deleted first."""
    max_stored_days: Annotated[float, Meta(gt=0)] = 30.0
    """Delete a stored response after this many days."""
    drain_s: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds for live requests to finish after a stop. Then writing prompts to disk may take as long again."""
    wyoming: Annotated[int, Meta(ge=-1, le=65535)] = -1
    """TCP port for Wyoming, which Home Assistant and voice satellites speak, usually 10300 (0: a free one, -1: off)."""
    wyoming_host: str = "127.0.0.1"
    """Address for Wyoming, which has neither tokens nor TLS. Every machine that reaches it may ask."""
    wyoming_instructions: str = VOICE_INSTRUCTIONS
    """The system prompt of answers over Wyoming. Facts about the home may stand here."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    @property
    def max_in_flight_bytes(self) -> int:
        """The memory for what clients send and do not read, and for requests until they end: eight of the largest.

        What WebSockets keep for their clients to continue may take as much again.
        """
        return 8 * max(self.max_body_bytes, self.max_frame_bytes)

    @property
    def is_token_needed(self) -> bool:
        """Whether TCP clients must send a token: the settings require it, or other machines can reach the address."""
        return self.token_required or not self.is_loopback


class EngineConfig(Section, frozen=True):
    """How a model is run. Every worker gets a copy."""

    ctx: Annotated[int, Meta(ge=0, le=MAX_INT32)] = 0
    """Tokens of KV cache, shared by all requests of a model (0: as trained for, at most 8192 and what fits)."""
    parallel: Annotated[int, Meta(ge=0, le=64)] = 0
    """Requests that run at the same time; others wait (0: four, or fewer if each keeps a state and memory is short)."""
    threads: Annotated[int, Meta(ge=0, le=MAX_THREADS)] = 0
    """Most CPU threads, fewer while other programs use the cores (0: one per fast core, within a container's limit)."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 0
    """Let other programs go first, up to 19, so that a desktop does not stutter (Windows: below normal priority)."""
    batch: Annotated[int, Meta(ge=32, le=MAX_INT32)] = 512
    """Largest number of tokens in one decode call."""
    gpu_layers: Annotated[int, Meta(ge=-1, le=MAX_INT32)] = -1
    """Layers on the GPU (-1: all that fit, 0: none). A number above 0 is an error if there is no GPU."""
    cpu_experts: Annotated[int, Meta(ge=-1, le=MAX_INT32)] = -1
    """For a mixture of experts on a GPU: layers whose experts stay in main memory (-1: as few as possible)."""
    main_gpu: Annotated[int, Meta(ge=-1, le=MAX_INT32)] = -1
    """Index of the only GPU to use, counted from 0 (-1: all, or the first with --split-mode none)."""
    split_mode: Literal["layer", "row", "none"] = "layer"
    """How a model is divided between GPUs: by whole layers, by the rows of each matrix (SYCL only), or not at all."""
    tensor_split: Shares = ()
    """Share of the model for each GPU, e.g. 3,1."""
    flash_attention: Literal["auto", "on", "off"] = "auto"
    """Flash attention (auto: on a CPU what `edgeagent tune` chose, else by the model; on a GPU llama.cpp decides)."""
    kv_type_k: KvType = "auto"
    """Type of the K cache (auto: f16, or q8_0 if memory is short)."""
    kv_type_v: KvType = "auto"
    """Type of the V cache (auto: as for K). Quantized types need flash attention."""
    cache_memory_bytes: Annotated[int, Meta(ge=-1)] = -1
    """Host memory for cached prefixes outside the KV cells (-1: an eighth of the RAM, at most 2 GiB; 0: none)."""
    cache_type: Literal["exact", "q8_0"] = "exact"
    """How cached prefixes are kept in memory and on disk: exact, or rounded to half the bytes (f16 cells only)."""
    cache_shift: bool = False
    """Reuse cached tokens behind a short changed text, such as a clock: faster, but answers are not exact."""
    mmap: bool = True
    """Map the model file instead of reading it."""
    mlock: bool = False
    """Lock the model in RAM, so that it is never swapped out."""
    itl_budget_ms: Annotated[float, Meta(gt=0), Rule(check=_finite)] = 100.0
    """Longest predicted step, in ms, while other requests decode. Prompts are computed in chunks that fit."""
    draft_tokens: Annotated[int, Meta(ge=0, le=MAX_DRAFT_TOKENS)] = 16
    """Most tokens to draft at a time. The number is chosen at each step (0: no speculation)."""
    draft_ngrams: Annotated[bool, NOT_AN_OPTION] = False
    """Asked for by --draft ngram. Else text that repeats is drafted if the model allows it and --draft is not none."""
    max_waiting: Annotated[int, Meta(ge=0)] = 64
    """Requests of each tier that may wait for a free sequence; more are refused with 429. Clients share the places."""
    sandbox: bool = True
    """Keep the worker from using the network, other programs and other files, if the platform can (Linux)."""
    hang_timeout_s: Annotated[float, Meta(gt=0), Rule(check=_finite)] = 30.0
    """Replace the worker if a step takes more than this many seconds and more than 20 times the expected time."""

    @property
    def num_parallel(self) -> int:
        """The number of requests that run at the same time if memory allows."""
        return self.parallel or DEFAULT_PARALLEL

    @property
    def only_gpu(self) -> int:
        """The index of the only GPU to use; -1 if a model is divided between all of them."""
        return max(0, self.main_gpu) if self.split_mode == "none" else self.main_gpu

    @property
    def kv_fault(self) -> str:
        """Why `kv_type_v` cannot be used; "" if it can. llama.cpp would refuse it only at the end of the load."""
        if self.kv_type_v in UNQUANTIZED_KV_TYPES or self.flash_attention != "off":
            return ""
        return (
            f"{self.kv_type_v} is quantized, and a quantized V cache needs flash attention: set flash_attention to "
            "auto or on, or use f16"
        )


class LoadConfig(Section, frozen=True):
    """Which models are loaded, and for how long."""

    on_demand: bool = True
    """Load any model on this machine when a request names it. Otherwise serve only the configured models."""
    keep_alive: Duration = "10m"
    """How long a model that a request loaded stays loaded without use: 90, 5m, 1h (0: not at all, -1: forever)."""
    max_models: Annotated[int, Meta(ge=0)] = 0
    """Models loaded at the same time (0: as many as fit into memory). The least recently used is unloaded first."""
    preload: Strings = ()
    """Further models to load at the start and keep loaded, named as for --model."""
    on_battery: Literal["full", "half"] = "full"
    """Threads on battery: all until 20 % are left, then half; or half at once, so that the charge lasts longer."""

    @property
    def keep_alive_s(self) -> float:
        """`keep_alive` in seconds; infinite if it is negative (forever)."""
        return seconds_of(self.keep_alive)


class ModelConfig(Section, frozen=True, omit_defaults=True):
    """Options that are set for one model only."""

    keep_alive: Duration | None = None
    """How long the model stays loaded without use."""
    preload: bool = False
    """Load the model at the start and keep it loaded."""
    draft: Draft = "auto"
    """What drafts tokens (auto: as --draft says; a draft model named there is only for the default model)."""
    mmproj: Projector = "auto"
    """The model's projector (auto: --mmproj for the default model, mmproj*.gguf beside the model for others)."""
    engine: dict[str, Any] = {}
    """Options of [engine] that differ for this model."""
    adapters: dict[AdapterName, UserPath] = {}
    """Files of LoRA adapters, by name. A request for MODEL+NAME uses the adapter."""
    prefixes: tuple[UserPath, ...] = ()
    """Files of instructions to compute as soon as the model is loaded: text, or .json as for /edgeagent/cache/warm."""


class CacheConfig(Section, frozen=True):
    """Cached prompt prefixes on disk, which need not be computed again after a restart."""

    flag_prefix: ClassVar[str] = "cache-"

    disk_bytes: Annotated[int, Meta(ge=0)] = 8 << 30
    """Disk space for the cached prefixes of all models together (0: write none)."""
    dir: UserPath | None = None
    """Folder of cached prefixes, private to the user (default: `cache` in the state folder)."""
    max_bytes_per_hour: Annotated[int, Meta(ge=0)] = 4 << 30
    """Most bytes to write in an hour, to limit the wear of flash storage (0: no limit)."""


class AnswersConfig(Section, frozen=True):
    """Answers that are kept, and given again to the same question without a model. Off unless the owner wants it."""

    flag_prefix: ClassVar[str] = "answers-"

    exact: bool = False
    """Keep answers for equal requests, and let equal requests at the same time share one answer."""
    clients: Strings = ()
    """Only for the clients of these tokens (default: for all clients and the owner)."""
    models: Strings = ()
    """Only for these models, by their names in `edgeagent ps` (default: for all)."""
    sampled: bool = False
    """Also if the answer is drawn at random: its temperature is above 0, and it has no seed."""
    shared: bool = False
    """Give one client's answers to all others too. Otherwise each client has only its own."""
    max_age: Duration = "168h"
    """Forget an answer after this time: 90, 5m, 24h (-1: never)."""
    max_bytes: Annotated[int, Meta(ge=0)] = 256 << 20
    """Space for kept answers, which are compressed. The least recently used are forgotten first."""
    store: AnswerStore = "sqlite"
    """Where answers are kept: sqlite (a file), or a Redis or Valkey server, e.g. redis://127.0.0.1:6379/0."""
    store_password_file: UserPath | None = None
    """A private file with the password of that server."""
    store_secret_file: UserPath | None = None
    """A private file that several machines have, so that each can read the answers of all (default: none can)."""
    similar: bool = False
    """Also give a kept answer to a question that means the same in other words; this needs the embedding model."""
    similar_clients: Strings = ()
    """Only for the clients of these tokens (default: for all that get kept answers)."""
    max_error: Annotated[float, Meta(gt=0, le=0.5)] = 0.01
    """The largest share of answers from similarity that may differ from what the model would say."""
    embedding_model: str = "all-minilm-l6-v2"
    """The model that compares questions. That of the default knows English only."""
    judge: Literal["exact", "text", "model"] = "text"
    """When two answers are the same: exactly, but for case and punctuation (text), or as the model judges."""

    @property
    def is_on(self) -> bool:
        """Whether any answer may be kept."""
        return self.exact or self.similar

    @property
    def max_age_s(self) -> float:
        """`max_age` in seconds; infinite if it is negative (never)."""
        return seconds_of(self.max_age)


class StoreConfig(Section, frozen=True):
    """Model files."""

    models_dir: UserPath | None = None
    """Folder for downloaded models and your own .gguf files (default: the shared Hugging Face cache)."""
    min_free_bytes: Annotated[int, Meta(ge=0)] = 2 << 30
    """Disk space that downloads and the cache leave free. If less is free, the cache shrinks."""


TierName = Literal["realtime", "interactive", "batch"]
"""The names of the tiers; see types.Tier."""


class TierConfig(Section, frozen=True, omit_defaults=True):
    """Options of one tier of requests. Only in the file: [tiers.realtime], [tiers.interactive], [tiers.batch].

    A request may run on a remote if this machine is predicted to miss the targets of its tier.
    """

    first_token_s: LatencyTarget | None = None
    """Target: the seconds in which the first token should come (default: realtime 0.5, interactive 3, batch 120)."""
    token_s: LatencyTarget | None = None
    """Target: the seconds from one token to the next (default: realtime 0.1, interactive 0.2, batch 5)."""
    max_prompt_tokens: Annotated[int, Meta(ge=1, le=MAX_INT32)] | None = None
    """Budget: the longest prompt, in tokens. A longer one is shortened if it may be, and otherwise refused."""
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_INT32)] | None = None
    """Budget: the longest answer, in tokens. It then ends with the reason `length`."""


class KioskConfig(Section, frozen=True):
    """The kiosk: what its page says, and what its visitors may ask. No visitor can change any of it."""

    flag_prefix: ClassVar[str] = "kiosk-"

    title: str = "Ask me"
    """The heading of the page."""
    attract: str = "Touch a question, or ask your own."
    """What the page says before a visitor asks."""
    questions: Strings = ()
    """Questions that a visitor can touch."""
    keyboard: Strings = ()
    """Rows of keys on the screen, e.g. qwertyuiop,asdfghjkl,zxcvbnm (default: no keys, for a kiosk with a keyboard)."""
    instructions: str = ""
    """The system prompt."""
    facts_file: UserPath | None = None
    """A text file that is added to the system prompt, read again for each visitor: a program may replace it."""
    model: str = ""
    """The model that answers, named as for --model (default: the default model)."""
    max_output_tokens: Annotated[int, Meta(ge=1, le=MAX_INT32)] = 400
    """The longest answer, in tokens."""
    idle_reset_s: Annotated[float, Meta(ge=5, le=3600)] = 60.0
    """Seconds without a touch or a key until the conversation is forgotten."""


class LogConfig(Section, frozen=True):
    """Logging; never holds prompts or answers."""

    flag_prefix: ClassVar[str] = "log-"

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""
    format: Literal["console", "json"] = "console"
    """Log lines for people (console) or for programs (json)."""
    file: UserPath | None = None
    """Write to this file and print only errors. At 8 MiB it is renamed to FILE.1, and a new file begins."""


class TraceConfig(Section, frozen=True):
    """OpenTelemetry traces; they never hold prompts or answers."""

    flag_prefix: ClassVar[str] = "trace-"

    endpoint: str | None = None
    """OTLP/HTTP collector that traces are sent to, e.g. http://127.0.0.1:4318. Needs edgeagent[otel]."""


class Config(Section, frozen=True):
    """All of edgeagent's settings."""

    model: str = "builtin"
    """The model to serve: builtin, a .gguf path, org/repo[:QUANT], a catalog name, or a name that you gave a model."""
    draft: Draft = "auto"
    """What drafts tokens: auto (the text, and a suitable model if one is here), none, ngram, or a model for --model."""
    mmproj: Projector = "auto"
    """The default model's projector for images and sounds: auto (mmproj*.gguf beside the model), none, or a path."""
    state_dir: UserPath = DEFAULT_STATE_DIR
    """Folder for the token, the runtime file and caches; private to the user."""
    route: Literal["auto", "local_only", "prefer_local", "prefer_remote", "remote_only"] = "auto"
    """Where requests may run; a client can only be stricter. auto: prefer_local with remotes, else local_only."""
    forget: bool = False
    """Keep no conversation on disk: no responses, cached prefixes or chat lines. Delete earlier ones at start."""
    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    load: LoadConfig = LoadConfig()
    cache: CacheConfig = CacheConfig()
    answers: AnswersConfig = AnswersConfig()
    store: StoreConfig = StoreConfig()
    kiosk: KioskConfig = KioskConfig()
    log: LogConfig = LogConfig()
    trace: TraceConfig = TraceConfig()
    models: dict[str, ModelConfig] = {}
    """Options of single models, by name. Only in the file: [models."qwen3:4b"]."""
    tiers: dict[str, TierConfig] = {}
    """Latency targets and token budgets of the tiers of requests. Only in the file: [tiers.realtime]."""

    def tier(self, name: str) -> TierConfig:
        """Return the options of a tier."""
        return self.tiers.get(name, TierConfig())

    def engine_of(self, name: str) -> EngineConfig:
        """Return the engine options of a model: those in its own table, and for all others the common ones.

        `name` is the key of the model's table.
        """
        own = self.models.get(name, ModelConfig())
        draft = self.draft if own.draft == "auto" else own.draft
        ngrams = {"draft_ngrams": True} if draft == "ngram" else {}
        return replace(self.engine, **(ngrams | own.engine))

    @property
    def draft_model(self) -> str | None:
        """The draft model that the settings name; None if `draft` is auto, none or ngram."""
        return None if self.draft in ("auto", "none", "ngram") else self.draft

    @property
    def max_cache_bytes(self) -> int:
        """The disk space for cached prefixes; 0 if none may be written."""
        return 0 if self.forget else self.cache.disk_bytes

    @property
    def cache_dir(self) -> Path:
        """The folder of cached prefixes."""
        return self.cache.dir or self.state_dir / "cache"
