"""The OpenAPI document of the HTTP routes, made from their declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator

from edgeagent import __version__
from edgeagent.api.documents.components import Components
from edgeagent.api.routes import ROUTES
from edgeagent.api.wire.errors import (
    ANTHROPIC_PREFIX,
    OLLAMA_PREFIX,
    AnthropicRefusal,
    OllamaRefusal,
    Refusal,
    error_codes,
    wire_form,
)
from edgeagent.api.wire.latency import LatencyHeaders
from edgeagent.api.wire.route import SSE, Route
from edgeagent.api.wire.shape import Json
from edgeagent.credentials.keys import Scope

_DESCRIPTION = """\
The APIs of OpenAI, Anthropic, Ollama and llama-server, served by one daemon on this machine. The WebSocket at \
`/v1/responses` is described in AsyncAPI.

Every client needs a token where `server.token_required` is set or the daemon listens beyond this machine. Elsewhere \
the routes with the scopes `models` and `admin` need one, but not from the user that the daemon runs as. A token opens \
the routes of its scopes (`x-scope`). Unknown fields are ignored; routes that generate, embed or rank name them in \
`x-edgeagent-warning`, and the routes under `/edgeagent/` refuse them. Every error has one of these codes, and a \
`Retry-After` where trying again may help.

| code | status | type |
|---|---|---|
"""


def openapi_document() -> Json:
    """Return the OpenAPI 3.1 document."""
    components = Components()
    paths: dict[str, Json] = {}
    for route in ROUTES.values():
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, components)
    forms = {code: wire_form(error) for code, error in error_codes().items()}
    code_rows = [f"| `{code}` | {form.status} | {form.type} |" for code, form in forms.items()]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "edgeagent HTTP API",
            "version": __version__,
            "description": _DESCRIPTION + "\n".join(code_rows),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8127"}],
        "security": [{}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "parameters": {
                name: {"name": name, "in": "header", "schema": _of_header(schema)}
                for name, schema in components.fields(LatencyHeaders).items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _of_header(schema: Json) -> Json:
    """Return the schema of an optional header. It cannot be null; an empty one is as if it were absent."""
    empty = {"type": "string", "maxLength": 0}
    return {"anyOf": [empty if each == {"type": "null"} else each for each in schema["anyOf"]]}


def _operation(route: Route, components: Components) -> Json:
    of_path = {OLLAMA_PREFIX: OllamaRefusal, ANTHROPIC_PREFIX: AnthropicRefusal}
    refusal = components.ref(next((of_path[each] for each in of_path if route.path.startswith(each)), Refusal))
    responses = {str(route.status.value): _answer(route, components)}
    if route.unavailable is not None and route.method != "HEAD":
        responses["503"] = _content("Not ready", {"application/json": components.ref(route.unavailable)})
    responses["default"] = _content("Refused, or failed", {"application/json": refusal})
    operation: Json = {
        "operationId": "_".join([route.method.lower(), *re.findall(r"\w+", route.path)]),
        "summary": route.summary,
        "tags": [route.tag],
        "responses": responses,
    }
    if parameters := [*_parameters(route, components)]:
        operation["parameters"] = parameters
    if kind := route.body or route.fields:
        content = {"application/json": {"schema": components.ref(kind)}}
        operation["requestBody"] = {"required": route.body is not None, "content": content}
    if route.scope:
        operation["x-scope"] = route.scope.value
    if route.scope not in (None, Scope.INFER):
        operation["security"] = [{"token": []}]
    return operation


def _parameters(route: Route, components: Components) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", route.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    query = route.query or route.fields
    for name, schema in ({} if query is None else components.fields(query)).items():
        yield {"name": name, "in": "query", "schema": schema}
    if route.body is not None and "edgeagent" in route.body.model_fields:
        for name in components.fields(LatencyHeaders):
            yield {"$ref": f"#/components/parameters/{name}"}


def _answer(route: Route, components: Components) -> Json:
    if route.method == "HEAD":
        return {"description": route.status.phrase}
    content: Json = {}
    if route.text:
        content |= {media: {"type": "string"} for media in route.text}
    else:
        answer = route.answer
        content["application/json"] = {} if answer is None else components.ref(answer)
    if route.streams:
        # OpenAPI 3.1 has no word for events; tools that know them check each against this schema.
        content[route.streams] = {"description": "Server-sent events"} if route.streams == SSE else {"type": "string"}
    return _content(route.status.phrase, content)


def _content(description: str, schemas: Json) -> Json:
    return {"description": description, "content": {media: {"schema": schema} for media, schema in schemas.items()}}
