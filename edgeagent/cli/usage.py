"""Error messages for a wrong command line, all in one form, with a suggestion of what to type instead."""

from __future__ import annotations

import re
from collections.abc import Sequence

import typer

from edgeagent.config_sources import removed_flags

# Commands of similar programs, and what to use here instead.
ELSEWHERE = {
    "info": "`edgeagent status` shows what runs, `edgeagent version` the versions",
    "ls": "`edgeagent list` lists the models on this machine",
    "models": "`edgeagent list` lists the models on this machine",
    "chat": "`edgeagent run` chats",
    "ask": '`edgeagent run "a question"` answers one',
    "start": "`edgeagent serve` starts the daemon",
    "restart": "`edgeagent reload` loads the model again; `edgeagent stop` and `edgeagent serve` restart the daemon",
    "logs": "the daemon writes its log to stderr; `edgeagent service logs` shows that of a service",
    "install": "`edgeagent pull` downloads a model; `edgeagent service install` installs the daemon as a service",
    "uninstall": "`edgeagent rm` deletes a model; `edgeagent service uninstall` and `uninstall-data` remove the rest",
    "help": "`edgeagent --help` lists the commands",
    "search": "models are found on https://huggingface.co/models?library=gguf; `edgeagent pull ORG/REPO` downloads one",
}
_SAME = {"remove": "rm", "delete": "rm", "download": "pull", "get": "pull"}
_SAME |= {"copy": "cp", "alias": "cp", "tag": "cp", "adopt": "import", "gc": "prune", "clean": "prune"}
_SAME |= {"kill": "stop", "quit": "stop", "down": "stop", "up": "serve", "server": "serve", "daemon": "serve"}
_SAME |= {"benchmark": "bench", "tokens": "token", "settings": "config", "generate": "ask"}

# Options of similar programs, and what to use here instead.
_OTHER_OPTIONS = {
    **dict.fromkeys(("--verbose", "-v", "--debug"), "`serve --log-level debug` logs more"),
    "--quiet": "`serve --log-level error` logs less",
    "--version": "`edgeagent version` shows the versions",
}

_NO_COMMAND = re.compile(r"No such command '(?P<name>[^']*)'\.? ?(?P<hint>.*)", re.DOTALL)
_NO_VALUE = re.compile(r"Option '(?P<option>[^']*)' requires an argument\.")
_BAD_VALUE = re.compile(r"Invalid value(?: for (?P<option>.+?))?: (?P<why>.*)", re.DOTALL)
_CHOICES = re.compile(r"(?P<value>'.*') is not one of (?P<choices>'.*')\.?", re.DOTALL)
_NO_OPTION = re.compile(
    r"No such option: (?P<name>\S+?)\.?(?: (?:\(Possible options: |Did you mean )(?P<near>.*?)[)?])?"
)
_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((?P<extra>.*)\)", re.DOTALL)
# Messages of the library that converts values for typer, and plain words for them.
_WANTED = (
    (re.compile(r"Input should be a valid integer.*"), "a whole number"),
    (re.compile(r"Input should be a valid number.*"), "a number"),
    (re.compile(r"Input should be greater than or equal to (\S+)"), r"\1 or more"),
    (re.compile(r"Input should be less than or equal to (\S+)"), r"\1 or less"),
    (re.compile(r"Input should be a valid boolean.*"), "true or false"),
)


def usage_message(error: typer.TyperException, arguments: Sequence[str]) -> str:
    """Return one line that says what is wrong with a command line. `arguments` are the words that the user typed."""
    message = error.format_message().replace(": Value error, ", ": ")
    if no_command := _NO_COMMAND.fullmatch(message):
        return _no_command(no_command["name"], no_command["hint"], _path(error))
    if no_value := _NO_VALUE.fullmatch(message):
        return f"{no_value['option']} needs a value (see `{_path(error)} --help`)"
    if bad := _BAD_VALUE.fullmatch(message):
        option = (bad["option"] or "").replace("'", "")
        why = _why(option, bad["why"], arguments)
        return f"{option}: {why} (see `{_path(error)} --help`)" if option else f"{why} (see `{_path(error)} --help`)"
    if no_option := _NO_OPTION.fullmatch(message):
        # For a name that resembles no option, typer suggests --help, which the line ends with anyway.
        if other := _OTHER_OPTIONS.get(no_option["name"]):
            return f"there is no option {no_option['name']}; {other} (see `{_path(error)} --help`)"
        if instead := removed_flags().get(no_option["name"].replace("--no-", "--")):
            return f"the option {no_option['name']} was removed: {instead}"
        names = [name for name in (no_option["near"] or "").split(", ") if name not in ("", "--help")]
        near = f"; did you mean {_choice(names)}?" if names else ""
        return f"there is no option {no_option['name']}{near} (see `{_path(error)} --help`)"
    if extra := _EXTRA.fullmatch(message):
        return f"too many arguments: {extra['extra']} (see `{_path(error)} --help`)"
    return f"{message[:1].lower()}{message[1:].rstrip('.')} (see `{_path(error)} --help`)"


def _no_command(name: str, hint: str, path: str) -> str:
    message = f"there is no command {name!r}"
    known = _SAME.get(name, name)
    if path == "edgeagent" and known in ELSEWHERE:
        return f"{message}: {ELSEWHERE[known]}"
    if path == "edgeagent" and known != name:
        return f"{message}: it is called `edgeagent {known}`"
    meant = hint.removeprefix("Did you mean ").rstrip("?").replace("'", "")
    commands = " or ".join(f"`{path} {each}`" for each in meant.split(", "))
    return f"{message}; did you mean {commands}?" if meant else f"{message} (see `{path} --help`)"


def _why(option: str, why: str, arguments: Sequence[str]) -> str:
    if choices := _CHOICES.fullmatch(why):
        return f"must be one of {choices['choices'].replace(chr(39), '')}, not {choices['value']}"
    for pattern, wanted in _WANTED:
        if pattern.fullmatch(why):
            value = _value_of(option.split(" / ")[0], arguments)
            return f"must be {pattern.sub(wanted, why)}" + (f", not {value!r:.80}" if value is not None else "")
    return why


def _choice(names: Sequence[str]) -> str:
    """Return the names as "a, b or c"."""
    *first, last = names
    return f"{', '.join(first)} or {last}" if first else last


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Return the last value that was typed for an option; None if no value was typed."""
    found = None
    for place, argument in enumerate(arguments):
        if argument == option and place + 1 < len(arguments):
            found = arguments[place + 1]
        elif argument.startswith(f"{option}="):
            found = argument.partition("=")[2]
    return found


def _path(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else "edgeagent"
