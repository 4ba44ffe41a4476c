"""The OpenAPI document of the HTTP routes. The router lists the routes, and the table OPERATIONS describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from edgeagent import __version__
from edgeagent.api.documents.components import Components
from edgeagent.api.gate.access import NEEDS
from edgeagent.api.llama_server import completion, embedding, props, rerank, text_tools
from edgeagent.api.ollama import body as ollama_body
from edgeagent.api.ollama import chat as ollama_chat
from edgeagent.api.ollama import embed as ollama_embed
from edgeagent.api.ollama import models as ollama_models
from edgeagent.api.ollama import pull as ollama_pull
from edgeagent.api.ollama import routes as ollama_routes
from edgeagent.api.openai import chat_answer, chat_body, embeddings, models, text_answer, text_body
from edgeagent.api.ops import cache, model_pulls, owner_fields, remotes, status
from edgeagent.api.responses import body as create_body
from edgeagent.api.responses import event_json
from edgeagent.api.responses import routes as responses_routes
from edgeagent.api.routers import ROUTERS
from edgeagent.api.wire.errors import OllamaRefusal, Refusal, error_codes, wire_form_of_class
from edgeagent.api.wire.shape import Json
from edgeagent.credentials.keys import Scope

SSE, LINES, TEXT = "text/event-stream", "application/x-ndjson", "text/plain"


@dataclass(frozen=True, slots=True)
class Operation:
    """How the document describes a route, in addition to the path and the summary.

    `body`, `answer`: the type of the JSON in the request and in the answer; None if there is no JSON or no type for it.
    `streams`: the media type of a streamed answer; "" if the route does not stream. `text`: the media type of an answer
    that is not JSON. `status`: the status of a success. `unavailable`: the type of the answer with status 503. `query`:
    the type of the query parameters. `fields`: the type of fields that may be in the query or in the body.
    """

    tag: str
    body: type[BaseModel] | None = None
    answer: Any = None
    streams: str = ""
    text: str = ""
    status: HTTPStatus = HTTPStatus.OK
    unavailable: type | None = None
    query: type[BaseModel] | None = None
    fields: type[BaseModel] | None = None


_MISSING = Operation("ollama", status=HTTPStatus.NOT_IMPLEMENTED, answer=OllamaRefusal)

OPERATIONS: dict[str, Operation] = {
    "POST /v1/responses": Operation("openai", create_body.CreateResponseBody, event_json.ResponseBody, SSE),
    "POST /v1/responses/compact": Operation("openai", create_body.CreateResponseBody, responses_routes.Compaction),
    "POST /v1/responses/input_tokens": Operation(
        "openai", create_body.CreateResponseBody, responses_routes.InputTokens
    ),
    "GET /v1/responses/{response_id}": Operation(
        "openai", answer=event_json.ResponseBody, streams=SSE, query=responses_routes.EventsQuery
    ),
    "DELETE /v1/responses/{response_id}": Operation("openai", answer=responses_routes.ResponseDeleted),
    "POST /v1/responses/{response_id}/cancel": Operation("openai", answer=event_json.ResponseBody),
    "GET /v1/responses/{response_id}/input_items": Operation(
        "openai", answer=responses_routes.ItemPage, query=responses_routes.PageQuery
    ),
    "POST /v1/chat/completions": Operation("openai", chat_body.ChatBody, chat_answer.ChatCompletion, SSE),
    "POST /v1/completions": Operation("openai", text_body.CompletionBody, text_answer.TextCompletion, SSE),
    "POST /v1/embeddings": Operation("openai", embeddings.EmbeddingsBody, embeddings.Embeddings),
    "POST /v1/rerank": Operation("llama-server", rerank.RerankBody, rerank.Ranking),
    "GET /v1/models": Operation("openai", answer=models.ModelList),
    "GET /v1/models/{model_id}": Operation("openai", answer=models.Model),
    "POST /v1/models/pull": Operation("openai", model_pulls.PullBody, model_pulls.ModelPull, SSE),
    "GET /health": Operation("daemon", answer=models.Health, unavailable=models.NotHealthy),
    "HEAD /health": Operation("daemon"),
    "HEAD /ready": Operation("daemon"),
    "GET /ready": Operation("daemon", answer=models.Ready),
    "GET /version": Operation("daemon", answer=models.Version),
    "GET /metrics": Operation("daemon", text=TEXT),
    "GET /edgeagent/status": Operation("daemon", answer=status.Status),
    "POST /edgeagent/stop": Operation("daemon", answer=status.Stopping, status=HTTPStatus.ACCEPTED),
    "POST /edgeagent/reload": Operation(
        "daemon", answer=status.Reloading, status=HTTPStatus.ACCEPTED, fields=owner_fields.ModelChoice
    ),
    "POST /edgeagent/load": Operation("daemon", answer=status.Loaded, fields=status.LoadBody),
    "POST /edgeagent/unload": Operation("daemon", answer=status.Unloaded, fields=owner_fields.ModelChoice),
    "GET /edgeagent/cache": Operation("daemon", answer=cache.CacheReport),
    "POST /edgeagent/cache/purge": Operation("daemon", answer=cache.Purged, fields=cache.PurgeBody),
    "POST /edgeagent/cache/warm": Operation("daemon", cache.WarmBody, cache.Warmed),
    "GET /edgeagent/egress": Operation("daemon", answer=remotes.EgressRows, query=remotes.EgressQuery),
    "POST /edgeagent/egress/purge": Operation("daemon", answer=remotes.EgressPurged),
    "POST /edgeagent/egress/test": Operation("daemon", answer=remotes.RemoteTest, fields=remotes.RemoteChoice),
    "POST /completion": Operation(
        "llama-server",
        completion.LlamaCompletionBody,
        completion.LlamaCompletion | list[completion.LlamaCompletion],
        SSE,
    ),
    "POST /infill": Operation(
        "llama-server",
        completion.InfillBody,
        completion.LlamaCompletion | list[completion.LlamaCompletion],
        SSE,
    ),
    "POST /embedding": Operation("llama-server", embedding.EmbeddingBody, list[embedding.TextEmbedding]),
    "POST /tokenize": Operation("llama-server", text_tools.TokenizeBody, text_tools.Tokens),
    "POST /detokenize": Operation("llama-server", text_tools.DetokenizeBody, text_tools.Content),
    "POST /apply-template": Operation("llama-server", chat_body.ChatBody, text_tools.RenderedPrompt),
    "GET /props": Operation("llama-server", answer=props.Props),
    "GET /slots": Operation("llama-server", answer=list[props.Slot]),
    "POST /slots/{slot_id}": Operation("llama-server"),
    "GET /": Operation("ollama", text=TEXT),
    "HEAD /": Operation("ollama", text=TEXT),
    "GET /api/version": Operation("ollama", answer=ollama_routes.OllamaVersion),
    "HEAD /api/version": Operation("ollama"),
    "GET /api/tags": Operation("ollama", answer=ollama_models.OllamaModels),
    "HEAD /api/tags": Operation("ollama"),
    "GET /api/ps": Operation("ollama", answer=ollama_models.OllamaModels),
    "POST /api/show": Operation("ollama", ollama_body.OllamaModelBody, ollama_models.OllamaDescription),
    "POST /api/chat": Operation("ollama", ollama_body.OllamaChatBody, ollama_chat.OllamaChat, LINES),
    "POST /api/generate": Operation("ollama", ollama_body.OllamaGenerateBody, ollama_chat.OllamaGeneration, LINES),
    "POST /api/pull": Operation("ollama", ollama_body.OllamaPullBody, ollama_pull.OllamaPull, LINES),
    "POST /api/embed": Operation("ollama", ollama_embed.OllamaEmbedBody, ollama_embed.OllamaEmbeddings),
    "POST /api/embeddings": Operation("ollama", ollama_embed.OllamaEmbeddingsBody, ollama_embed.OllamaEmbedding),
    "POST /api/create": _MISSING,
    "POST /api/copy": Operation("ollama", ollama_body.OllamaCopyBody),
    "POST /api/push": _MISSING,
    "DELETE /api/delete": Operation("ollama", ollama_body.OllamaModelBody),
    "HEAD /api/blobs/{digest}": Operation("ollama", status=HTTPStatus.NOT_IMPLEMENTED),
    "POST /api/blobs/{digest}": _MISSING,
}

_DESCRIPTION = """\
OpenAI's API and Ollama's, served by one daemon on this machine. The WebSocket at `/v1/responses` is described in \
AsyncAPI.

Every client needs a token where `server.token_required` is set or the daemon listens beyond this machine. Elsewhere \
the routes with the scopes `models` and `admin` need one, but not from the user that the daemon runs as. A token opens \
the routes of its scopes (`x-scope`). Unknown fields are ignored; routes that generate, embed or rank name them in \
`x-edgeagent-warning`, and the routes under `/edgeagent/` refuse them. Every error has one of these codes, and a \
`Retry-After` where trying again may help.

| code | status | type |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class RouteInfo:
    """An HTTP route: the router's path template, the method, and the first line of the handler's docstring."""

    template: str
    method: str
    summary: str

    @property
    def path(self) -> str:
        """The path template in OpenAPI's form, for example `/v1/models/{model_id}` for `{model_id:path}`."""
        return re.sub(r"{(\w+):path}", r"{\1}", self.template)


def routes(table: list[Any]) -> Iterator[RouteInfo]:
    """Yield the HTTP routes in `table`, the list of a router's routes. Routes of included routers are yielded too."""
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
    refusal = components.ref(OllamaRefusal if is_ollama else Refusal)
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
    if parameters := [*_parameters(route.path, known.query or known.fields, components)]:
        operation["parameters"] = parameters
    if kind := known.body or known.fields:
        content = {"application/json": {"schema": components.ref(kind)}}
        operation["requestBody"] = {"required": known.body is not None, "content": content}
    if scope := NEEDS[route.template]:
        operation["x-scope"] = scope.value
    if scope not in (None, Scope.INFER):
        operation["security"] = [{"token": []}]
    return operation


def _parameters(path: str, query: type[BaseModel] | None, components: Components) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    for name, schema in ({} if query is None else components.fields(query)).items():
        yield {"name": name, "in": "query", "schema": schema}


def _answer(operation: Operation, components: Components, *, is_empty: bool) -> Json:
    if is_empty:
        return {"description": operation.status.phrase}
    content: Json = {}
    if operation.text:
        content[operation.text] = {"type": "string"}
    else:
        answer = operation.answer
        content["application/json"] = {} if answer is None else components.ref(answer)
    if operation.streams:
        # OpenAPI 3.1 has no word for events; tools that know them check each against this schema.
        content[operation.streams] = (
            {"description": "Server-sent events"} if operation.streams == SSE else {"type": "string"}
        )
    return _content(operation.status.phrase, content)


def _content(description: str, schemas: Json) -> Json:
    return {"description": description, "content": {media: {"schema": schema} for media, schema in schemas.items()}}


def _operation_id(route: RouteInfo) -> str:
    words = [word for word in re.split(r"\W+", route.path) if word]
    return "_".join([route.method.lower(), *words])


def _code_rows() -> list[str]:
    forms = {code: wire_form_of_class(error) for code, error in error_codes().items()}
    return [f"| `{code}` | {form.status} | {form.type} |" for code, form in forms.items()]
