"""`edgeagent doctor` and `edgeagent version`: problems of this machine, and what is installed on it."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from edgeagent import __version__
from edgeagent.cli.display import tell, wrapped
from edgeagent.cli.link import address_of, ask
from edgeagent.cli.options import AsJson, ConfigFile, ModelsDir, StateDir, settings_of
from edgeagent.doctor.native import installed_bindings
from edgeagent.errors import NOT_INSTALLED, EdgeAgentError

if TYPE_CHECKING:
    from edgeagent.runtime_file import Runtime


_NAME_WIDTH = 13


def doctor(
    network: Annotated[bool, typer.Option("--network", help="Also check that the hub answers.")] = False,
    as_json: AsJson = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Find problems that prevent edgeagent from running on this machine or make it slow, and say what to do.

    It checks llama.cpp, CPU, GPUs, memory, sandbox, folders, port and the running daemon, and changes nothing. With
    --network, the egress ledger gets a row. Exits with 1 if a check fails.
    """
    from edgeagent.doctor.checks import examine
    from edgeagent.doctor.gather import gather

    findings = examine(gather(settings_of(state_dir, config, models_dir), _why_not_ready, with_network=network))
    is_ok = all(finding.severity != "fail" for finding in findings)
    lines = []
    for finding in findings:
        lines.append(wrapped(f"{finding.severity:4}  {finding.name:{_NAME_WIDTH}}  {finding.text}"))
        if finding.remedy:
            lines.append(wrapped(f"{'':{_NAME_WIDTH + 8}}{finding.remedy}"))
    tell({"ok": is_ok, "findings": [*map(asdict, findings)]}, *lines, as_json=as_json)
    if not is_ok:
        raise typer.Exit(1)


def _why_not_ready(daemon: Runtime) -> str | None:
    """Return why a daemon cannot generate tokens; None if it can."""
    try:
        ask(address_of(daemon), "/ready", timeout_s=15.0)
    except EdgeAgentError as error:
        return error.message
    return None


UNKNOWN = "unknown"


def llama_cpp_commit() -> str:
    """Return the commit of the installed llama.cpp, or "unknown". If the reason is known, "unknown (REASON)".

    It is read in a child process, since native code that was compiled for another CPU ends its process.
    """
    command = [sys.executable, "-c", "from edgeagent.engine.llama.bindings import commit; print(commit())"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30)  # noqa: S603 our own module
    if answer.returncode == 0:
        return answer.stdout.strip() or UNKNOWN
    if answer.returncode < 0 or answer.returncode > 0x8000_0000:
        return f"{UNKNOWN} (it cannot be loaded: was it compiled for another CPU? See `edgeagent doctor`)"
    return UNKNOWN


def version(as_json: AsJson = False) -> None:
    """Show the versions of edgeagent, llama.cpp and its bindings, and Python."""
    versions = {
        "edgeagent": __version__,
        "llama_cpp_commit": llama_cpp_commit(),
        "llama_cpp_python": installed_bindings(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    llama = NOT_INSTALLED
    if versions["llama_cpp_python"] is not None:
        llama = f"llama.cpp {versions['llama_cpp_commit']} (llama-cpp-python {versions['llama_cpp_python']})"
    python = f"Python {versions['python']}, {versions['platform']}"
    tell(versions, f"edgeagent {versions['edgeagent']}", llama, python, as_json=as_json)
