"""The options of `edgeagent remote add`, and the parsing of options with several parts.

A wrong value raises ConfigError, which shows the right form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from edgeagent.config import with_home
from edgeagent.errors import ConfigError
from edgeagent.remotes import Budget, EndpointConfig, Key, Limits, Price

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


def key(name: str, variable: str | None, file: Path | None, *, is_in_keyring: bool) -> Key | None:
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


def models(aliases: Sequence[str]) -> dict[str, str]:
    """Return a map from models' names here to their names at the remote, as `--model LOCAL=REMOTE` sets it."""
    return dict(_pair(alias, "--model", "LOCAL=REMOTE, e.g. builtin=meta-llama/Llama-3.1-8B") for alias in aliases)


def endpoints(urls: Sequence[str], regions: Sequence[str]) -> tuple[EndpointConfig, ...]:
    """Return an endpoint for each URL. `regions` has no region, one for all URLs, or one for each URL."""
    if len(regions) not in (0, 1, len(urls)):
        raise ConfigError(f"--region: give it once, or once for each of the {len(urls)} URLs, in their order")
    places = regions if len(regions) == len(urls) else [*regions, ""][:1] * len(urls)
    return tuple(EndpointConfig(url, place) for url, place in zip(urls, places, strict=True))


def price(text: str | None) -> Price:
    """Return the prices that `--price PROMPT,OUTPUT` sets; no prices if it is not given."""
    if text is None:
        return Price()
    prompt, comma, output = text.partition(",")
    wanted = "PROMPT,OUTPUT for a million tokens of each, e.g. 0.5,1.5"
    if not comma:
        raise ConfigError(f"--price: must be {wanted}, not {text!r:.80}")
    return Price(_number(prompt, "--price", wanted, float), _number(output, "--price", wanted, float))


def budget(entries: Sequence[str]) -> Budget:
    """Return the budget that `--budget KIND=N` sets."""
    return Budget(**_numbers(entries, "--budget", Budget))


def limits(entries: Sequence[str]) -> Limits:
    """Return the limits that `--limit KIND=N` sets. Limits that are not given keep their defaults."""
    return Limits(**_numbers(entries, "--limit", Limits))


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
