"""The options of `edgeagent remote add` that are more than one value: read, with errors that say how to write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from edgeagent.errors import ConfigError
from edgeagent.home import with_home
from edgeagent.remotes import Budget, Key, Limits, Price

T = TypeVar("T", int, float)


def key(name: str, variable: str | None, file: Path | None, *, is_in_keyring: bool) -> Key | None:
    """Return where the key of the remote `name` is found; None where it needs none."""
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
    """Return the aliases of `--model LOCAL=REMOTE`."""
    return dict(_pair(alias, "--model", "LOCAL=REMOTE, e.g. builtin=meta-llama/Llama-3.1-8B") for alias in aliases)


def regions(names: Sequence[str], num_urls: int) -> list[str]:
    """Return a region for each URL."""
    if len(names) not in (0, 1, num_urls):
        raise ConfigError(f"--region: give it once, or once for each of the {num_urls} URLs, in their order")
    return list(names) if len(names) == num_urls else [*names, ""][:1] * num_urls


def price(text: str | None) -> Price:
    """Return the prices of `--price PROMPT,OUTPUT`."""
    if text is None:
        return Price()
    prompt, comma, output = text.partition(",")
    wanted = "PROMPT,OUTPUT for a million tokens of each, e.g. 0.5,1.5"
    if not comma:
        raise ConfigError(f"--price: must be {wanted}, not {text!r:.80}")
    return Price(_number(prompt, "--price", wanted, float), _number(output, "--price", wanted, float))


def budget(entries: Sequence[str]) -> Budget:
    """Return the budget of `--budget KIND=N`."""
    whole, money = _kinds(entries, "--budget", ("tokens", "client_tokens"), ("money", "client_money"))
    return Budget(whole.get("tokens"), money.get("money"), whole.get("client_tokens"), money.get("client_money"))


def limits(entries: Sequence[str]) -> Limits:
    """Return the limits of `--limit KIND=N`; those that are not given keep their defaults."""
    usual = Limits()
    seconds = ("connect_s", "first_token_s", "idle_s", "total_s")
    whole, given = _kinds(entries, "--limit", ("max_concurrent",), seconds)
    return Limits(
        whole.get("max_concurrent", usual.max_concurrent),
        given.get("connect_s", usual.connect_s),
        given.get("first_token_s", usual.first_token_s),
        given.get("idle_s", usual.idle_s),
        given.get("total_s", usual.total_s),
    )


def _kinds(
    entries: Sequence[str], flag: str, whole: Sequence[str], other: Sequence[str]
) -> tuple[dict[str, int], dict[str, float]]:
    wanted = f"KIND=N, with KIND one of {', '.join((*whole, *other))}"
    counts: dict[str, int] = {}
    numbers: dict[str, float] = {}
    for entry in entries:
        kind, value = _pair(entry, flag, wanted)
        kind = kind.replace("-", "_")
        if kind in whole:
            counts[kind] = _number(value, flag, f"{kind}=N, N a whole number", int)
        elif kind in other:
            numbers[kind] = _number(value, flag, f"{kind}=N, N a number", float)
        else:
            raise ConfigError(f"{flag}: must be {wanted}, not {entry!r:.80}")
    return counts, numbers


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
