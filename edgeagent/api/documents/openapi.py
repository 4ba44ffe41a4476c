"""The OpenAPI document of the HTTP routes: the router lists them, the table here describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from edgeagent import __version__
from edgeagent.api.documents import answers, answers_daemon, answers_ollama, bodies, events
from edgeagent.api.documents.components import Components
from edgeagent.api.gate.access import NEEDS
from edgeagent.api.llama_server import rerank
from edgeagent.api.llama_server import text_tools as text_routes
from edgeagent.api.ollama import embed_body
from edgeagent.api.ops import cache as cache_routes
from edgeagent.api.ops import model_pulls
from edgeagent.api.routers import ROUTERS
from edgeagent.api.wire.errors import error_codes, shape_of
from edgeagent.api.wire.shape import Json
from edgeagent.credentials import Scope

SSE, LINES, TEXT = "text/event-stream", "application/x-ndjson", "text/plain"


@dataclass(frozen=True, slots=True)
class Operation:
    """A route's body and answer: `streams` is the media type of an answer in pieces, `text` of one without JSON."""

    tag: str
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    streams: str = ""
    text: str = ""
    status: HTTPStatus = HTTPStatus.OK
    unavailable: type[BaseModel] | None = None
    query: tuple[str, ...] = ()


_MISSING = Operation("ollama", status=HTTPStatus.NOT_IMPLEMENTED, answer=answers_ollama.OllamaRefusal)

OPERATIONS: dict[str, Operation] = {
    "POST /v1/responses": Operation("openai", bodies.ResponseRequest, events.Response, SSE),
    "POST /v1/responses/compact": Operation("openai", bodies.ResponseRequest, answers.Compaction),
    "POST /v1/responses/input_tokens": Operation("openai", bodies.ResponseRequest, answers.InputTokens),
    "GET /v1/responses/{response_id}": Operation(
        "openai", answer=events.Response, streams=SSE, query=("stream", "starting_after")
    ),
    "DELETE /v1/responses/{response_id}": Operation("openai", answer=answers.ResponseDeleted),
    "POST /v1/responses/{response_id}/cancel": Operation("openai", answer=events.Response),
    "GET /v1/responses/{response_id}/input_items": Operation("openai", answer=answers.ItemPage),
    "POST /v1/chat/completions": Operation("openai", bodies.ChatCompletionRequest, answers.ChatCompletion, SSE),
    "POST /v1/completions": Operation("openai", bodies.CompletionRequest, answers.TextCompletion, SSE),
    "POST /v1/embeddings": Operation("openai", bodies.EmbeddingsRequest, answers.Embeddings),
    "POST /v1/rerank": Operation("llama-server", rerank.RerankBody, answers.Ranking),
    "GET /v1/models": Operation("openai", answer=answers.ModelList),
    "GET /v1/models/{model_id}": Operation("openai", answer=answers.Model),
    "POST /v1/models/pull": Operation("openai", model_pulls.PullBody, answers_daemon.ModelPull, SSE),
    "GET /health": Operation("daemon", answer=answers_daemon.Health, unavailable=answers_daemon.NotHealthy),
    "HEAD /health": Operation("daemon"),
    "HEAD /ready": Operation("daemon"),
    "GET /ready": Operation("daemon", answer=answers_daemon.Ready),
    "GET /version": Operation("daemon", answer=answers_daemon.Version),
    "GET /metrics": Operation("daemon", text=TEXT),
    "GET /edgeagent/status": Operation("daemon", answer=answers_daemon.Status),
    "POST /edgeagent/stop": Operation("daemon", answer=answers_daemon.Stopping, status=HTTPStatus.ACCEPTED),
    "POST /edgeagent/reload": Operation(
        "daemon", answer=answers_daemon.Reloading, status=HTTPStatus.ACCEPTED, query=("model",)
    ),
    "POST /edgeagent/load": Operation("daemon", answer=answers_daemon.Loaded, query=("model", "keep_alive")),
    "POST /edgeagent/unload": Operation("daemon", answer=answers_daemon.Unloaded, query=("model",)),
    "GET /edgeagent/cache": Operation("daemon", answer=answers_daemon.CacheReport),
    "POST /edgeagent/cache/purge": Operation("daemon", cache_routes.PurgeBody, answers_daemon.Purged),
    "POST /edgeagent/cache/warm": Operation("daemon", cache_routes.WarmBody, answers_daemon.Warmed),
    "GET /edgeagent/egress": Operation("daemon", answer=answers_daemon.EgressRows, query=("since_s", "limit")),
    "POST /edgeagent/egress/purge": Operation("daemon", answer=answers_daemon.EgressPurged),
    "POST /tokenize": Operation("llama-server", text_routes.TokenizeBody, answers_daemon.Tokens),
    "POST /detokenize": Operation("llama-server", text_routes.DetokenizeBody, answers_daemon.Content),
    "POST /apply-template": Operation("llama-server", bodies.ChatCompletionRequest, answers_daemon.RenderedPrompt),
    "GET /props": Operation("llama-server", answer=answers_daemon.Props),
    "GET /slots": Operation("llama-server", answer=answers_daemon.Slots),
    "POST /slots/{slot_id}": Operation("llama-server"),
    "GET /": Operation("ollama", text=TEXT),
    "HEAD /": Operation("ollama", text=TEXT),
    "GET /api/version": Operation("ollama", answer=answers_ollama.OllamaVersion),
    "HEAD /api/version": Operation("ollama"),
    "GET /api/tags": Operation("ollama", answer=answers_ollama.OllamaModels),
    "HEAD /api/tags": Operation("ollama"),
    "GET /api/ps": Operation("ollama", answer=answers_ollama.OllamaModels),
    "POST /api/show": Operation("ollama", bodies.OllamaModelRequest, answers_ollama.OllamaDescription),
    "POST /api/chat": Operation("ollama", bodies.OllamaChatRequest, answers_ollama.OllamaChat, LINES),
    "POST /api/generate": Operation("ollama", bodies.OllamaGenerateRequest, answers_ollama.OllamaGeneration, LINES),
    "POST /api/pull": Operation("ollama", bodies.OllamaPullRequest, answers_ollama.OllamaPull, LINES),
    "POST /api/embed": Operation("ollama", embed_body.OllamaEmbedBody, answers_ollama.OllamaEmbeddings),
    "POST /api/embeddings": Operation("ollama", embed_body.OllamaEmbeddingsBody, answers_ollama.OllamaEmbedding),
    "POST /api/create": _MISSING,
    "POST /api/copy": Operation("ollama", bodies.OllamaCopyRequest),
    "POST /api/push": _MISSING,
    "DELETE /api/delete": Operation("ollama", bodies.OllamaModelRequest),
    "HEAD /api/blobs/{digest}": Operation("ollama", status=HTTPStatus.NOT_IMPLEMENTED),
    "POST /api/blobs/{digest}": _MISSING,
}

_DESCRIPTION = """\
OpenAI's API and Ollama's, served by one daemon on this machine. The WebSocket at `/v1/responses` is described in \
AsyncAPI.

Every client needs a token where `server.token_required` is set or the daemon listens beyond this machine. Elsewhere \
the routes with the scopes `models` and `admin` need one, but not from the user that the daemon runs as. A token opens \
the routes of its scopes (`x-scope`). Unknown fields are ignored, and named in `x-edgeagent-warning`. Every \
error has one of these codes, and a `Retry-After` where trying again may help.

| code | status | type |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """An HTTP route: its template as the router has it, and its method."""

    template: str
    method: str
    summary: str

    @property
    def path(self) -> str:
        """Return the template in OpenAPI's form."""
        return re.sub(r"{(\w+):path}", r"{\1}", self.template)


def routes(table: list[Any]) -> Iterator[RouteInfo]:
    """Yield the HTTP routes of a router, those of included routers too."""
    for route in table:
        if hasattr(route, "original_router"):
            yield from routes(route.original_router.routes)
        elif hasattr(route, "methods"):
            summary = (route.endpoint.__doc__ or "").strip().split("\n")[0]
            for method in sorted(route.methods):
                yield RouteInfo(route.path, method, summary)


def openapi_document() -> Json:
    """Return the OpenAPI 3.1 document."""
    components = Components()
    paths: dict[str, Json] = {}
    for route in routes([each for router in ROUTERS for each in router.routes]):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edgeagent HTTP API",
            "version": __version__,
            "description": _DESCRIPTION + "\n".join(_code_rows()),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8127"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: RouteInfo, components: Components) -> Json:
    known = OPERATIONS.get(f"{route.method} {route.path}", Operation("other"))
    is_ollama = route.path.startswith("/api/")
    refusal = components.ref(answers_ollama.OllamaRefusal if is_ollama else answers.Refusal)
    responses = {str(known.status.value): _answer(known, components, is_empty=route.method == "HEAD")}
    if known.unavailable is not None:
        responses["503"] = _content("Not ready", {"application/json": components.ref(known.unavailable)})
    responses["default"] = _content("Refused, or failed", {"application/json": refusal})
    operation: Json = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [known.tag],
        "responses": responses,
    }
    if parameters := [*_parameters(route.path, known.query)]:
        operation["parameters"] = parameters
    if known.body is not None:
        body = components.ref(known.body)
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    if scope := NEEDS[route.template]:
        operation["x-scope"] = scope.value
    if scope not in (None, Scope.INFER):
        operation["security"] = [{"token": []}]
    return operation


def _parameters(path: str, query: tuple[str, ...]) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    for name in query:
        yield {"name": name, "in": "query", "schema": {"type": "string"}}


def _answer(operation: Operation, components: Components, *, is_empty: bool) -> Json:
    if is_empty:
        return {"description": operation.status.phrase}
    content: Json = {}
    if operation.text:
        content[operation.text] = {"type": "string"}
    else:
        answer = operation.answer
        content["application/json"] = {} if answer is None else components.ref(answer, "serialization")
    if operation.streams:
        content[operation.streams] = {"type": "string"}
    return _content(operation.status.phrase, content)


def _content(description: str, schemas: Json) -> Json:
    return {"description": description, "content": {media: {"schema": schema} for media, schema in schemas.items()}}


def _operation_id(route: RouteInfo) -> str:
    words = [word for word in re.split(r"\W+", route.path) if word]
    return "_".join([route.method.lower(), *words])


def _code_rows() -> list[str]:
    shapes = {code: shape_of(error) for code, error in error_codes().items()}
    return [f"| `{code}` | {shape.status} | {shape.type} |" for code, shape in shapes.items()]
