"""`edgeagent cache`: show, purge and warm the prompt cache. `edgeagent cache answers` is the cache of answers.

`list` always reads the cache folder itself. `purge` does so if no daemon runs. `stats` and `warm` need a daemon.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from edgeagent import cache_folder
from edgeagent.cli.answers import WARM_TIMEOUT_S, answers_app
from edgeagent.cli.display import duration, size_text, table, tell, wrapped
from edgeagent.cli.link import ask, daemon_of
from edgeagent.cli.options import AsJson, AsJsonArray, ConfigFile, StateDir, settings_of
from edgeagent.cli.text_files import json_object, text_of
from edgeagent.config import Config
from edgeagent.credentials.keys import clients
from edgeagent.errors import ConfigError, EdgeAgentError
from edgeagent.runtime_file import find_daemon

cache_app = typer.Typer(rich_markup_mode=None)
cache_app.add_typer(answers_app, name="answers")

Client = Annotated[
    str | None,
    typer.Option("--client", metavar="NAME", help='The client, by its token\'s name, or uid:N; "" is the owner.'),
]
TIER_COLUMNS = ("model", "tier", "blocks", "size", "of", "hits", "misses", "dropped", "evicted", "read")
_PURGE_TIMEOUT_S = 120.0  # the thread that removes the files has the least priority
PART_COLUMNS = ("model", "client", "blocks", "tokens", "size", "unused for")


@cache_app.command("stats")
def stats(as_json: AsJsonArray = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Show the caches of the running models.

    It shows memory and disk, and how often cached prompts were used.
    """
    settings = settings_of(state_dir, config)
    models = ask(daemon_of(settings.state_dir), "/edgeagent/status")["models"]
    tiers = [(model["name"], name, tier) for model in models for name, tier in _tiers(model)]
    records = [{"model": model, "tier": name, **tier} for model, name, tier in tiers]
    rows = [(model, name, *_counts(tier)) for model, name, tier in tiers]
    text = table(TIER_COLUMNS, rows, left_columns=2) if rows else "Nothing is loaded."
    troubles = (wrapped(f"{model}, {name}: {tier['trouble']}") for model, name, tier in tiers if tier["trouble"])
    tell(records, text, *troubles, as_json=as_json)


@cache_app.command("list")
def list_parts(as_json: AsJsonArray = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """List the prompts on disk, by model and client."""
    settings = settings_of(state_dir, config)
    try:
        parts = cache_folder.list_parts(settings.cache_dir)
    except OSError as error:
        raise EdgeAgentError(f"cannot list {settings.cache_dir}: {error.strerror}") from None
    rows = [part.described() for part in parts]
    nothing = f"Nothing is kept in {settings.cache_dir}."
    text = table(PART_COLUMNS, [*map(_part_row, rows)], left_columns=2) if rows else nothing
    tell(rows, text, as_json=as_json)


@cache_app.command("purge")
def purge(
    client: Client = None, as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None
) -> None:
    """Delete all cached prompts, or one client's.

    They are deleted in memory and on disk. Running requests continue.
    """
    settings = settings_of(state_dir, config)
    note = _stranger_note(client, settings) if client else ""
    if find_daemon(settings.state_dir) is not None:
        body = {} if client is None else {"client": client}
        ask(daemon_of(settings.state_dir), "/edgeagent/cache/purge", "POST", body=body, timeout_s=_PURGE_TIMEOUT_S)
    else:
        try:
            cache_folder.purge(settings.cache_dir, client)
        except OSError as error:
            raise EdgeAgentError(f"cannot remove everything from {settings.cache_dir}: {error.strerror}") from None
    if note:
        typer.echo(wrapped(note), err=True)
    whose = "" if client is None else f": the prompts of {client or 'the owner'}"
    tell({"client": client}, f"Deleted{whose}.", as_json=as_json)


@cache_app.command("warm")
def warm(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Text, or JSON with messages and tools as in a chat.")],
    client: Client = "",
    pin: Annotated[bool, typer.Option("--pin", help="Keep it until it is purged.")] = False,
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Compute a prompt ahead of time and keep it.

    Requests that begin with this prompt find it in the cache. FILE is a system prompt, or JSON.
    """
    settings = settings_of(state_dir, config)
    body = {**_prompt(file), "client": client or "", "pin": pin}
    if client and not _is_known(client, settings):
        raise ConfigError(f"no client is named {client!r:.80}; see `edgeagent token list`")
    address = daemon_of(settings.state_dir)
    usage = ask(address, "/edgeagent/cache/warm", "POST", body=body, timeout_s=WARM_TIMEOUT_S)
    computed = usage["num_prompt_tokens"] - usage["num_cached_tokens"]
    text = f"{usage['num_prompt_tokens']} tokens are kept; {computed} of them were computed now."
    tell(usage, text, as_json=as_json)


def _is_known(client: str, settings: Config) -> bool:
    is_user = re.fullmatch(r"uid:[0-9]+", client) is not None
    return is_user or client in {known.name for known in clients(settings.state_dir)}


def _stranger_note(client: str, settings: Config) -> str:
    """Return a note for the user if a client has no token and no prompts on disk, otherwise "".

    An unknown client is not an error: if its token was removed, it may still have prompts in memory.
    """
    try:
        kept = {part.record.client for part in cache_folder.list_parts(settings.cache_dir) if part.record is not None}
    except OSError:
        return ""  # the purge itself reports problems of the folder
    if client in kept or _is_known(client, settings):
        return ""
    return f"No client is named {client!r:.80}, and none had prompts on disk; see `edgeagent cache list`."


def _prompt(file: Path) -> dict[str, Any]:
    text = text_of(file)
    if not text.strip():
        raise ConfigError(f"{file} is empty")
    if file.suffix.lower() != ".json":
        return {"messages": [{"role": "system", "content": text}]}
    return json_object(text, str(file), "with messages (and tools), or with prompt")


def _tiers(model: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    worker = model.get("worker") or {}
    tiers = (("memory", worker.get("memory_cache")), ("disk", worker.get("disk_cache")))
    return [(name, tier) for name, tier in tiers if tier is not None]


def _counts(tier: dict[str, Any]) -> tuple[str, ...]:
    rate = tier["read_bytes_per_s"]
    return (
        str(tier["num_blocks"]),
        size_text(tier["num_bytes"]),
        size_text(tier["max_bytes"]),
        str(tier["num_hits"]),
        str(tier["num_misses"]),
        str(tier["num_dropped"]),
        str(tier["num_evicted"]),
        f"{size_text(rate)}/s" if rate else "-",
    )


def _part_row(row: dict[str, Any]) -> tuple[str, ...]:
    client = "?" if row["client"] is None else row["client"] or "-"
    counts = (str(row["num_blocks"]), str(row["num_tokens"]), size_text(row["num_bytes"]))
    return (row["model"] or "?", client, *counts, duration(row["unused_s"]))
