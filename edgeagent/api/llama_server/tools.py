"""llama-server's routes about a model: its settings, slots, tokens and template. /props and /slots show no prompts."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from pydantic_core import to_json

from edgeagent import __version__
from edgeagent.api.context import context_of
from edgeagent.api.openai.answer import reworded
from edgeagent.api.openai.chat_body import ChatBody, read_chat
from edgeagent.api.openai.completions import CHAT_PARAMS
from edgeagent.api.openai.text_body import read_tokens
from edgeagent.api.wire.body import Settings, read_body, read_valid
from edgeagent.api.wire.fields import ModelName, sampling_defaults
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Shape, shaped
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.credentials.keys import Scope
from edgeagent.errors import EdgeAgentError, ModelLoadFailed, ModelLoading, NotSupported, RequestTimeout
from edgeagent.service.service import status_of
from edgeagent.types import (
    UNUSABLE,
    ChatPrompt,
    Detokenize,
    ModelInfo,
    ModelStatus,
    QueryAnswer,
    RenderPrompt,
    TextQuery,
    Tokenize,
)

routes = Routes()


class DefaultSettings(Shape):
    """The default sampling parameters of a request, and the length of the context in tokens."""

    params: dict[str, float | None]
    n_ctx: int


class Modalities(Shape):
    """What the model reads in addition to text."""

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


@routes.add("GET /props", Scope.ADMIN, "llama-server", answer=Props)
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
        "modalities": {"vision": "image" in info.media, "audio": "audio" in info.media},
        "chat_template": info.chat_template,
        "build_info": f"edgeagent {__version__}, llama.cpp {info.llama_cpp_commit or 'unknown'}",
        "edgeagent": shaped(OwnProps, info),
    }
    return JSONResponse(props)


@routes.add("GET /slots", Scope.ADMIN, "llama-server", answer=list[Slot])
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


@routes.add("POST /slots/{slot_id}", Scope.ADMIN, "llama-server")
async def change_slot(request: Request) -> JSONResponse:
    """Refuse to save, restore or erase a slot, because the prefix cache does this by itself."""
    slot = request.path_params["slot_id"][:32]
    raise NotSupported(
        f"slot {slot!r} cannot be saved, restored or erased: prompts that were computed are kept, and found again by "
        "their text",
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


MAX_TEXT_CHARS = 1 << 20
# A route raises RequestTimeout if the worker has not answered within this time.
TIMEOUT_S = 60.0
_MAX_TOKENS_A_STEP = 4096


class TokenizeBody(Settings):
    """The text to tokenize.

    add_special: begin with the beginning-of-text token. parse_special: the text of a control token becomes that token.
    with_pieces: return each token's text too.
    """

    content: Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    model: ModelName | None = None


class DetokenizeBody(Settings):
    """Tokens to turn into text."""

    tokens: list[Any]
    model: ModelName | None = None


class TokenPiece(Shape):
    """A token and its text. If the token is only a part of a character, `piece` is its bytes."""

    id: int
    piece: str | list[int]


class Tokens(Shape):
    """The tokens of a text: ids, or objects if `with_pieces` is set."""

    tokens: list[int] | list[TokenPiece]


class Content(Shape):
    """The text of tokens."""

    content: str


class RenderedPrompt(Shape):
    """The prompt that the model's chat template renders for a conversation."""

    prompt: str


@routes.add("POST /tokenize", Scope.INFER, "llama-server", body=TokenizeBody, answer=Tokens)
async def tokenize(request: Request) -> Response:
    """Return the tokens of a text. The text of a control token becomes that token, unless parse_special is false."""
    body = await read_valid(request, TokenizeBody)
    with_pieces = bool(body.with_pieces)
    query = Tokenize(body.content, bool(body.add_special), body.parse_special is not False, with_pieces)
    answer = await _ask(request, body.model, query)
    # A long text has a quarter of a million tokens, so the JSON is written in a thread.
    json = await asyncio.to_thread(_tokens_json, answer, with_pieces=with_pieces)
    return Response(json, media_type="application/json")


@routes.add("POST /detokenize", Scope.INFER, "llama-server", body=DetokenizeBody, answer=Content)
async def detokenize(request: Request) -> JSONResponse:
    """Return the text of tokens, including the text of control tokens."""
    body = await read_valid(request, DetokenizeBody)
    answer = await _ask(request, body.model, Detokenize(read_tokens(body.tokens, "tokens")))
    return JSONResponse(Content(content=answer.text))


@routes.add("POST /apply-template", Scope.INFER, "llama-server", body=ChatBody, answer=RenderedPrompt)
async def apply_template(request: Request) -> Response:
    """Return the prompt that the model's chat template renders for a chat completion's body."""
    service = context_of(request).service
    read = partial(read_chat, completion_id="", default_model=service.models.default())
    completion = (await read_body(request, read)).requests[0]
    assert isinstance(completion.prompt, ChatPrompt)
    try:
        answer = await _ask(request, completion.model, RenderPrompt(completion.prompt))
    except EdgeAgentError as error:
        raise reworded(error, CHAT_PARAMS) from None
    json = await asyncio.to_thread(to_json, RenderedPrompt(prompt=answer.text))
    return Response(json, media_type="application/json")


async def _ask(request: Request, model: str | None, query: TextQuery) -> QueryAnswer:
    models = context_of(request).service.models
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await unless_disconnected(request.receive, models.ask(model or models.default(), query))
    except TimeoutError:
        raise RequestTimeout(f"no answer came within {TIMEOUT_S:g} s") from None


def _tokens_json(answer: QueryAnswer, *, with_pieces: bool) -> bytes:
    """Return the body of the HTTP answer as JSON. It is built in parts, so that other threads can run in between."""
    steps: list[bytes] = []
    for start in range(0, len(answer.tokens), _MAX_TOKENS_A_STEP):
        step = slice(start, start + _MAX_TOKENS_A_STEP)
        items: object = answer.tokens[step]
        if with_pieces:
            pairs = zip(answer.tokens[step], answer.pieces[step], strict=True)
            items = [TokenPiece(id=token, piece=_piece(piece)) for token, piece in pairs]
        steps.append(to_json(items)[1:-1])
    return b'{"tokens":[' + b",".join(steps) + b"]}"


def _piece(piece: bytes) -> str | list[int]:
    """Return a token's text, or its bytes if it is a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
