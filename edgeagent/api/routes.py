"""All routes of the daemon: which modules serve them, and what each path needs."""

from __future__ import annotations

from edgeagent.api.anthropic import messages
from edgeagent.api.gate.access import Paths
from edgeagent.api.llama_server import completion, tools
from edgeagent.api.ollama import chat as ollama_chat
from edgeagent.api.ollama import embed as ollama_embed
from edgeagent.api.ollama import models as ollama_models
from edgeagent.api.openai import completions, embeddings, models
from edgeagent.api.ops import answers, cache, remotes, status
from edgeagent.api.page import conversations, entry, files, kiosk, markdown
from edgeagent.api.realtime import connection as realtime
from edgeagent.api.responses import choose
from edgeagent.api.responses import routes as responses
from edgeagent.api.responses.socket import connection
from edgeagent.api.wire.route import Route
from edgeagent.credentials.keys import Scope

_MODULES = (
    *(completions, embeddings, completion, tools),
    *(responses, connection, realtime, choose, messages),
    *(files, entry, conversations, markdown, kiosk),
    *(models, ollama_chat, ollama_embed, ollama_models, status, cache, answers, remotes),
)
_TABLES = [module.routes for module in _MODULES]
SERVED = [served for table in _TABLES for served in table.served]
ROUTES: dict[str, Route] = {route.name: route for table in _TABLES for route in table.declared}
"""The HTTP routes by name, for example `POST /v1/embeddings`."""
DOCUMENTS = ("/docs", "/openapi.json", "/asyncapi.json")
"""The paths of `documents.routes`, which only a daemon with `server.docs` imports."""
NEEDS: dict[str, Scope | None] = {
    **{route.template: route.scope for route in ROUTES.values()},
    **{path: scope for table in _TABLES for path, scope in table.sockets.items()},
    **dict.fromkeys(DOCUMENTS, Scope.INFER),
}
"""The scope that each path needs; None: no scope. `credentials.decision.decide` finds the scopes of a sender."""
PATHS = Paths(NEEDS)
