"""`edgeagent remote`: manage remotes.

A remote is a server that may take a request if this machine cannot serve it, or not soon enough.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlencode

import typer

from edgeagent.cli.completion import remote_names
from edgeagent.cli.display import print_json, table, tell, wrapped
from edgeagent.cli.link import address_of, ask, daemon_of
from edgeagent.cli.options import AsJson, ConfigFile, StateDir, settings_of
from edgeagent.config import Config, with_home
from edgeagent.errors import ConfigError
from edgeagent.machine_policy import PolicyFile, under
from edgeagent.remotes import Budget, EndpointConfig, Key, Limits, Price, Remote, Terms, Tls
from edgeagent.remotes.check import checked, host_of, is_loopback
from edgeagent.remotes.file import add_remote, described, find_among, load_remotes, remove_remote
from edgeagent.remotes.keys import KeyFinder, store_key
from edgeagent.runtime_file import find_daemon

NewName = Annotated[str, typer.Argument(metavar="NAME", help="A name of your choice for the remote.")]
Urls = Annotated[
    list[str], typer.Argument(metavar="URL", help="Base URLs that serve the same models, e.g. https://gpu.example/v1.")
]
KeyEnv = Annotated[
    str | None, typer.Option("--key-env", metavar="VAR", help="The daemon's environment variable with the API key.")
]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE", help="The private file (0600) with the API key.")
]
KeyKeyring = Annotated[
    bool, typer.Option("--key-keyring", help="Ask for the API key; keep it in the system's keyring.")
]
Models = Annotated[
    list[str],
    typer.Option(
        "--model",
        metavar="LOCAL=REMOTE",
        help="The remote's name for the model LOCAL; may be repeated. Default: the name that the client uses.",
    ),
]
Regions = Annotated[
    list[str], typer.Option("--region", metavar="NAME", help="The region of all URLs; or repeat it, once for each URL.")
]
Operator = Annotated[str, typer.Option("--operator", metavar="NAME", help="Who runs it, for your own record.")]
Retention = Annotated[
    str,
    typer.Option("--retention", metavar="TEXT", help="How long the operator says it keeps prompts, e.g. 30 days."),
]
Training = Annotated[
    Literal["unknown", "yes", "no"],
    typer.Option("--training", help="Whether the operator says it trains models on prompts.", show_default=False),
]
ContextLength = Annotated[
    int, typer.Option("--ctx", metavar="N", help="Its context length in tokens; 0: the length that it states.")
]
Continues = Annotated[
    Literal["no", "exact", "inexact"],
    typer.Option(
        "--continues",
        help="Whether it may continue an answer that began elsewhere: exactly, or in its own words too. "
        "[default exact]",
        show_default=False,
    ),
]
CaFile = Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="PEM file of the CA of its certificate.")]
Pin = Annotated[str | None, typer.Option("--pin", metavar="SHA256", help="The only certificate to accept from it.")]
ClientCert = Annotated[
    Path | None, typer.Option("--client-cert", metavar="FILE", help="PEM file of the client certificate to send.")
]
ClientKey = Annotated[
    Path | None, typer.Option("--client-key", metavar="FILE", help="PEM file of the client certificate's key.")
]
Proxy = Annotated[str | None, typer.Option("--proxy", metavar="URL", help="Reach it through this HTTP proxy.")]
Prices = Annotated[
    str | None,
    typer.Option("--price", metavar="PROMPT,OUTPUT", help="Prices of a million tokens of each kind, e.g. 0.5,1.5."),
]
Budgets = Annotated[
    list[str],
    typer.Option(
        "--budget",
        metavar="KIND=N",
        help="A limit for each day (UTC) of tokens, money, client_tokens or client_money; may be repeated.",
    ),
]
LimitsGiven = Annotated[
    list[str],
    typer.Option(
        "--limit",
        metavar="KIND=N",
        help="max_concurrent requests, or connect_s, first_token_s, idle_s or total_s in seconds; may be repeated.",
    ),
]
Plaintext = Annotated[
    bool, typer.Option("--plaintext", help="Allow http:// to another machine: the network can read prompts.")
]
Images = Annotated[bool, typer.Option("--images", help="Its models read images, so requests with images may go there.")]
Audio = Annotated[bool, typer.Option("--audio", help="Its models read sounds, so requests with sounds may go there.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Agree without being asked.")]

T = TypeVar("T", int, float)
_MAX_NAMED = 8


def _given_key(name: str, variable: str | None, file: Path | None, *, is_in_keyring: bool) -> Key | None:
    """Return where the key of the remote `name` is stored, from its key option; None if there is no such option.

    Raise ConfigError if more than one key option is given.
    """
    given: list[Key] = []
    if variable is not None:
        given.append(Key("env", variable))
    if file is not None:
        given.append(Key("file", str(with_home(file).absolute())))
    if is_in_keyring:
        given.append(Key("keyring", name))
    if len(given) > 1:
        raise ConfigError("the key is in one place: give one of --key-env, --key-file and --key-keyring")
    return given[0] if given else None


def _given_models(aliases: Sequence[str]) -> dict[str, str]:
    """Return a map from models' names here to their names at the remote, as `--model LOCAL=REMOTE` sets it."""
    return dict(_pair(alias, "--model", "LOCAL=REMOTE, e.g. builtin=meta-llama/Llama-3.1-8B") for alias in aliases)


def _given_endpoints(urls: Sequence[str], regions: Sequence[str]) -> tuple[EndpointConfig, ...]:
    """Return an endpoint for each URL. `regions` has no region, one for all URLs, or one for each URL."""
    if len(regions) not in (0, 1, len(urls)):
        raise ConfigError(f"--region: give it once, or once for each of the {len(urls)} URLs, in their order")
    places = regions if len(regions) == len(urls) else [*regions, ""][:1] * len(urls)
    return tuple(EndpointConfig(url, place) for url, place in zip(urls, places, strict=True))


def _given_price(text: str | None) -> Price:
    """Return the prices that `--price PROMPT,OUTPUT` sets; no prices if it is not given."""
    if text is None:
        return Price()
    prompt, comma, output = text.partition(",")
    wanted = "PROMPT,OUTPUT for a million tokens of each, e.g. 0.5,1.5"
    if not comma:
        raise ConfigError(f"--price: must be {wanted}, not {text!r:.80}")
    return Price(_number(prompt, "--price", wanted, float), _number(output, "--price", wanted, float))


def _numbers(entries: Sequence[str], flag: str, kind: type[Budget | Limits]) -> dict[str, Any]:
    is_whole = {name: str(type_name).startswith("int") for name, type_name in kind.__annotations__.items()}
    names = sorted(is_whole, key=is_whole.__getitem__, reverse=True)
    wanted = f"KIND=N, with KIND one of {', '.join(names)}"
    numbers: dict[str, Any] = {}
    for entry in entries:
        name, value = _pair(entry, flag, wanted)
        name = name.replace("-", "_")
        if name not in is_whole:
            raise ConfigError(f"{flag}: must be {wanted}, not {entry!r:.80}")
        number = f"{name}=N, N a {'whole ' if is_whole[name] else ''}number"
        numbers[name] = _number(value, flag, number, int if is_whole[name] else float)
    return numbers


def _pair(text: str, flag: str, wanted: str) -> tuple[str, str]:
    left, _, right = text.partition("=")
    if not left or not right:
        raise ConfigError(f"{flag}: must be {wanted}, not {text!r:.80}")
    return left, right


def _number(text: str, flag: str, wanted: str, kind: Callable[[str], T]) -> T:
    try:
        return kind(text.replace("_", ""))
    except ValueError:
        raise ConfigError(f"{flag}: must be {wanted}, not {text!r:.80}") from None


def checkup_lines(found: dict[str, Any]) -> list[str]:
    """Return the result of a test as lines of text: the times of the stages, the models, and the problem if any."""
    region = f" ({found['region']})" if found["region"] else ""
    stages = (("name", "name_s"), ("connect", "connect_s"), ("TLS", "tls_s"), ("models", "models_s"))
    times = [f"{word} {_milliseconds(found[field])}" for word, field in stages if found[field] is not None]
    lines = [f"{found['url']}{region}: {', '.join(times) or 'not reached'}"]
    if found["models"]:
        names = ", ".join(found["models"][:_MAX_NAMED])
        more = f" and {len(found['models']) - _MAX_NAMED} more" if len(found["models"]) > _MAX_NAMED else ""
        lines.append(f"  it serves {names}{more}")
    if found["token_s"] is not None:
        lines.append(f"  one token from {found['model']}: {_milliseconds(found['token_s'])}")
    if found["problem"]:
        lines.append(f"  problem: {found['problem']}")
    return lines


def consent_text(remote: Remote, before: Remote | None, route: str) -> str:
    """Return text that says which data may be sent to which server once this remote is added.

    `before` is the remote that this one replaces, if any. `route` is the value of the option `route`.
    """
    mode = "prefer_local" if route == "auto" else route
    media = ("images, " if remote.images else "") + ("sounds, " if remote.audio else "")
    hosts = _hosts(remote)
    lines = [f"{remote.name} is at {hosts}."]
    if before is not None:
        lines.append(f"It replaces {before.name} at {', '.join(host_of(each.url) for each in before.endpoints)}.")
    lines += [
        "",
        f"What goes there: {_WHEN[mode]}: its whole conversation (messages, {media}tools, their results) and "
        "its settings, including the part of an answer that began here.",
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


def _hosts(remote: Remote) -> str:
    return ", ".join(host_of(each.url) + (f" ({each.region})" if each.region else "") for each in remote.endpoints)


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
    hosts = " and ".join(dict.fromkeys(host_of(endpoint.url) for endpoint in remote.endpoints))
    return f"{who} {hosts}{said}{unknown}"


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


remote_app = typer.Typer(rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The remote's name.", autocompletion=remote_names)]
LIST_COLUMNS = ("remote", "hosts", "models", "key", "budget")
STATUS_COLUMNS = ("remote", "endpoint", "state", "running", "first token", "per token", "its queue")


@remote_app.command("add")
def add(
    name: NewName,
    urls: Urls,
    key_env: KeyEnv = None,
    key_file: KeyFile = None,
    key_keyring: KeyKeyring = False,
    model: Models = [],  # noqa: B006
    region: Regions = [],  # noqa: B006
    operator: Operator = "",
    retention: Retention = "",
    training: Training = "unknown",
    ctx: ContextLength = 0,
    continues: Continues = "exact",
    ca: CaFile = None,
    pin: Pin = None,
    client_cert: ClientCert = None,
    client_key: ClientKey = None,
    proxy: Proxy = None,
    prices: Prices = None,
    budgets: Budgets = [],  # noqa: B006
    limit: LimitsGiven = [],  # noqa: B006
    plaintext: Plaintext = False,
    images: Images = False,
    audio: Audio = False,
    yes: Yes = False,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Let requests go to a server that speaks OpenAI's API: vLLM, SGLang, llama-server, another edgeagent.

    Shows what would leave this machine, and asks. A running daemon uses the remote within a second. Without a --key-…
    option no key is sent. The key itself is never an argument.
    """
    remote = Remote(
        name,
        _given_endpoints(urls, region),
        key=_given_key(name, key_env, key_file, is_in_keyring=key_keyring),
        models=_given_models(model),
        context_length=ctx,
        continues=continues,
        tls=Tls(_path(ca), pin, _path(client_cert), _path(client_key)),
        proxy=proxy,
        price=_given_price(prices),
        budget=Budget(**_numbers(budgets, "--budget", Budget)),
        limits=Limits(**_numbers(limit, "--limit", Limits)),
        terms=Terms(operator, retention, training),
        plaintext=plaintext,
        images=images,
        audio=audio,
    )
    _add(checked(remote), settings_of(state_dir, config), is_asked=not yes)


def _add(remote: Remote, settings: Config, *, is_asked: bool) -> None:
    """Say what would leave this machine, and add the remote to the file of the remotes. Look for its key before.

    A running daemon notices the change of the file. Raise ConfigError if the machine's policy forbids the remote, or if
    `is_asked` and the user does not agree.
    """
    _check_policy(PolicyFile(), remote)
    before = next((each for each in load_remotes(settings.state_dir) if each.name == remote.name), None)
    typer.echo(wrapped(consent_text(remote, before, settings.route)), err=True)
    if is_asked:
        if not sys.stdin.isatty():
            raise ConfigError(
                "a remote needs your consent, and this is not a terminal; read the above, repeat with --yes"
            )
        if not typer.confirm("Let requests go there?", default=False, err=True):
            raise ConfigError("nothing was added")
    with contextlib.suppress(OSError):  # writing the file fails next, with a better error
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if remote.key is not None:
        _look_for_key(remote.key)
    add_remote(settings.state_dir, remote)
    typer.echo(f"Added {remote.name}. Try it with `edgeagent remote test {remote.name}`.")


@remote_app.command("test")
def test(name: Name, as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Try a remote: its name, connection, TLS, models, and one token, with the time that each takes.

    It sends a greeting, and no client's data. If a daemon runs, the daemon sends it. Exits with 1 if an endpoint fails.
    """
    settings = settings_of(state_dir, config)
    remote = find_among(load_remotes(settings.state_dir), name)
    daemon = find_daemon(settings.state_dir)
    if daemon is None:
        found = _tested_here(settings, remote)
    else:
        path = f"/edgeagent/egress/test?{urlencode({'remote': name})}"
        limits = remote.limits
        timeout_s = len(remote.endpoints) * (2 * limits.first_token_s + 3 * limits.connect_s) + 10.0
        found = ask(address_of(daemon), path, "POST", timeout_s=timeout_s)["endpoints"]
    lines = (wrapped(line) for each in found for line in checkup_lines(each))
    tell({"remote": name, "endpoints": found}, *lines, as_json=as_json)
    if any(each["problem"] for each in found):
        raise typer.Exit(1)


@remote_app.command("list")
def list_remotes(as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """List the remotes, and where each one's key is found; keys are not shown."""
    known = load_remotes(settings_of(state_dir, config).state_dir)
    text = "There is no remote, so every request runs on this machine; see `edgeagent remote add --help`."
    if known:
        text = table(LIST_COLUMNS, [*map(_list_row, known)], left_columns=len(LIST_COLUMNS))
    tell({"remotes": [*map(described, known)]}, text, as_json=as_json)


@remote_app.command("rm")
def remove(name: Name, as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Remove a remote. Within a second a running daemon stops the requests there and sends no more."""
    remove_remote(settings_of(state_dir, config).state_dir, name)
    tell({"name": name}, f"Removed {name}.", as_json=as_json)


@remote_app.command("status")
def status(as_json: AsJson = False, state_dir: StateDir = None, config: ConfigFile = None) -> None:
    """Show the state of the daemon's remotes: whether they are reachable, how fast they answer, and today's use."""
    settings = settings_of(state_dir, config)
    report = ask(daemon_of(settings.state_dir), "/edgeagent/status")["route"]
    if as_json:
        print_json(report)
        return
    typer.echo(wrapped(f"route: {report['mode']}"))
    for trouble in (report["trouble"], report["ledger_trouble"]):
        if trouble:
            typer.echo(wrapped(trouble))
    rows = [_status_row(remote, endpoint) for remote in report["remotes"] for endpoint in remote["endpoints"]]
    typer.echo(table(STATUS_COLUMNS, rows, left_columns=3) if rows else "There is no remote.")
    for remote in report["remotes"]:
        for line in remarks(remote):
            typer.echo(wrapped(line))


def remarks(remote: Mapping[str, Any]) -> list[str]:
    """Return the lines to show below the table: a remote's problems, and today's use of tokens and money."""
    lines = []
    name = remote["name"]
    if remote["trouble"]:
        lines.append(f"{name}: {remote['trouble']}")
    lines += [f"{name}: {each['url']}: {each['cause']}" for each in remote["endpoints"] if each.get("cause")]
    if remote["budget_trouble"]:
        lines.append(f"{name}: {remote['budget_trouble']}")
    spent, most = remote["num_tokens_today"], remote["budget"]["tokens"]
    money, most_money = remote["money_today"], remote["budget"]["money"]
    parts = [f"{spent:,}{'' if most is None else f' of {most:,}'} tokens"]
    if money or most_money is not None:
        parts.append(f"{money:,.4g}{'' if most_money is None else f' of {most_money:,.4g}'} money")
    if spent or most is not None or len(parts) > 1:
        lines.append(f"{name}: today (UTC): {', '.join(parts)}")
    return lines


def _status_row(remote: Mapping[str, Any], endpoint: Mapping[str, Any]) -> tuple[str, ...]:
    states = {"closed": "in use", "half_open": "tried again", "open": "resting"}
    state = states.get(endpoint.get("breaker", ""), "not used") if not remote["trouble"] else "not used"
    queue = endpoint.get("num_waiting")
    return (
        remote["name"],
        host_of(endpoint["url"]) + (f" ({endpoint['region']})" if endpoint["region"] else ""),
        state,
        str(endpoint.get("num_live", "-")),
        _milliseconds(endpoint.get("first_token_s")),
        _milliseconds(endpoint.get("token_s")),
        "-" if queue is None else str(queue),
    )


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1000.0 * seconds:.0f} ms" if seconds >= 0.1 else f"{1000.0 * seconds:.3g} ms"


def _list_row(remote: Remote) -> tuple[str, ...]:
    aliases = ", ".join(f"{local}={theirs}" for local, theirs in remote.models.items()) or "any"
    key = "none" if remote.key is None else f"{remote.key.source} {remote.key.name}"
    kinds = ((kind, getattr(remote.budget, kind)) for kind in remote.budget.__struct_fields__)
    budget = ", ".join(f"{kind}={most:g}" for kind, most in kinds if most is not None) or "none"
    return remote.name, _hosts(remote), aliases, key, budget


def _look_for_key(where: Key) -> None:
    """Print a note if the key cannot be found.

    If its place is the keyring, and stdin is a terminal, first ask for the key and store it there.
    """
    if where.source == "keyring" and sys.stdin.isatty():
        value = typer.prompt("The remote's API key (hidden; empty if it is stored)", "", hide_input=True, err=True)
        if value:
            store_key(where.name, value)
    try:
        KeyFinder()(where)
    except ConfigError as error:
        typer.echo(wrapped(f"note: {error.message}"), err=True)


def _tested_here(settings: Config, remote: Remote) -> list[dict[str, Any]]:
    """Test a remote from this process, as no daemon runs."""
    import asyncio

    from edgeagent.router.checkup import check
    from edgeagent.router.remote_access import RemoteAccess

    remote_access = RemoteAccess(settings)
    _check_policy(remote_access.policy, remote)
    remote = under(remote_access.policy.policy, remote)
    key = "" if remote.key is None else KeyFinder()(remote.key)
    try:
        return asyncio.run(check(remote, remote_access.mode, key, remote_access.ledger))
    finally:
        remote_access.close()


def _check_policy(policy: PolicyFile, remote: Remote) -> None:
    if why := policy.why_not(remote):
        raise ConfigError(f"{remote.name}: {why}")


def _path(file: Path | None) -> str | None:
    return None if file is None else str(with_home(file).absolute())
