"""`edgeagent status`, `stop`, `reload`, `ps`, `load` and `unload`: the running daemon and its models."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.parse import urlencode

import psutil
import typer

from edgeagent.cli.display import complain, duration, print_json, size_text, table, tell, wrapped
from edgeagent.cli.egress import recent_egress, show_recent_egress
from edgeagent.cli.link import address_of, ask, daemon_of
from edgeagent.cli.options import AsJson, ConfigFile, StateDir, settings_of
from edgeagent.cli.service_files import STOP_MARGIN_S
from edgeagent.errors import BackendUnavailable, EdgeAgentError
from edgeagent.runtime_file import LOCK_FILE, Runtime, find_daemon, no_daemon
from edgeagent.state_files import holder
from edgeagent.units import load_stage

_HOW = {
    "option": "asked for",
    "measurement": "measured",
    "default": "the default",
    "model": "for this model",
    "trial": "tried",
}


def explained_choices(model: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each chosen setting.

    `model` is the model's entry in the daemon's status. If no setting was chosen, yield a line that says so.
    """
    choices = (model.get("info") or {}).get("choices")
    if not choices:
        yield wrapped(f"{model['name']}: nothing was chosen yet")
    for choice in choices or ():
        how = _HOW.get(choice["by"], choice["by"])
        yield wrapped(f"{model['name']}: {choice['name']} {choice['value']} ({how}): {choice['why']}")


POLL_S = 0.05

ExplainChoices = Annotated[
    bool, typer.Option("--explain-choices", help="Show the settings chosen for each model on this machine, and why.")
]


WithEgress = Annotated[
    bool, typer.Option("--egress", help="Also show which requests left this machine in the last 24 hours.")
]


WithSlo = Annotated[
    bool, typer.Option("--slo", help="Show how many answers kept their latency targets in the last hour and day.")
]


Watch = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again every second until Ctrl-C; with --json, a line each time.")
]
WATCH_S = 1.0


def status(
    as_json: AsJson = False,
    explain_choices: ExplainChoices = False,
    with_slo: WithSlo = False,
    with_egress: WithEgress = False,
    watch: Watch = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Show what the daemon runs: models, devices, live requests, tokens per second. Exits with 1 if no daemon runs."""
    state_dir = settings_of(state_dir, config).state_dir
    if watch:
        if explain_choices or with_egress:
            raise typer.BadParameter("--watch shows the status or --slo, without --explain-choices and --egress")
        _watch(state_dir, as_json=as_json, with_slo=with_slo)
    found = find_daemon(state_dir)
    if found is None and as_json:
        print_json({"running": False})
        raise typer.Exit(1)
    if found is None:
        raise no_daemon(state_dir)
    slo = ask(address_of(found), "/edgeagent/slo") if with_slo else {}
    if with_slo and not as_json:
        typer.echo("\n".join(_slo_lines(slo)))
        return
    report = ask(address_of(found), "/edgeagent/status")
    if as_json:
        asked = {"slo": slo} if with_slo else {}
        asked |= {"egress": recent_egress(state_dir)} if with_egress else {}
        print_json({"running": True, "url": found.url, **report, **asked})
        return
    if explain_choices:
        for model in report["models"]:
            for line in explained_choices(model):
                typer.echo(line)
        return
    typer.echo("\n".join(_report_lines(found, report)))
    if with_egress:
        show_recent_egress(state_dir)


def _report_lines(found: Runtime, report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that show a daemon's status."""
    live, connections = report["num_live_requests"], report["num_connections"]
    counts = f"live requests: {live} (of {report['num_requests_total']} so far), connections: {connections}"
    token_trouble, answers = report.get("token_trouble"), report.get("answers")
    lines = [
        f"edgeagent {report['version']} at {found.url}, process {found.pid}, up {duration(report['uptime_s'])}",
        counts + (", stopping" if report["is_draining"] else ""),
        report.get("trouble"),
        f"every token is refused: {token_trouble}" if token_trouble else None,
        report.get("response_trouble"),
        *(_answers_lines(answers) if answers else ()),
        *(report.get("advice") or ()),
        *_route_lines(report.get("route")),
    ]
    yield from (wrapped(line) for line in lines if line)
    yield table(MODEL_COLUMNS, [_model_row(model) for model in report["models"]], left_columns=2)
    for model in report["models"]:
        yield from (wrapped(f"{model['name']}: {remark}") for remark in _remarks(model))


def _answers_lines(answers: dict[str, Any]) -> Iterator[str]:
    """Yield the lines about the answer cache."""
    if answers["trouble"]:
        yield f"answers are not kept at the moment: {answers['trouble']}"
        return
    outcomes = answers["outcomes"]
    num_given = sum(outcomes.get(name, 0) for name in ("exact", "similar", "joined"))
    num_kept = "?" if answers["num_answers"] is None else answers["num_answers"]
    yield f"answers: {num_kept} kept, {num_given} of {sum(outcomes.values())} questions needed no model of their own"
    if trouble := (answers["similar"] or {}).get("trouble"):
        yield f"no answer is given from similarity at the moment: {trouble}"


def _watch(state_dir: Path, *, as_json: bool, with_slo: bool) -> NoReturn:
    """Show the daemon's status again and again, also while no daemon runs. Only Ctrl-C ends it."""
    path = "/edgeagent/slo" if with_slo else "/edgeagent/status"

    def shown() -> str:
        try:
            found = find_daemon(state_dir)
            if found is None:
                raise no_daemon(state_dir)
            report = ask(address_of(found), path)
        except BackendUnavailable as error:
            return json.dumps({"running": False}) if as_json else wrapped(error.message)
        if as_json:
            return json.dumps({"running": True, **report})
        return "\n".join(_slo_lines(report) if with_slo else _report_lines(found, report))

    # The library shows nothing on a terminal that it cannot draw on.
    if as_json or not sys.stdout.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        while True:
            print(shown(), flush=True)  # noqa: T201
            time.sleep(WATCH_S)
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            live.update(Text(shown()), refresh=True)
            time.sleep(WATCH_S)


SLO_COLUMNS = (
    "window",
    "tier",
    "answered by",
    "answers",
    "kept",
    "kept/s",
    "burn",
    *(f"{kind} p50, p95" for kind in ("TTFT", "TTUA", "ITL", "whole")),
    "late because of",
)


def _slo_lines(slo: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines that show how many answers kept their latency targets: a row for each window, tier and place."""
    targets = ", ".join(
        f"{tier} {seconds_text(target['ttft_ms'])} and {seconds_text(target['itl_ms'])}"
        for tier, target in slo["targets"].items()
    )
    yield wrapped(f"targets of the first token and between tokens: {targets}; kept by {slo['objective']:.0%} or more")
    rows = [_slo_row(figures, route) for figures in slo["tiers"] for route in figures["routes"]]
    yield table(SLO_COLUMNS, rows, left_columns=3, last_left=True) if rows else "No answer in the last 24 hours."


def _slo_row(figures: Mapping[str, Any], route: Mapping[str, Any]) -> tuple[str, ...]:
    num, burn = route["num_answers"], figures["budget_burn"]
    late = ", ".join(f"{stage} {count}" for stage, count in sorted(route["late"].items(), key=lambda each: -each[1]))
    return (
        figures["window"],
        figures["tier"],
        route["served_by"],
        str(num),
        f"{route['num_met'] / num:.1%}" if num else "-",
        f"{figures['goodput_per_s']:.3g}",
        "-" if burn is None else f"{burn:.1f}",
        *(_times_text(route["times"].get(kind)) for kind in ("first_token", "usable", "token", "total")),
        late or "-",
    )


def _times_text(times: Mapping[str, float] | None) -> str:
    return "-" if times is None else f"{seconds_text(times['p50_ms'])}, {seconds_text(times['p95_ms'])}"


def seconds_text(milliseconds: float) -> str:
    """Return a latency as text, such as "8.5 ms" or "1.2 s"."""
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.3g} s"


def reload(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model; default: the daemon's own.")] = "",
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Load a model again, even if it failed or crashed too often. Live requests continue."""
    query = {"model": model} if model else {}
    answer = _post(state_dir, config, "reload", query, accept=frozenset({202}))
    tell(answer, f"Loading {answer['model']} again; `edgeagent status` shows the progress.", as_json=as_json)


def health(as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Exit with 0 if the daemon can answer, else with 1. For health checks of containers and monitoring."""
    answer = ask(daemon_of(settings_of(state_dir, config).state_dir), "/health", accept=frozenset({200, 503}))
    if "error" in answer:
        raise BackendUnavailable(answer["error"]["message"])
    tell(answer, answer["status"], as_json=as_json)


def stop(as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Stop the daemon; live requests may finish first (server.drain_s). Returns when it has stopped."""
    settings = settings_of(state_dir, config)
    found = find_daemon(settings.state_dir)
    if found is None:
        if holder(settings.state_dir / LOCK_FILE) is not None:
            raise no_daemon(settings.state_dir)
        tell({"pid": None}, f"No daemon runs with the state folder {settings.state_dir}.", as_json=as_json)
        return
    process = psutil.Process(found.pid)
    ask(address_of(found), "/edgeagent/stop", "POST", accept=frozenset({200, 202}))
    if not _is_gone_within(2 * settings.server.drain_s + STOP_MARGIN_S, process):
        raise EdgeAgentError(
            f"the daemon (process {found.pid}) was told to stop and still runs; end it with `kill {found.pid}`"
        )
    tell({"pid": found.pid}, f"Stopped (process {found.pid}).", as_json=as_json)


def _is_gone_within(seconds: float, process: psutil.Process) -> bool:
    # Process.wait would count an ended process as running until its parent has collected it.
    deadline = time.monotonic() + seconds
    while _is_running(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


MODEL_COLUMNS = ("model", "state", "running", "waiting", "tokens/s", "context used", "cached", "memory")


def _model_row(model: Mapping[str, Any]) -> tuple[str, ...]:
    worker = model.get("worker")
    state = load_stage(model["progress"]) if model["state"] == "starting" else model["state"]
    if worker is None:
        return (model["name"], state, *("-" for _ in MODEL_COLUMNS[2:]))
    num_prompt = worker["num_prompt_tokens_total"]
    return (
        model["name"],
        state,
        str(worker["num_running"]),
        str(worker["num_waiting"]),
        f"{worker['tokens_per_second']:.1f}",
        f"{worker['num_cells_used']} of {worker['num_cells']}",
        f"{worker['num_cached_tokens_total'] / num_prompt:.0%} of prompts" if num_prompt else "-",
        size_text(worker["rss_bytes"]),
    )


def _remarks(model: Mapping[str, Any]) -> list[str]:
    lines = []
    if facts := model.get("info"):
        for device in facts["devices"]:
            memory = f", {size_text(device['memory_free_bytes'])} free" if device["memory_free_bytes"] else ""
            lines.append(f"{device['description']} ({device['name']}{memory})")
        lines.append(f"{_place(facts)}, {_draft(facts)}, llama.cpp {facts['llama_cpp_commit']}")
        choices = [each for each in facts.get("choices") or [] if each["by"] != "model" and each["name"] != "draft"]
        if chosen := ", ".join(f"{choice['name']} {choice['value']}" for choice in choices):
            lines.append(f"{chosen} (why: edgeagent status --explain-choices)")
        lines.append(f"sandbox: {', '.join(facts.get('sandbox') or ['none'])}")
    worker = model.get("worker") or {}
    if why := worker.get("held_back"):
        lines.append(f"computes with at most {worker['max_threads']} threads: {why}")
    if 0 < (num := worker.get("num_threads", 0)) < (most := worker.get("max_threads", 0)):
        lines.append(f"computes with {num} of {most} threads, since other programs use the cores")
    if (shift := worker.get("shift")) and shift["num_prompts"]:
        lines.append(_shifted(shift))
    for tier in ("memory", "disk"):
        if trouble := (worker.get(f"{tier}_cache") or {}).get("trouble"):
            lines.append(f"prefix cache, {tier}: {trouble}")
    if model.get("num_restarts"):
        times = "once" if model["num_restarts"] == 1 else f"{model['num_restarts']} times"
        lines.append(f"its worker was restarted {times}; last: {model['cause']}")
    elif model.get("cause"):
        lines.append(model["cause"])
    if model.get("retry_after_s") is not None:
        when = f"in {duration(model['retry_after_s'])} or later" if model["retry_after_s"] else "from now on"
        lines.append(f"loaded again by a request {when}, or at once by `edgeagent reload`")
    return lines


def _shifted(shift: Mapping[str, Any]) -> str:
    """Return what --cache-shift has moved, and how far the answers were from exact ones, as text."""
    moved = f"--cache-shift moved {shift['num_tokens']:,} tokens of {shift['num_prompts']} prompts"
    if not shift["num_measured"]:
        return f"{moved}; the distance to exact answers is not measured yet"
    return (
        f"{moved}; the likeliest first token was the exact one in {shift['num_same']} of {shift['num_measured']} "
        f"measured, divergence {shift['median_distance']:.4f} nats (median), {shift['most_distance']:.4f} (most)"
    )


def _route_lines(route: Mapping[str, Any] | None) -> list[str]:
    """Return lines that say where requests may run, and the state of each remote.

    Return no lines if no remote is configured and the file of the remotes is fine.
    """
    if route is None or not (route["remotes"] or route["trouble"]):
        return []
    names = [f"{remote['name']} ({remote['trouble'] or _use(remote)})" for remote in route["remotes"]]
    lines = [f"route: {route['mode']}, remotes: {', '.join(names) or 'none is used'}"]
    return lines + [trouble for trouble in (route["trouble"], route["ledger_trouble"]) if trouble]


def _use(remote: Mapping[str, Any]) -> str:
    return f"{remote['num_live']} running" if remote["is_used"] else "not used"


def _place(facts: Mapping[str, Any]) -> str:
    """Return where a model's layers are, as text.

    In llama.cpp, a negative number of GPU layers means all layers, and so does a number of at least `num_layers`.
    """
    on_gpu, num_layers = facts["num_gpu_layers"], facts["num_layers"]
    if on_gpu < 0 or on_gpu >= num_layers > 0:
        return f"all {num_layers} layers on the GPU"
    return f"{on_gpu} of {num_layers} layers on the GPU" if on_gpu else f"{num_layers} layers on the CPU"


def _draft(facts: Mapping[str, Any]) -> str:
    """Return the source of draft tokens as text.

    If no draft model is used, the reason is added. It is left out if it is just an option such as --draft.
    """
    draft, why = facts["draft"], facts.get("draft_why") or ""
    has_model = draft not in (None, "ngram")
    return f"draft {draft or 'none'}" + ("" if has_model or why.startswith("--draft") or not why else f" ({why})")


# Loading from a slow disk takes minutes. By default, the daemon gives up a load after 300 s without progress, or after
# 900 s if the load gets no CPU time.
LOAD_TIMEOUT_S = 900.0
LOADED_COLUMNS = ("model", "state", "memory", "context", "unused for", "unloaded")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model.")]
KeepAlive = Annotated[
    str, typer.Option("--keep-alive", metavar="TIME", help="How long it stays loaded without use: 5m, 1h; -1: forever.")
]


def _post(state_dir: Path | None, config: Path | None, what: str, query: Mapping[str, str], **options: Any) -> Any:
    """Tell the daemon to do something with a model, and return its answer."""
    path = f"/edgeagent/{what}?{urlencode(query, errors='replace')}"
    return ask(daemon_of(settings_of(state_dir, config).state_dir), path, "POST", **options)


def ps(as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """List the models that are loaded or being loaded. Exits with 1 if no daemon runs."""
    report = ask(daemon_of(settings_of(state_dir, config).state_dir), "/edgeagent/status")
    models = [model for model in report["models"] if model["pid"] is not None]
    text = "No model is loaded; a request, or `edgeagent load MODEL`, loads one."
    if models:
        text = table(LOADED_COLUMNS, [*map(_loaded_row, models)], left_columns=2)
    tell({"models": [*map(_loaded_entry, models)]}, text, as_json=as_json)


def load(
    model: Model,
    keep_alive: KeepAlive = "",
    as_json: AsJson = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Load a model into the running daemon, beside its other models. Returns when the model is ready."""
    query = {"model": model} | ({"keep_alive": keep_alive} if keep_alive else {})
    try:
        answer = _post(state_dir, config, "load", query, timeout_s=LOAD_TIMEOUT_S)
    except KeyboardInterrupt:
        complain(f"interrupted; the daemon continues to load {model}; `edgeagent unload {model}` stops that")
        raise typer.Exit(130) from None
    tell(answer, f"{answer['model']} is loaded ({answer['took_s']:.1f} s).", as_json=as_json)


def unload(model: Model, as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """End a model's process, which frees its memory. The next request for the model loads it again."""
    query, accept = {"model": model}, frozenset({200, 202})
    answer = _post(state_dir, config, "unload", query, accept=accept, timeout_s=LOAD_TIMEOUT_S)
    text = f"{answer['model']} is not loaded any more."
    if answer["status"] == "unloading":
        text = f"{answer['model']} is unloaded once its requests have ended ({answer['num_live_requests']})."
    tell(answer, text, as_json=as_json)


def _loaded_entry(model: Mapping[str, Any]) -> dict[str, Any]:
    worker, info = model["worker"] or {}, model["info"] or {}
    return {
        **{name: model[name] for name in ("name", "state", "pid", "is_pinned", "idle_s", "unload_in_s")},
        "memory_bytes": worker.get("rss_bytes"),
        "context_length": info.get("context_length"),
    }


def _loaded_row(model: Mapping[str, Any]) -> tuple[str, ...]:
    entry = _loaded_entry(model)
    is_loading = model["state"] == "starting"
    return (
        entry["name"],
        load_stage(model["progress"]) if is_loading else entry["state"],
        "-" if entry["memory_bytes"] is None else size_text(entry["memory_bytes"]),
        "-" if entry["context_length"] is None else str(entry["context_length"]),
        "-" if is_loading else duration(entry["idle_s"]),
        "-" if is_loading and not entry["is_pinned"] else _unloaded(entry),
    )


def _unloaded(entry: Mapping[str, Any]) -> str:
    if entry["is_pinned"]:
        return "never (pinned)"
    return "when there is no room" if entry["unload_in_s"] is None else f"in {duration(entry['unload_in_s'])}"
