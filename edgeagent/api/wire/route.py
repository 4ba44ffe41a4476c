"""The declaration of a route: what the router, the gate and the API's documents must know of it, in one place."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Request, WebSocket
from pydantic import BaseModel
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.routing import Route as PlainRoute

from edgeagent.credentials.keys import Scope

SSE, LINES, TEXT = "text/event-stream", "application/x-ndjson", "text/plain"

Handler = TypeVar("Handler", bound=Callable[[Request], Awaitable[Response]])
SocketHandler = TypeVar("SocketHandler", bound=Callable[[WebSocket], Awaitable[None]])


@dataclass(frozen=True, slots=True)
class Route:
    """A route. `template` is its path as the router has it. `scope`: what a token must allow; None: no token is needed.

    The rest is for the documents. `tag`: the API that it belongs to. `body`, `answer`: the type of the JSON in the
    request and in the answer; None if there is no JSON or no type for it. `query`: the type of the query parameters.
    `fields`: the type of fields that may be in the query or in the body. `streams`: the media type of a streamed
    answer; "" if the route does not stream. `text`: the media types of an answer that is not JSON. `status`: the status
    of a success. `unavailable`: the type of the answer with status 503. `summary`: one sentence.
    """

    method: str
    template: str
    scope: Scope | None
    tag: str
    summary: str
    body: type[BaseModel] | None = None
    answer: Any = None
    query: type[BaseModel] | None = None
    fields: type[BaseModel] | None = None
    streams: str = ""
    text: tuple[str, ...] = ()
    status: HTTPStatus = HTTPStatus.OK
    unavailable: type | None = None

    @property
    def path(self) -> str:
        """The path in OpenAPI's form, for example `/v1/models/{model_id}` for `{model_id:path}`."""
        return re.sub(r"{(\w+):path}", r"{\1}", self.template)

    @property
    def name(self) -> str:
        """The method and the path, for example `POST /v1/embeddings`."""
        return f"{self.method} {self.path}"


class Routes:
    """The routes of a module. The app serves those in `served`.

    `declared` describes the HTTP routes, and `sockets` has the scopes of the WebSockets.
    """

    def __init__(self) -> None:
        self.served: list[BaseRoute] = []
        self.declared: list[Route] = []
        self.sockets: dict[str, Scope] = {}

    def add(self, name: str, scope: Scope | None, tag: str, **description: Any) -> Callable[[Handler], Handler]:
        """Return a decorator that serves a route with a handler.

        `name` is the method and the path, such as "POST /v1/embeddings"; several methods are joined by "|". A handler
        takes the request only, and makes its whole answer. So it is served as a plain route: FastAPI would look for its
        parameters and dependencies in each request, which takes 0.1 ms. `description` has the other fields of Route,
        except `summary`: the first line of the handler's docstring.
        """
        joined, _, template = name.partition(" ")
        methods = joined.split("|")

        def declare(handler: Handler) -> Handler:
            summary = (handler.__doc__ or "").strip().split("\n")[0]
            route = PlainRoute(template, handler)
            route.methods = set(methods)  # a plain route would add HEAD to GET
            self.served.append(route)
            self.declared += [Route(method, template, scope, tag, summary, **description) for method in methods]
            return handler

        return declare

    def add_socket(self, path: str, scope: Scope) -> Callable[[SocketHandler], SocketHandler]:
        """Return a decorator that serves a WebSocket with a handler. The AsyncAPI document describes it."""

        def declare(handler: SocketHandler) -> SocketHandler:
            self.served.append(WebSocketRoute(path, handler))
            self.sockets[path] = scope
            return handler

        return declare
