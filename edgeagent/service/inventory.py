"""Which models there are: models that are served, and models on this machine that a request may load.

All functions read files: call them in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edgeagent.config import Config
from edgeagent.errors import EdgeAgentError, InvalidRequest, ModelDamaged, ModelLoadFailed, ModelNotFound
from edgeagent.store.gguf.header import GgufHeader
from edgeagent.store.library import Library, LocalModel, current_header
from edgeagent.types import UNUSABLE, MediaKind, ModelInfo, ModelStatus, WorkerState


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What is known about a model: from its file (`header`), and from its worker once it is loaded (`info`).

    `status` is None if the model is not served, or if this is an alias. `adapters` are the names of its LoRA adapters.
    `media`: what it reads besides text.
    """

    name: str
    path: Path | None = None
    size_bytes: int = 0
    header: GgufHeader | None = None
    info: ModelInfo | None = None
    adapters: tuple[str, ...] = ()
    status: ModelStatus | None = None
    media: tuple[MediaKind, ...] = ()


def known_models(config: Config, served: Sequence[ModelStatus]) -> tuple[list[KnownModel], list[KnownModel]]:
    """Return two lists: the models, each once, and their aliases.

    An alias is a KnownModel with the alias as its name. Served models come first. If the file of a served model is
    unreadable or gone, the model is listed only if it is pinned, loading, loaded or unloading.
    """
    local = [model for model in Library.of(config).models() if model.header is not None]
    on_disk = {model.name: model for model in local}
    without_worker = (WorkerState.STOPPED, *UNUSABLE)
    models = [
        _served(status, on_disk.get(status.name))
        for status in served
        if status.is_pinned or status.state not in without_worker or status.name in on_disk
    ]
    names = {model.name for model in models}
    paths = {model.path.resolve() for model in models if model.path is not None}
    models += [
        _not_served(model)
        for model in on_disk.values()
        if model.name not in names and model.paths[0].resolve() not in paths
    ]
    return models, _aliases(models, local)


def find_known(
    config: Config, served: Sequence[ModelStatus], name: str, served_name: Callable[[str], str]
) -> KnownModel:
    """Return the model that a client calls `name`; raise ModelNotFound if there is none.

    Raise ModelDamaged or ModelLoadFailed if its file cannot be used. `served_name`: a function from a client's name for
    a model to the service's name.
    """
    models = {model.name: model for each in known_models(config, served) for model in each}
    # The model may be served under another name than the client's, or not at all.
    for known in (served_name(name), name):
        if known in models:
            return models[known]
    library = Library.of(config)
    base, _, adapter = name.rpartition("+")
    if base and library.has_adapter(base, adapter):
        return replace(find_known(config, served, base, served_name), name=name)
    try:
        library.refuse_path(name)
        found = library.local(name)
    except (ModelNotFound, InvalidRequest) as error:  # InvalidRequest: no model can have this name
        raise ModelNotFound.for_client(name, error) from None
    if found.name in models:
        return models[found.name]
    if found.problem is not None:
        raise (ModelDamaged if found.is_damaged else ModelLoadFailed)(found.problem, param="model")
    raise ModelNotFound(f"model '{name[:256]}' not found", param="model")


def _served(status: ModelStatus, file: LocalModel | None) -> KnownModel:
    info, header = status.info, file.header if file else None
    path = Path(info.path) if info is not None else file.paths[0] if file else None
    if header is None and path is not None:
        with suppress(EdgeAgentError):
            header = current_header(path)
    size_bytes = file.size_bytes if file else info.size_bytes if info else 0
    media = info.media if info is not None else file.media if file else ()
    return KnownModel(status.name, path, size_bytes, header, info, status.adapters, status, media)


def _not_served(model: LocalModel) -> KnownModel:
    return KnownModel(
        model.name, model.paths[0], model.size_bytes, model.header, adapters=model.adapters, media=model.media
    )


def _aliases(models: Sequence[KnownModel], local: Sequence[LocalModel]) -> list[KnownModel]:
    by_name = {model.name: model for model in models}
    by_path = {model.path.resolve(): model for model in models if model.path is not None}
    found = [(model, by_name.get(model.name) or by_path.get(model.paths[0].resolve())) for model in local]
    named = [(alias, each) for model, each in found for alias in _names_beside(model) if alias not in by_name]
    return [replace(model, name=alias, status=None) for alias, model in named if model is not None]


def _names_beside(model: LocalModel) -> tuple[str, ...]:
    """Return all aliases of a model.

    If the model has only aliases as names, `model.name` is one of them. Such a model may be served under its path, so
    that its served name is none of the aliases.
    """
    return (model.name, *model.aliases) if model.origin == "alias" else model.aliases
