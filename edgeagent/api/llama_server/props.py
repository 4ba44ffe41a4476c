"""The routes of llama-server about the server itself: /props and /slots. Their answers contain no prompts."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from edgeagent import __version__
from edgeagent.api.context import context_of
from edgeagent.api.wire.fields import sampling_defaults
from edgeagent.api.wire.shape import Shape, shaped
from edgeagent.errors import ModelLoadFailed, ModelLoading, NotSupported
from edgeagent.service.service import status_of
from edgeagent.types import UNUSABLE, ModelInfo, ModelStatus

router = APIRouter()


class DefaultSettings(Shape):
    """The default sampling parameters of a request, and the length of the context in tokens."""

    params: dict[str, float | None]
    n_ctx: int


class Modalities(Shape):
    """What the model reads in addition to text. Both values are false, because only text is supported."""

    vision: bool
    audio: bool


class OwnProps(Shape):
    """edgeagent's own fields of the properties."""

    supports_infill: bool
    supports_tools: bool


class Props(Shape):
    """The default model's settings, under llama-server's names."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_path: str
    modalities: Modalities
    chat_template: str | None
    build_info: str
    edgeagent: OwnProps


class Slot(Shape):
    """A slot, which runs one request at a time. `n_ctx` is the length of its context in tokens."""

    id: int
    n_ctx: int
    is_processing: bool


@router.get("/props")
async def get_props(request: Request) -> JSONResponse:
    """Return the default model's settings: its sampling, its context, its chat template.

    If the model has never been loaded, raise ModelLoadFailed if it cannot be loaded, and otherwise ModelLoading.
    """
    status, info = _loaded(request)
    props: Props = {
        "default_generation_settings": {"params": sampling_defaults(info.sampling), "n_ctx": info.context_length},
        "total_slots": info.num_parallel,
        "model_alias": status.name,
        "model_path": info.path,
        "modalities": {"vision": False, "audio": False},
        "chat_template": info.chat_template,
        "build_info": f"edgeagent {__version__}, llama.cpp {info.llama_cpp_commit or 'unknown'}",
        "edgeagent": shaped(OwnProps, info),
    }
    return JSONResponse(props)


@router.get("/slots")
async def get_slots(request: Request) -> JSONResponse:
    """Return one slot for each request that can run at the same time, and whether the slot is busy.

    If the model has never been loaded, raise ModelLoadFailed if it cannot be loaded, and otherwise ModelLoading.
    """
    status, info = _loaded(request)
    num_running = status.worker.num_running if status.worker else 0
    slots: list[Slot] = [
        {"id": index, "n_ctx": info.context_length, "is_processing": index < num_running}
        for index in range(info.num_parallel)
    ]
    return JSONResponse(slots)


@router.post("/slots/{slot_id}")
async def change_slot(slot_id: str) -> JSONResponse:
    """Refuse to save, restore or erase a slot, because the prefix cache does this by itself."""
    raise NotSupported(
        f"slot {slot_id[:32]!r} cannot be saved, restored or erased: prompts that were computed are kept, and found "
        "again by their text",
        param="action",
    )


def _loaded(request: Request) -> tuple[ModelStatus, ModelInfo]:
    service = context_of(request).service
    status = status_of(service.models, service.models.default())
    if status is not None and status.info is not None:
        return status, status.info
    if status is not None and status.state in UNUSABLE:
        raise ModelLoadFailed(f"the model cannot be loaded: {status.cause}", retry_after_s=status.retry_after_s)
    raise ModelLoading("the model is not loaded yet; try again in a moment", retry_after_s=1.0)
