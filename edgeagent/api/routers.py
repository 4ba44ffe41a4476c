"""The routers of all wire protocols. The application and the documents read this list.

The routes that serve the documents are not in it.
"""

from __future__ import annotations

from edgeagent.api.llama_server import completion, embedding, props, rerank, text_tools
from edgeagent.api.ollama import routes as ollama
from edgeagent.api.openai import completions, embeddings, models
from edgeagent.api.ops import cache, model_pulls, remotes, status
from edgeagent.api.responses import routes as responses
from edgeagent.api.responses.socket import connection

_MODULES = (
    *(completions, embeddings, completion, embedding, rerank, text_tools, props),
    *(responses, connection),
    *(models, model_pulls, ollama, status, cache, remotes),
)
ROUTERS = (*(module.router for module in _MODULES), status.metrics_router)
