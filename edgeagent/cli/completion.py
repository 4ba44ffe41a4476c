"""Completions of names for the shell. They must be fast. Names that cannot be read are left out without a message."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from edgeagent.config import with_home
from edgeagent.errors import EdgeAgentError


def model_names(incomplete: str) -> list[str]:
    """Return the completions of a MODEL argument.

    They are "builtin", the catalog's names, models in the Hugging Face cache, .gguf files and folders. A text that
    begins with ".", "/" or "~" is completed only to files and folders. A downloaded repository gives several
    completions: its name alone, and its name with each of its quantizations.
    """
    if incomplete.startswith((".", "/", "~")):
        return sorted(_files(incomplete))
    names = {"builtin", *catalog_names(""), *_downloaded(), *_files(incomplete)}
    return sorted(name for name in names if name.startswith(incomplete))


def catalog_names(incomplete: str) -> list[str]:
    """Return the catalog's names that begin with `incomplete`."""
    from edgeagent.store.names.catalog import load_catalog

    try:
        return sorted(name for name in load_catalog() if name.startswith(incomplete))
    except EdgeAgentError:
        return []


def remote_names(incomplete: str) -> list[str]:
    """Return the names of the remotes in the configured state folder that begin with `incomplete`."""
    from edgeagent.config_sources import load_config
    from edgeagent.remotes.file import load_remotes

    try:
        remotes = load_remotes(load_config().config.state_dir)
    except EdgeAgentError:
        return []
    return sorted(remote.name for remote in remotes if remote.name.startswith(incomplete))


@contextlib.contextmanager
def bash_words_joined() -> Iterator[None]:
    """Let bash complete a word that contains a colon, such as org/repo:QUANT. Bash splits such a word at its colons.

    While this context is active, the environment has the parts as one word, and printed completions are collected. At
    the end, they are printed without the text up to the last typed colon, since bash replaces only the rest.
    """
    try:
        words, place = os.environ["COMP_WORDS"].split(), int(os.environ["COMP_CWORD"])
    except (KeyError, ValueError):
        words, place = [], 0
    joined, new_place = _joined(words, place)
    if joined == words:
        yield
        return
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(new_place)
    begun = joined[new_place] if new_place < len(joined) else ""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        kept = begun[: begun.rfind(":") + 1]
        for line in printed.getvalue().splitlines():
            print(line.removeprefix(kept))  # noqa: T201


def _joined(words: list[str], place: int) -> tuple[list[str], int]:
    """Join the parts of words that bash has split at a colon, up to index `place`.

    Return the joined words, and the new index of the word at `place`.
    """
    joined: list[str] = []
    new_place = place
    for number, word in enumerate(words):
        is_behind_colon = joined and joined[-1].endswith(":") and number <= place
        if joined and (word == ":" or is_behind_colon):
            joined[-1] += word
        else:
            joined.append(word)
        if number == place:
            new_place = len(joined) - 1
    return joined, new_place if place < len(words) else len(joined)


def _downloaded() -> Iterator[str]:
    from edgeagent.store.names.parsing import canonical_name, variants

    # The layout of the shared cache is documented and stable: models--org--repo/snapshots/<commit>/<file>.
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    for snapshots in Path(os.environ.get("HF_HUB_CACHE") or home / "hub").glob("models--*--*/snapshots"):
        files = {path.name for path in snapshots.glob("*/*.gguf")}
        if not files:
            continue
        repo = snapshots.parent.name.removeprefix("models--").replace("--", "/", 1)
        yield repo
        models = variants(files)
        yield from (str(canonical_name(models, model, repo)) for model in models if model.quant is not None)


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
