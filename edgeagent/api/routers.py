"""The routers of every route that is always served; the application and the documents both read this list."""

from __future__ import annotations

from edgeagent.api.llama_server import props, rerank, text_tools
from edgeagent.api.ollama import routes as ollama
from edgeagent.api.openai import chat, embeddings, models, text
from edgeagent.api.ops import cache, metrics, model_pulls, remotes, status
from edgeagent.api.responses import compaction_routes, routes, stored_routes
from edgeagent.api.responses.socket import connection

ROUTERS = tuple(
    module.router
    for module in (
        *(chat, text, embeddings, rerank, text_tools, props, routes, compaction_routes, stored_routes, connection),
        *(models, model_pulls, ollama, status, cache, remotes, metrics),
    )
)
