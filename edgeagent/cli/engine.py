"""`edgeagent engine`: the back ends of llama.cpp on this machine."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from edgeagent.cli.display import table, tell, wrapped
from edgeagent.cli.options import AsJson, settings_of
from edgeagent.doctor import system
from edgeagent.doctor.facts import Native
from edgeagent.doctor.native import ask_native
from edgeagent.doctor.plug_ins import PLUG_INS, advice, install, installed_plug_ins, plug_in_for
from edgeagent.errors import NOT_INSTALLED, EdgeAgentError

engine_app = typer.Typer(rich_markup_mode=None)

Source = Annotated[
    str,
    typer.Option(
        "--find-links",
        metavar="DIR",
        help="The folder with the wheel, or the address of a web page with links to it. pip asks no package index.",
    ),
]


@engine_app.command("list")
def list_backends(as_json: AsJson = False) -> None:
    """List llama.cpp's back ends: which are installed, and which devices each one finds."""
    described = _described(ask_native())
    kind = "compiled for this machine"
    if described["is_portable"]:
        kind = f"portable, with the library for {described['cpu_variant']}"
    rows = [
        (each["name"], each["installed"] or "-", "yes" if each["is_loaded"] else "no", ", ".join(each["devices"]))
        for each in described["backends"]
    ]
    tell(
        described,
        f"llama.cpp {described['commit']} (llama-cpp-python {described['bindings']}), {kind}\n",
        table(("back end", "installed", "loaded", "devices"), rows, left_columns=4),
        wrapped(f"\n{described['problem']}") if described["problem"] else "",
        *(wrapped(f"\nThis machine has a GPU for {name}; run: {advice(name)}") for name in described["missing"]),
        as_json=as_json,
    )


@engine_app.command("install")
def install_backend(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(PLUG_INS)}.")],
    find_links: Source = "",
    as_json: AsJson = False,
) -> None:
    """Install a back end for a kind of GPU with pip from a folder, and show the devices that it finds.

    It needs the portable engine. A running daemon uses the new back end for models that it loads afterwards.
    """
    install(name, find_links, settings_of(None, None).state_dir)
    native = ask_native()
    devices = _devices(native, PLUG_INS[name])
    if not devices:
        why = native.problem or native.trouble or "it finds no device; `edgeagent doctor` looks at the GPU's driver"
        raise EdgeAgentError(f"{name} is installed, but {why}")
    record = {"name": name, "version": installed_plug_ins()[name], "devices": devices}
    tell(record, f"{name} is installed, and finds {', '.join(devices)}", as_json=as_json)


def _described(native: Native) -> dict[str, Any]:
    """Return what `list` shows. Raise EdgeAgentError if llama.cpp cannot be loaded."""
    if native.bindings is None:
        raise EdgeAgentError(NOT_INSTALLED)
    if native.problem is not None:
        raise EdgeAgentError(f"llama.cpp: {native.problem}; `edgeagent doctor` shows what to do")
    installed, tools = installed_plug_ins(), system.tools()
    # The name of each back end, ggml's name for it, and the version. Of the two for CUDA, the later one is loaded.
    plug_ins = {PLUG_INS[name]: name for name in sorted(installed)} if native.is_portable else {}
    listed = [(plug_ins.get(each, each.lower()), each, native.bindings) for each in native.backends]
    if native.is_portable:
        present = {name for name, _, _ in listed}
        listed += [(name, "", "") for name in PLUG_INS if name not in present]
    rows = [
        {
            "name": name,
            "installed": installed.get(name, version) or None,
            "is_loaded": bool(backend),
            "devices": _devices(native, backend),
        }
        for name, backend, version in listed
    ]
    needed = {plug_in_for(gpu, tools) for gpu in system.gpus()} - {""}
    return {
        "bindings": native.bindings,
        "commit": native.commit,
        "is_portable": native.is_portable,
        "cpu_variant": native.variant,
        "backends": rows,
        "problem": native.trouble,
        "missing": sorted(needed - installed.keys()) if native.is_portable else [],
    }


def _devices(native: Native, backend: str) -> list[str]:
    found = [device for device in native.devices if device.backend == backend]
    return [f"{device.name} ({device.description})" for device in found]
