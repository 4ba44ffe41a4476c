"""llama-server's text tools over HTTP: /tokenize, /detokenize and /apply-template. The model's worker does the work."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field
from pydantic_core import to_json

from edgeagent.api.context import context_of
from edgeagent.api.openai.chat_body import read_chat
from edgeagent.api.openai.text_body import read_tokens
from edgeagent.api.wire.fields import ModelName, Settings
from edgeagent.api.wire.json_body import read_body, read_valid
from edgeagent.api.wire.shape import Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.errors import RequestTimeout
from edgeagent.types import ChatPrompt, Detokenize, QueryAnswer, RenderPrompt, TextQuery, Tokenize

MAX_TEXT_CHARS = 1 << 20
# A route raises RequestTimeout if the worker has not answered within this time.
TIMEOUT_S = 60.0
_MAX_TOKENS_A_STEP = 4096

router = APIRouter()


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


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Return the tokens of a text. The text of a control token becomes that token, unless parse_special is false."""
    body = await read_valid(request, TokenizeBody)
    with_pieces = bool(body.with_pieces)
    query = Tokenize(body.content, bool(body.add_special), body.parse_special is not False, with_pieces)
    answer = await _ask(request, body.model, query)
    # A long text has a quarter of a million tokens, so the JSON is written in a thread.
    json = await asyncio.to_thread(_tokens_json, answer, with_pieces=with_pieces)
    return Response(json, media_type="application/json")


@router.post("/detokenize")
async def detokenize(request: Request) -> JSONResponse:
    """Return the text of tokens, including the text of control tokens."""
    body = await read_valid(request, DetokenizeBody)
    answer = await _ask(request, body.model, Detokenize(read_tokens(body.tokens, "tokens")))
    return JSONResponse(Content(content=answer.text))


@router.post("/apply-template")
async def apply_template(request: Request) -> JSONResponse:
    """Return the prompt that the model's chat template renders for a chat completion's body."""
    service = context_of(request).service
    read = partial(read_chat, completion_id="", default_model=service.models.default())
    completion = (await read_body(request, read)).requests[0]
    assert isinstance(completion.prompt, ChatPrompt)
    answer = await _ask(request, completion.model, RenderPrompt(completion.prompt))
    return JSONResponse(RenderedPrompt(prompt=answer.text))


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
