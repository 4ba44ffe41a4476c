"""Gathers the facts for `edgeagent doctor`. It uses the network only with `with_network`.

It changes nothing, except that the egress ledger has a row for the use of the network.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from edgeagent import __version__
from edgeagent.config import Config, KioskConfig
from edgeagent.doctor import system
from edgeagent.doctor.facts import Facts, Limits, ProjectorFacts, RunningDaemon
from edgeagent.doctor.native import ask_native
from edgeagent.doctor.system import look_at, look_at_port
from edgeagent.errors import ConfigError, EdgeAgentError
from edgeagent.kiosk_prompt import read_facts
from edgeagent.runtime_file import Runtime, find_daemon, read_token
from edgeagent.store.gguf.header import validate_adapter
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.hub.client import hub_address, why_unreachable
from edgeagent.store.library import Library
from edgeagent.store.names.catalog import load_catalog
from edgeagent.store.projectors import check_projector, media_of

AskReady = Callable[[Runtime], str | None]
"""A function that returns why a daemon is not ready; None if it is ready."""


def gather(config: Config, ask_ready: AskReady, *, with_network: bool = False) -> Facts:
    """Return the facts about this machine that matter with these settings.

    `ask_ready` asks a running daemon whether it is ready. The hub is contacted only with `with_network`.
    """
    token_problem, running = "", None
    try:
        running = find_daemon(config.state_dir)
        read_token(config.state_dir)
    except ConfigError as error:
        token_problem = error.message
    store = config.store
    return Facts(
        version=__version__,
        platform=sys.platform,
        machine=platform.machine(),
        processor=system.read_processor(),
        cpu_flags=system.cpu_flags(),
        gpus=system.gpus(),
        native=ask_native(),
        memory=system.read_memory(),
        cpus=system.read_cpus(),
        models=look_at(HubCache.of(store).root),
        cache=look_at(config.cache_dir, is_measured=True),
        state=look_at(config.state_dir),
        port=look_at_port(config.server, None if running is None else running.port),
        daemon=None if running is None else _daemon(running, ask_ready),
        tools=system.tools(),
        limits=Limits(config.max_cache_bytes, store.min_free_bytes, config.engine.sandbox),
        model=config.model,
        model_problem=_model_problem(config.model, config),
        embedding_problem=_model_problem(config.answers.embedding_model, config) if config.answers.similar else "",
        kiosk_problem=_model_problem(config.kiosk.model, config) if config.kiosk.model else "",
        kiosk_facts_problem=_facts_problem(config.kiosk),
        adapter_problems=tuple(_adapter_problems(config)),
        projector=_projector(config),
        unknown_tables=tuple(name for name in config.models if not _is_here(name, config)),
        token_problem=token_problem,
        hub=hub_address() if with_network else None,
        hub_problem=why_unreachable(config.state_dir) if with_network else "",
    )


def _daemon(running: Runtime, ask_ready: AskReady) -> RunningDaemon:
    try:
        problem = ask_ready(running)
    except EdgeAgentError as error:
        problem = error.message
    return RunningDaemon(running.pid, running.url, running.version, problem)


def _adapter_problems(config: Config) -> Iterator[str]:
    """Yield a message for each adapter file that cannot be used. Requests for such an adapter are refused."""
    for own in config.models.values():
        for path in own.adapters.values():
            try:
                validate_adapter(path)
            except EdgeAgentError as error:
                yield error.message


def _projector(config: Config) -> ProjectorFacts:
    """Return what the model reads besides text."""
    own = config.models.get(config.model)
    mmproj = config.mmproj if own is None or own.mmproj == "auto" else own.mmproj
    if config.model == "none" or mmproj == "none":
        return ProjectorFacts()
    is_named, path = mmproj != "auto", Path(mmproj)
    try:
        if not is_named:
            found = Library.of(config).local(config.model).projector
            if found is None:
                entry = load_catalog().get(config.model)
                return ProjectorFacts(to_pull=config.model if entry is not None and entry.media else "")
            path = found
        check_projector(path)
    except EdgeAgentError as error:
        # A model that is not here is told elsewhere.
        return ProjectorFacts(problem=error.message, is_named=True) if is_named else ProjectorFacts()
    words = {"image": "images", "audio": "sounds"}
    return ProjectorFacts(f"{' and '.join(words[kind] for kind in media_of(path))} with {path.name}", is_named=is_named)


def _is_here(name: str, config: Config) -> bool:
    try:
        Library.of(config).find(name)
    except EdgeAgentError:
        return False
    return True


def _facts_problem(kiosk: KioskConfig) -> str:
    """Return why the daemon would not start with kiosk.facts_file; empty if it can be used."""
    try:
        read_facts(kiosk.facts_file)
    except ConfigError as error:
        return error.message
    return ""


def _model_problem(asked: str, config: Config) -> str:
    """Return why a model is not on this machine; empty if it is here, or if it is `none`."""
    if asked == "none":
        return ""
    library = Library.of(config)
    base, _, adapter = asked.rpartition("+")
    try:
        name = base if base and library.has_adapter(base, adapter) else asked
        missing = [path for path in library.find(name).paths if not Path(path).is_file()]
    except EdgeAgentError as error:
        return error.message
    return f"{missing[0]} is missing" if missing else ""
