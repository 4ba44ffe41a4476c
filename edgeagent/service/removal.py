"""A model's removal while the daemon serves: which served models use its files, and which of them may be unloaded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from edgeagent.config import Config
from edgeagent.errors import EdgeAgentError, InvalidRequest, ModelNotFound
from edgeagent.store.library_editor import LibraryEditor, Removal
from edgeagent.store.resolve import Library
from edgeagent.types import ModelStatus, WorkerState


def plan_removal(config: Config, name: str, served: Sequence[ModelStatus]) -> tuple[Removal, list[ModelStatus]]:
    """Return the planned removal, and the served models that use the files to delete. Nothing is deleted yet.

    Raise the errors of `LibraryEditor.plan`, and ModelNotFound if `name` is a path, because clients may not name paths.
    This function reads files: call it in a thread.
    """
    library = Library.of(config)
    try:
        library.refuse_path(name)
        removal = LibraryEditor(config).plan(name)
    except ModelNotFound as error:
        raise ModelNotFound.for_client(name, error) from None
    files = {path.resolve() for path in removal.files}
    if not files:
        return removal, []
    return removal, [status for status in served if _uses(status, removal, files, library)]


def refuse_if_used(status: ModelStatus, default_model: str) -> None:
    """Raise InvalidRequest if a model may not be unloaded: the default model, or a model with live requests."""
    name, num_live = status.name, status.num_live
    if default_model in status.names:
        raise InvalidRequest(f"{name} is the model that this daemon serves; serve another one first", param="model")
    if num_live:
        requests = "a request" if num_live == 1 else f"{num_live} requests"
        raise InvalidRequest(f"{name} has {requests} to answer; delete it afterwards", param="model")


def _uses(status: ModelStatus, removal: Removal, files: set[Path], library: Library) -> bool:
    """Whether a served model, or its draft model once that is known, uses one of the files that `removal` deletes.

    If the model has not been loaded yet, its own files are looked up by its name. If that fails, return whether it has
    the name that `removal` removes.
    """
    if status.info is not None:
        return any(Path(path).resolve() in files for path in (status.info.path, status.info.draft) if path)
    if status.state is WorkerState.READY:
        return False  # a remote's model
    with suppress(EdgeAgentError, OSError):
        return any(path.resolve() in files for path in library.find(status.name).paths)
    return status.name == removal.name  # its file is damaged or missing
