"""The text that tells an owner what adding a remote permits."""

from __future__ import annotations

from edgeagent.remotes import Budget, Key, Price, Remote
from edgeagent.remotes.check import host_of, is_loopback


def consent_text(remote: Remote, before: Remote | None, route: str) -> str:
    """Return text that says which data may be sent to which server once this remote is added.

    `before` is the remote that this one replaces, if any. `route` is the value of the option `route`.
    """
    mode = "prefer_local" if route == "auto" else route
    hosts = ", ".join(_host(endpoint.url, endpoint.region) for endpoint in remote.endpoints)
    lines = [f"{remote.name} is at {hosts}."]
    if before is not None:
        lines.append(f"It replaces {before.name} at {', '.join(host_of(each.url) for each in before.endpoints)}.")
    lines += [
        "",
        f"What goes there: {_WHEN[mode]}: its whole conversation (messages, tools, their results) and its settings, "
        "including the part of an answer that began here.",
        "What stays here: all other conversations, stored responses, files, the names of this machine, of its users "
        "and of its clients, and every request whose own route, or whose token's route, is local_only.",
        f"Who can read it: {_readers(remote)}.",
        f"Key: {_key(remote.key)}. Price and budget: {_money(remote)}.",
    ]
    if any(endpoint.url.startswith("http:") and not is_loopback(endpoint.url) for endpoint in remote.endpoints):
        lines.append("Not encrypted: others on the network can read prompts, answers and the key.")
    lines += [
        "",
        "Each request that goes there is recorded without its content; `edgeagent egress` shows the records. "
        f"`edgeagent remote rm {remote.name}` removes the remote at once.",
    ]
    return "\n".join(lines)


_WHEN = {
    "local_only": "nothing while the daemon's route is local_only; with another route, each request that leaves",
    "prefer_local": "each request that this machine cannot serve, or not in time",
    "prefer_remote": "each request, while the remote can serve it",
    "remote_only": "each request",
}


def _host(url: str, region: str) -> str:
    return host_of(url) + (f" ({region})" if region else "")


def _each_host(remote: Remote) -> str:
    return " and ".join(dict.fromkeys(host_of(endpoint.url) for endpoint in remote.endpoints))


def _readers(remote: Remote) -> str:
    """Return text that names the operator who receives the prompts.

    It also says what is known about retention and training, and what the owner should still find out.
    """
    terms, is_told = remote.terms, remote.terms.training != "unknown"
    who = f"{terms.operator}, the operator of" if terms.operator else "the operator of"
    known = [f"keeps it for {terms.retention}"] if terms.retention else []
    known += [f"{'trains' if terms.training == 'yes' else 'does not train'} models on it"] if is_told else []
    missing = [] if terms.retention else ["for how long it is kept (--retention)"]
    missing += [] if is_told else ["whether models are trained on it (--training)"]
    said = f". As you were told, the operator {' and '.join(known)}" if known else ""
    unknown = f". Find out {' and '.join(missing)}" if missing else ""
    return f"{who} {_each_host(remote)}{said}{unknown}"


def _key(key: Key | None) -> str:
    match key:
        case None:
            return "none is sent"
        case Key(source="env", name=name):
            return f"in the daemon's environment variable {name}"
        case Key(source="file", name=name):
            return f"in {name}"
    return "in the system's keyring"


def _money(remote: Remote) -> str:
    prices = f"{remote.price.prompt:g} and {remote.price.output:g} for a million tokens"
    price = "no price" if remote.price == Price() else prices
    return f"{price}, {'no daily budget' if remote.budget == Budget() else 'a daily budget'}"
