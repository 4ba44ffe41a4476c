"""`edgeagent rm`, `prune`, `cp` and `import`: change the models on this machine. `rm` and `prune` ask first."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeagent.cli.completion import model_names
from edgeagent.cli.display import complain, print_json, size_text, table, tell, wrapped
from edgeagent.cli.options import AsJson, AsJsonArray, ConfigFile, ModelsDir, StateDir, Yes, settings_of
from edgeagent.cli.progress import progress
from edgeagent.errors import ConfigError, EdgeAgentError

if TYPE_CHECKING:
    from edgeagent.store.library_editor import Adoptable, LibraryEditor, Removal

FOUND_COLUMNS = ("name", "from", "size", "where")
LEFTOVER_COLUMNS = ("repository", "size", "why", "file")


def remove(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="A model, or an alias of one.", autocompletion=model_names)
    ],
    yes: Yes = False,
    as_json: AsJsonArray = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Delete models from this machine.

    Shows what will be deleted and how much space that frees, and asks. Deleting an alias keeps the model. Deleting an
    imported model removes only its name, since the file belongs to another program. If a daemon has loaded the model,
    the daemon can use it until it is unloaded.
    """
    from edgeagent.store.library_editor import LibraryEditor

    editor = LibraryEditor(settings_of(state_dir, config, models_dir))
    removals = [editor.plan(name) for name in dict.fromkeys(names)]
    for removal in removals:
        typer.echo(wrapped(_removal_text(removal)), err=True)
    agree("Delete this?" if any(removal.files for removal in removals) else "Forget this?", yes=yes)
    for removal in removals:
        editor.remove(removal)
    remaining = {removal.name: path for removal in removals if (path := editor.remaining_file(removal)) is not None}
    records = [_removal_record(removal, remaining.get(removal.name)) for removal in removals]
    freed = size_text(sum(removal.freed_bytes for removal in removals))
    notes = (f"Another model has the name {name}, which now means {path}." for name, path in remaining.items())
    tell(records, f"{freed} are free again.", *map(wrapped, notes), as_json=as_json)


def prune(
    yes: Yes = False,
    as_json: AsJsonArray = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Delete files that no model needs: unfinished downloads, and files without a name.

    Shows what will be deleted and how much space that frees, and asks. Running downloads stay. Only GGUF files in the
    shared Hugging Face cache are considered.
    """
    from edgeagent.store.hub.cache import HubCache

    settings = settings_of(state_dir, config, models_dir)
    cache = HubCache.of(settings.store)
    leftovers = cache.leftovers()
    if leftovers:
        rows = [(each.repo, size_text(each.size_bytes), each.why, each.path.name[:12]) for each in leftovers]
        typer.echo(table(LEFTOVER_COLUMNS, rows, last_left=True), err=True)
        agree("Delete this?", yes=yes)
    deleted = [each for each in leftovers if cache.delete(each)]
    records = [
        {"repo": each.repo, "path": str(each.path), "size_bytes": each.size_bytes, "why": each.why} for each in deleted
    ]
    num_kept = len(leftovers) - len(deleted)
    kept = f"{num_kept} are kept: a download is running, or they cannot be deleted." if num_kept else ""
    freed = size_text(sum(each.size_bytes for each in deleted))
    last = f"{freed} are free again." if leftovers else "There is nothing to delete."
    tell(records, kept, last, as_json=as_json)


def copy(
    source: Annotated[str, typer.Argument(metavar="NAME", help="The model.", autocompletion=model_names)],
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The other name: letters, digits and . _ - :")],
    as_json: AsJson = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Give a model another name. No file is copied."""
    from edgeagent.store.library_editor import LibraryEditor

    target = LibraryEditor(settings_of(state_dir, config, models_dir)).copy(source, alias)
    text = f"{alias} means {target} now. `edgeagent rm {alias}` removes this name."
    tell({"alias": alias, "name": target}, text, as_json=as_json)


def import_models(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE", help="ollama, lmstudio, llama.cpp, or a folder or a .gguf file."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Import only this model; may be repeated.")
    ] = None,
    as_json: AsJsonArray = False,
    models_dir: ModelsDir = None,
    state_dir: StateDir = None,
    config: ConfigFile = None,
) -> None:
    """Use models that Ollama, LM Studio or llama.cpp keep on this machine, without copying them.

    Without SOURCE it lists the models of these programs. The files still belong to them: a model that they delete is
    gone here too. If a program knows a file's sha256, the file is checked first.
    """
    from edgeagent.store.library_editor import SOURCES, LibraryEditor, adoptable

    editor = LibraryEditor(settings_of(state_dir, config, models_dir))
    found = [model for source in sources or SOURCES for model in adoptable(_checked(source))]
    if only:
        found = _chosen(found, only)
    outcomes = {model: _import(editor, model) if sources else None for model in found}
    if as_json:
        print_json([_found_record(*each) for each in outcomes.items()])
    elif not found:
        typer.echo(f"No model was found in {', '.join(sources or SOURCES)}.")
    else:
        rows = [(model.name, model.source, size_text(model.size_bytes), str(model.paths[0])) for model in found]
        typer.echo(table(FOUND_COLUMNS, rows, left_columns=2, last_left=True))
        typer.echo(_summary(list(outcomes.values())) if sources else "`edgeagent import SOURCE` imports these.")
    if any(isinstance(outcome, EdgeAgentError) for outcome in outcomes.values()):
        raise typer.Exit(1)


def _chosen(found: Sequence[Adoptable], names: Sequence[str]) -> list[Adoptable]:
    from edgeagent.store.names.parsing import near_names

    known = {model.name for model in found}
    for name in names:
        if name not in known:
            raise ConfigError(
                f"there is no {name} to import; {near_names(name, known)}" if known else "no model was found"
            )
    return [model for model in found if model.name in names]


def _checked(source: str) -> str:
    from edgeagent.store.library_editor import SOURCES

    if source not in SOURCES and not Path(source).exists():
        raise ConfigError(f"{source} is not one of {', '.join(SOURCES)}, and no such file or folder exists")
    return source


def _import(editor: LibraryEditor, model: Adoptable) -> bool | EdgeAgentError:
    """Import a model. Return True if it is new, and False if it was imported before.

    If the import fails, print and return the error.
    """
    try:
        with progress("bytes") as show:
            return editor.adopt(model, lambda done: show(f"checking {model.name}", done, model.size_bytes))
    except EdgeAgentError as error:
        complain(f"{model.name}: {error.message}")
        return error


def _summary(outcomes: Sequence[bool | EdgeAgentError | None]) -> str:
    num_new, num_known = outcomes.count(True), outcomes.count(False)
    parts = [f"{num_new} imported", f"{num_known} known before" if num_known else ""]
    return f"{', '.join(part for part in parts if part)}. `edgeagent list` shows them."


def _found_record(model: Adoptable, outcome: bool | EdgeAgentError | None) -> dict[str, object]:
    return {
        "name": model.name,
        "source": model.source,
        "size_bytes": model.size_bytes,
        "paths": [str(path) for path in model.paths],
        "sha256": model.sha256,
        "is_imported": isinstance(outcome, bool),
        "is_new": outcome is True,
        "problem": outcome.message if isinstance(outcome, EdgeAgentError) else None,
    }


def _removal_record(removal: Removal, remaining: Path | None) -> dict[str, object]:
    return {
        "name": removal.name,
        "aliases": list(removal.aliases),
        "files": [str(path) for path in removal.files],
        "freed_bytes": removal.freed_bytes,
        "means_now": None if remaining is None else str(remaining),
    }


def _removal_text(removal: Removal) -> str:
    """Return a line that says what a removal will delete."""
    also = f", and its names {', '.join(removal.aliases)}" if removal.aliases else ""
    if not removal.files:
        return f"{removal.name}: the name{also}; no file is deleted"
    return f"{removal.name}: {size_text(removal.freed_bytes)} in {removal.files[-1].parent}{also}"


def agree(question: str, *, yes: bool) -> None:
    """Ask the user for consent, unless `yes` is True. Raise typer.Exit if the user refuses.

    Raise ConfigError if stdin or stderr is not a terminal.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("this needs your consent, and this is not a terminal; read the above, repeat with --yes")
    if not typer.confirm(question, default=False, err=True):
        raise typer.Exit(1)
