"""`edgeagent version`: shows the versions of edgeagent, llama.cpp and Python."""

from __future__ import annotations

import json
import platform
from typing import Annotated

import typer

from edgeagent import __version__
from edgeagent.cli.machine.llama_build import llama_cpp_commit
from edgeagent.doctor.native import installed_bindings
from edgeagent.errors import NOT_INSTALLED


def version(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show the versions of edgeagent, llama.cpp and its bindings, and Python."""
    versions = {
        "edgeagent": __version__,
        "llama_cpp_commit": llama_cpp_commit(),
        "llama_cpp_python": installed_bindings(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if as_json:
        typer.echo(json.dumps(versions, indent=2))
        return
    typer.echo(f"edgeagent {versions['edgeagent']}")
    if versions["llama_cpp_python"] is None:
        typer.echo(NOT_INSTALLED)
    else:
        typer.echo(f"llama.cpp {versions['llama_cpp_commit']} (llama-cpp-python {versions['llama_cpp_python']})")
    typer.echo(f"Python {versions['python']}, {versions['platform']}")
