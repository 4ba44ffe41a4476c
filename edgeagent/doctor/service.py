"""Checks of the port, the model and the hub that a daemon needs, and of a running daemon. Pure functions of facts."""

from __future__ import annotations

from edgeagent.doctor.facts import Facts
from edgeagent.doctor.findings import Finding, fail, ok, warn


def check_daemon(facts: Facts) -> list[Finding]:
    """Check the daemon that runs with this state folder."""
    daemon = facts.daemon
    if daemon is None:
        return ok("daemon", "none runs with this state folder; `edgeagent serve` starts one")
    text = f"edgeagent {daemon.version} at {daemon.url}, process {daemon.pid}"
    if daemon.problem is not None:
        return fail("daemon", f"{text}, is not ready: {daemon.problem}", "see `edgeagent status`, and its log")
    if daemon.version != facts.version:
        return warn("daemon", f"{text}; this command is {facts.version}", "run `edgeagent stop` and start it again")
    return ok("daemon", f"{text}, is ready")


def check_port(facts: Facts) -> list[Finding]:
    """Check that a daemon can listen on the configured address, or does already."""
    port, where = facts.port, f"{facts.port.host} port {facts.port.number}"
    remedy = "choose another with --port (0 takes a free one)"
    match port.state:
        case "free":
            return ok("port", f"{where} is free" if port.number else "the daemon chooses a free port")
        case "ours":
            return ok("port", f"{where} is this daemon's")
        case "not allowed":
            return fail("port", f"this user may not listen on {where}", f"{remedy}, above 1023")
        case "not ours":
            return fail("port", f"{port.host} is not an address of this machine", "choose another with --host")
        case "edgeagent":
            text = f"{where} is taken by an edgeagent daemon of another user or state folder{_named(port.holder)}"
        case _:
            text = f"{where} is taken by another program{_named(port.holder)}"
    # A running daemon already listens on another port.
    return warn("port", text, remedy) if facts.daemon is not None else fail("port", text, remedy)


def _named(holder: str) -> str:
    return f" ({holder})" if holder else ""


def check_model(facts: Facts) -> list[Finding]:
    """Check that the default model, the adapter files and the models with own settings are on this machine."""
    if facts.model_problem:
        return fail("model", facts.model_problem, "choose another with --model; `edgeagent list` shows what is here")
    if facts.adapter_problems:
        return fail("model", "; ".join(facts.adapter_problems), "repair [models.NAME.adapters] in config.toml")
    if facts.unknown_tables:
        tables = ", ".join(f'[models."{name}"]' for name in facts.unknown_tables)
        return warn(
            "model", f"config.toml has {tables}, but no such model is here", "see the names in `edgeagent list`"
        )
    return ok("model", f"{facts.model} is here")


def check_hub(facts: Facts) -> list[Finding]:
    """Check that the hub answers, if it was contacted."""
    if facts.hub is None:
        return []
    if facts.hub_problem:
        return warn("hub", facts.hub_problem, "models that are here work without it")
    return ok("hub", f"{facts.hub} answers")
