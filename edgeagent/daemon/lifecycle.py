"""The daemon's life cycle: lock the state folder, bind, listen while the model loads, serve, drain, stop."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from edgeagent import __version__
from edgeagent.api import defer_checks
from edgeagent.cache_folder import purge, purge_unfinished
from edgeagent.credentials.keys import KeyRing, Keys, check_files, ensure_token
from edgeagent.daemon.console import ConsoleReporter, LogFile, LogReporter, console, dropped_lines
from edgeagent.daemon.kiosk import check_facts, check_prompt, warn_of_kiosk
from edgeagent.daemon.listeners import Listeners, external_urls, keep_watchdog, listening, notify
from edgeagent.daemon.logs import configure_logging, dropped_record, log_unhandled
from edgeagent.daemon.state import ExitCode, Publication, SloFile, StartError, locked_state_dir, warn_if_missing
from edgeagent.daemon.traces import tracing
from edgeagent.errors import ConfigError, EdgeAgentError, from_code
from edgeagent.metrics.slo import SloLedger
from edgeagent.process_settings import (
    give_back_freed_memory,
    keep_collections_short,
    request_short_time_slices,
    switch_threads_often,
)
from edgeagent.remotes.check import is_loopback
from edgeagent.runtime_file import TOKEN_FILE, Runtime, bracketed, local_url
from edgeagent.service.service import Service
from edgeagent.state_files import ANSWERS_FILE, HISTORY_FILE, SIMILAR_FILE
from edgeagent.types import UNUSABLE, ModelStatus, WorkerState

if TYPE_CHECKING:
    from edgeagent.answers.answers import Answers
    from edgeagent.config import Config
    from edgeagent.service.live_service import Trace

WATCH_S = 2.0
WATCH_CLOSELY_S = 0.05  # while a model loads, or the service stops
# How long the daemon waits for its workers to end after a second signal. A worker that takes longer ends by itself when
# the daemon has ended, because its pipe closes.
FORCED_STOP_S = 0.5


class StartableService(Service, Protocol):
    """The service, with the methods by which the daemon starts and stops it."""

    async def start(self) -> None:
        """Start loading the configured models; return without waiting for them."""
        ...

    async def stop(self) -> None:
        """End all requests, and stop all models and remotes."""
        ...


def build_router(config: Config) -> StartableService:
    """Return the router for a configuration. It is not started."""
    from edgeagent.router import build

    return build(config)


def serve(
    config: Config,
    *,
    reporter: ConsoleReporter | None = None,
    build: Callable[[Config], StartableService] = build_router,
) -> int:
    """Run the daemon until it is asked to stop, and return the exit status (see ExitCode).

    Call this from the main thread, which receives the signals. `reporter` receives the daemon's events; by default they
    are printed. `build` creates the service.
    """
    _forbid_cores()
    if config.log.file is not None:
        try:
            file = LogFile(config.log.file)
        except OSError as error:
            ConsoleReporter().error(f"log.file: cannot write {config.log.file}: {error.strerror}")
            return ExitCode.WRONG_SETTING
        with file, console(file, _description_of_dropped(config)) as lines:
            configure_logging(config.log, lines)
            return _serve_and_report(config, reporter or LogReporter(), build)
    with console(sys.stdout) as out, console(sys.stderr, _description_of_dropped(config)) as err:
        configure_logging(config.log, err)
        is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
        is_json = config.log.format == "json"
        ours = LogReporter(out) if is_json else ConsoleReporter(out, err, is_terminal=is_terminal)
        return _serve_and_report(config, reporter or ours, build)


def _description_of_dropped(config: Config) -> Callable[[int], str]:
    return dropped_record if config.log.format == "json" else dropped_lines


def _forbid_cores() -> None:
    """Turn core files off, since they would contain prompts and the token."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _serve_and_report(config: Config, reporter: ConsoleReporter, build: Callable[[Config], StartableService]) -> int:
    try:
        check_route(config)
        with locked_state_dir(config.state_dir), listening(config.server) as listeners:
            if config.forget:
                _forget_conversations(config)
            warn_if_missing(config.store.models_dir)
            check_facts(config.kiosk)
            ensure_token(config.state_dir)
            # If a credential file cannot be trusted, the daemon fails here and not at the first request.
            check_files(config.state_dir)
            keys = KeyRing(config.state_dir)
            request_short_time_slices()
            switch_threads_often()
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(_run(config, listeners, keys, reporter, build))
    except StartError as error:
        reporter.error(str(error))
        return error.exit_code
    except EdgeAgentError as error:
        reporter.error(error.message)
        return error.exit_status
    except KeyboardInterrupt:
        return ExitCode.OK
    return ExitCode.OK


def check_route(config: Config) -> None:
    """Raise ConfigError if all stays on this machine by `route`, and another option names another machine."""
    if config.route != "local_only":
        return
    urls = {
        "trace.endpoint": (config.trace.endpoint,) if config.trace.endpoint else (),
        "server.image_hosts": tuple(f"http://{host}" for host in config.server.image_hosts),
    }
    for name, named in urls.items():
        if not all(map(is_loopback, named)):
            why = f"{name} names an address that is not localhost or loopback"
            raise ConfigError(f"route = local_only keeps all on this machine, but {why}; remove one")


def _forget_conversations(config: Config) -> None:
    """Delete what earlier runs kept of conversations. Raise ConfigError if that fails, since the user relies on it."""
    from edgeagent.conversation.store import FILE

    try:
        kept = (path for name in (FILE, ANSWERS_FILE, SIMILAR_FILE) for path in config.state_dir.glob(f"{name}*"))
        for path in (config.state_dir / HISTORY_FILE, *kept):
            path.unlink(missing_ok=True)
        purge(config.cache_dir)
        purge_unfinished(config.cache_dir)
    except OSError as error:
        raise ConfigError(
            f"forget: earlier conversations cannot be deleted: {error}; delete them, then start"
        ) from error


async def _run(
    config: Config,
    listeners: Listeners,
    keys: Keys,
    reporter: ConsoleReporter,
    build: Callable[[Config], StartableService],
) -> None:
    asyncio.get_running_loop().set_exception_handler(log_unhandled)
    stop = StopRequest()
    with _signals(stop), tracing(config.trace, config.state_dir) as trace:
        watchdog = asyncio.create_task(keep_watchdog())
        service = build(config)
        try:
            await service.start()
            _check_usable(service.models.statuses())
            await warn_of_kiosk(service.models, config.kiosk)
            # The web framework takes half a second to import. In a thread, since the loop starts the worker meanwhile.
            await asyncio.to_thread(_import_server)
            if listeners.wyoming is not None:
                await asyncio.to_thread(importlib.import_module, "edgeagent.api.wyoming.server")
            await _serve(config, service, listeners, keys, reporter, stop, trace)
        finally:
            await _end(service, stop)
            watchdog.cancel()


def _import_server() -> None:
    defer_checks()
    importlib.import_module("edgeagent.daemon.server")


async def _end(service: StartableService, stop: StopRequest) -> None:
    """Stop the service. After a second signal, wait only FORCED_STOP_S longer."""
    ending = asyncio.create_task(service.stop())
    while not ending.done() and not stop.is_forced:
        await asyncio.wait({ending}, timeout=WATCH_CLOSELY_S)
    with suppress(TimeoutError):
        await asyncio.wait_for(ending, FORCED_STOP_S)


async def _serve(
    config: Config,
    service: StartableService,
    listeners: Listeners,
    keys: Keys,
    reporter: ConsoleReporter,
    stop: StopRequest,
    trace: Trace | None,
) -> None:
    from edgeagent.api.app import create_app
    from edgeagent.api.context import Responses
    from edgeagent.daemon.prefixes import Prefixes
    from edgeagent.daemon.server import make_server

    responses = Responses.of(config, config.state_dir)
    answers = await _open_answers(config, service)
    runtime = _runtime(config, listeners.tcp)
    token_file = config.state_dir / TOKEN_FILE if config.server.is_token_needed else None

    publication = Publication(config.state_dir, runtime)
    slo = SloLedger()
    slo_file = SloFile(config.state_dir, slo)
    prefixes = Prefixes(service, config)
    watch: asyncio.Task[None] | None = None
    background: list[asyncio.Task[None]] = []

    def announce() -> None:
        nonlocal watch
        if stop.is_requested:  # a stopping daemon serves no client
            return
        keep_collections_short()
        asyncio.get_running_loop().run_in_executor(None, give_back_freed_memory)  # what the imports have freed
        publication.publish()
        notify(f"READY=1\nSTATUS=listening on {runtime.url}")
        background.append(asyncio.create_task(publication.keep_published()))
        background.append(asyncio.create_task(slo_file.keep_saved()))
        reporter.listening(runtime, token_file)
        # Start the watch only now, so that the first printed line says where the daemon listens.
        watch = asyncio.create_task(_watch(service, reporter, stop))
        if prefixes.are_wanted:
            background.append(asyncio.create_task(prefixes.run()))
        if config.kiosk.instructions or config.kiosk.facts_file is not None:
            background.append(asyncio.create_task(check_prompt(service.models, config.kiosk)))
        if listeners.wyoming is not None:
            from edgeagent.api.wyoming.server import Wyoming

            background.append(asyncio.create_task(Wyoming(app.state.context).serve(listeners.wyoming)))
            host, port = listeners.wyoming.getsockname()[:2]
            reporter.listening_for_voice(f"tcp://{bracketed(host)}:{port}")

    app = create_app(
        config,
        service,
        keys=keys,
        responses=responses,
        stop=stop.request,
        trace=trace,
        trouble=lambda: publication.trouble,
        slo=slo,
        answers=answers,
    )
    server = make_server(app, stop, reporter, announce, listeners.unix)
    try:
        await server.serve(sockets=[listeners.tcp])
        if watch is not None and watch.done():
            await watch
    finally:
        for task in (watch, *background):
            if task is not None:
                task.cancel()
        publication.withdraw()
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):  # only a disk that hangs takes longer
                await slo_file.close()
                await responses.close()
                if answers is not None:
                    await answers.close()


async def _open_answers(config: Config, service: Service) -> Answers | None:
    """Return the cache of answers; None if it is off. Its modules are imported only for it."""
    if not config.answers.is_on:
        return None
    from edgeagent.answers.answers import Answers

    answers = Answers.of(config, service)
    await answers.start()
    return answers


def _runtime(config: Config, listener: socket.socket) -> Runtime:
    import psutil

    server = config.server
    port = listener.getsockname()[1]
    certificate = str(server.tls_certificate.absolute()) if server.tls_certificate else None
    url = local_url(server.host, port, is_encrypted=certificate is not None)
    started_at_s = psutil.Process().create_time()
    return Runtime(
        os.getpid(),
        started_at_s,
        port,
        url,
        __version__,
        certificate=certificate,
        forgets=config.forget,
        network_urls=tuple(external_urls(listener, url.partition(":")[0])),
    )


async def _watch(service: StartableService, reporter: ConsoleReporter, stop: StopRequest) -> None:
    """Report each change of a model's state or load progress, forever.

    If all models fail to load before any was ready, stop the daemon and raise StartError, so that the exit status shows
    the failure. Once a model was ready, the daemon continues after failures, since the next request loads the model
    again.
    """
    reported: dict[str, ModelStatus] = {}
    was_ready = False
    while True:
        models = service.models.statuses()
        was_ready = was_ready or any(model.state is WorkerState.READY for model in models)
        if not was_ready:
            try:
                _check_usable(models)
            except StartError:
                stop.fail()
                raise
        for model in models:
            before = reported.get(model.name)
            if before is None or (before.state, before.progress) != (model.state, model.progress):
                reported[model.name] = model
                if not (stop.is_requested and model.state is WorkerState.STARTING):
                    _report_state(model, reporter, is_state_change=before is None or before.state is not model.state)
        is_loading = any(model.state is WorkerState.STARTING for model in models)
        await asyncio.sleep(WATCH_CLOSELY_S if is_loading or not models else WATCH_S)


def _check_usable(models: Sequence[ModelStatus]) -> None:
    """Raise StartError if there are models and all of them failed to load.

    Its exit status is WRONG_SETTING if no further try can help, for example because the files are damaged.
    """
    if models and all(model.state in UNUSABLE for model in models):
        statuses = {from_code(model.error_code or "", "").exit_status for model in models}
        must_be_corrected = statuses == {ExitCode.WRONG_SETTING}
        exit_code = ExitCode.WRONG_SETTING if must_be_corrected else ExitCode.FAILED
        raise StartError("; ".join(map(_why_unusable, models)), exit_code)


def _why_unusable(model: ModelStatus) -> str:
    """Return why a model cannot be served. The text always has the model's name."""
    cause = model.cause or "no cause is known"
    return cause if model.name in cause else f"{model.name} cannot be served: {cause}"


def _report_state(model: ModelStatus, reporter: ConsoleReporter, *, is_state_change: bool) -> None:
    match model.state:
        case WorkerState.STARTING:
            reporter.loading(model)
        case WorkerState.READY if is_state_change:
            reporter.ready(model)
        case WorkerState.FAILED | WorkerState.QUARANTINED if is_state_change:
            reporter.failed(model)


class StopRequest:
    """Records that the daemon was asked to stop, and how often.

    After it was asked twice, the daemon no longer waits for the live requests of its clients.
    """

    def __init__(self) -> None:
        self._num_requests = 0
        self._wake: Callable[[], object] | None = None
        self.is_failure = False
        """Whether the daemon stops because of an error. The code that called `fail` raises that error."""

    def request(self) -> None:
        """Ask the daemon to stop. This is safe in a signal handler."""
        self._num_requests += 1
        if self._wake is not None:
            self._wake()

    async def wait(self, timeout_s: float) -> None:
        """Wait until the daemon is asked to stop, at most `timeout_s`. Only one task may wait at a time."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(asked.set)
        try:
            if not self.is_requested:
                async with asyncio.timeout(timeout_s):
                    await asked.wait()
        except TimeoutError:
            pass
        finally:
            self._wake = None

    def fail(self) -> None:
        """Request the stop because of an error. The caller raises the error itself."""
        self.is_failure = True
        self.request()

    @property
    def is_requested(self) -> bool:
        return self._num_requests > 0

    @property
    def is_forced(self) -> bool:
        """Whether the daemon was asked to stop more than once."""
        return self._num_requests > 1


@contextmanager
def _signals(stop: StopRequest) -> Iterator[None]:
    """While this context is active, turn the signals that would end the process into requests to stop."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]

    def ask(number: int, frame: FrameType | None) -> None:
        del number, frame
        stop.request()

    # Windows has no loop.add_signal_handler, so these are plain handlers.
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not available on Windows
        return None
    return uvloop.new_event_loop
