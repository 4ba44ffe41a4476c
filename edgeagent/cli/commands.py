"""The table of commands, and what is shown without one: the first page of help, the version.

This module imports no library. typer takes several times as long to import as Python to start.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from edgeagent import __version__

HELP = "A low-latency on-device inference daemon for GGUF models."
# typer's completion scripts for the shells put what they ask for, such as "complete_bash", into this variable.
COMPLETE_VARIABLE = "_EDGEAGENT_COMPLETE"
MAX_WIDTH = 80


class Command(NamedTuple):
    """A command. `target` is the import path of its function, or of a Typer app if it has subcommands.

    `summary` is shown in the list of commands.
    """

    target: str
    summary: str


COMMANDS = {
    "serve": Command("edgeagent.cli.serve:serve", "Serve a model until stopped."),
    "open": Command("edgeagent.cli.browser:open_page", "Open the daemon's page in the browser."),
    "kiosk": Command("edgeagent.cli.kiosk:kiosk", "Show the kiosk's page, full-screen, and keep it alive."),
    "run": Command("edgeagent.cli.run:run", "Chat with a model, or answer one prompt."),
    "status": Command("edgeagent.cli.status:status", "Show what the daemon runs, and how fast."),
    "address": Command("edgeagent.cli.address:address", "Print the daemon's address, for applications."),
    "health": Command("edgeagent.cli.status:health", "Say whether the daemon can answer."),
    "stop": Command("edgeagent.cli.status:stop", "Stop the daemon; live requests may finish first."),
    "reload": Command("edgeagent.cli.status:reload", "Load a model again, also if it crashed too often."),
    "ps": Command("edgeagent.cli.status:ps", "List the loaded models, and how long they stay."),
    "load": Command("edgeagent.cli.status:load", "Load a model into the running daemon."),
    "unload": Command("edgeagent.cli.status:unload", "End a model's process, and free its memory."),
    "pull": Command("edgeagent.cli.pull:pull", "Download a model."),
    "list": Command("edgeagent.cli.models:list_models", "List the models on this machine."),
    "show": Command("edgeagent.cli.models:show", "Show one model: files, architecture, memory."),
    "fit": Command("edgeagent.cli.models:fit", "Show whether a model fits into memory, and what would."),
    "rm": Command("edgeagent.cli.changes:remove", "Delete models, and show how much space that frees."),
    "prune": Command("edgeagent.cli.changes:prune", "Delete downloads that no model needs."),
    "import": Command("edgeagent.cli.changes:import_models", "Use the models of Ollama, LM Studio or llama.cpp."),
    "cp": Command("edgeagent.cli.changes:copy", "Give a model another name."),
    "quantize": Command("edgeagent.cli.quantize:quantize", "Make a smaller copy of a model."),
    "bench": Command("edgeagent.cli.bench:bench_app", "Measure a server, or compare two."),
    "tune": Command("edgeagent.cli.tune:tune", "Find the fastest settings for a model."),
    "cache": Command("edgeagent.cli.cache:cache_app", "Show, purge or warm the prompt cache."),
    "token": Command("edgeagent.cli.token:token_app", "Replace the token, or give clients their own."),
    "remote": Command("edgeagent.cli.remote:remote_app", "Add and watch servers that may take requests."),
    "policy": Command("edgeagent.cli.settings:policy_app", "Show what the machine's policy allows."),
    "egress": Command("edgeagent.cli.egress:egress", "Show what left this machine."),
    "config": Command("edgeagent.cli.settings:config_app", "Show, check and change the settings."),
    "service": Command("edgeagent.cli.service:service_app", "Run the daemon as a service of this machine."),
    "uninstall-data": Command(
        "edgeagent.cli.uninstall:uninstall_data", "Show what is left on this machine; remove it."
    ),
    "engine": Command("edgeagent.cli.engine:engine_app", "Show and install llama.cpp's back ends for GPUs."),
    "doctor": Command("edgeagent.cli.machine:doctor", "Find problems on this machine."),
    "version": Command("edgeagent.cli.machine:version", "Show the versions of edgeagent and llama.cpp."),
}
OPTIONS = {
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy it or customize the installation.",
    "--version": "Show the version and exit.",
    "-h, --help": "Show this message and exit.",
}


def short_answer(arguments: Sequence[str]) -> str | None:
    """Return the first page of help, or the version, if the arguments ask for it alone; else None."""
    if COMPLETE_VARIABLE in os.environ:
        return None
    match arguments:
        case [] | ["--help"] | ["-h"]:
            return first_page()
        case ["--version"]:
            return f"edgeagent {__version__}"
    return None


def first_page() -> str:
    """Return the help of `edgeagent` without a command, as typer would write it. typer does not know --version."""
    summaries = {name: command.summary for name, command in COMMANDS.items()}
    width = max(min(_terminal_width(), MAX_WIDTH) - 2, 50)
    about = textwrap.fill(HELP, width, initial_indent="  ", subsequent_indent="  ")
    head = f"Usage: edgeagent [OPTIONS] COMMAND [ARGS]...\n\n{about}"
    return f"{head}\n\nOptions:\n{_rows(OPTIONS, width)}\n\nCommands:\n{_rows(summaries, width)}"


def _rows(texts: dict[str, str], width: int) -> str:
    start = max(map(len, texts)) + 4
    rows = []
    for name, text in texts.items():
        first, *more = textwrap.wrap(text, width - start)
        rows += [f"  {name}".ljust(start) + first, *(" " * start + line for line in more)]
    return "\n".join(rows)


def _terminal_width() -> int:
    # As shutil.get_terminal_size does, but shutil imports three libraries of compression.
    try:
        return int(os.environ["COLUMNS"]) or MAX_WIDTH
    except (KeyError, ValueError):
        pass
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or MAX_WIDTH
    except (OSError, ValueError):
        return MAX_WIDTH
