"""Names for the shell to complete. Must be quick and must not fail: a missing suggestion is better than a traceback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from edgeagent.home import with_home


def model_names(incomplete: str) -> list[str]:
    """Return what MODEL may be: builtin, models in the Hugging Face cache, .gguf files and folders."""
    if incomplete.startswith((".", "/", "~")):
        return sorted(_files(incomplete))
    names = {"builtin", *_downloaded(), *_files(incomplete)}
    return sorted(name for name in names if name.startswith(incomplete))


def _downloaded() -> Iterator[str]:
    # The layout of the shared cache is documented and stable: models--org--repo/snapshots/<commit>/<file>.
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    for snapshots in Path(os.environ.get("HF_HUB_CACHE") or home / "hub").glob("models--*--*/snapshots"):
        if next(snapshots.glob("*/*.gguf"), None) is not None:
            yield snapshots.parent.name.removeprefix("models--").replace("--", "/", 1)


def _files(incomplete: str) -> Iterator[str]:
    typed_folder, _, start = incomplete.rpartition("/")
    folder = with_home(Path(f"{typed_folder}/" if "/" in incomplete else "."))
    try:
        entries = [entry for entry in folder.iterdir() if entry.name.startswith(start)]
    except OSError:
        return
    prefix = f"{typed_folder}/" if "/" in incomplete else ""
    for entry in entries:
        if entry.is_dir() and not entry.name.startswith("."):
            yield f"{prefix}{entry.name}/"
        elif entry.suffix == ".gguf":
            yield f"{prefix}{entry.name}"
