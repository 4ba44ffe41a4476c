"""The registered wire protocols: ROUTERS has the routers of the API, and FRONTENDS the frontend classes.

The application, the daemon and the documents read these lists. The routes that serve the documents are not in them.
"""

from __future__ import annotations

from pathlib import Path

from edgeagent.api.frontend import Frontend, Frontends
from edgeagent.api.llama_server import completion, embedding, props, rerank, text_tools
from edgeagent.api.ollama import routes as ollama
from edgeagent.api.openai import completions, embeddings, models
from edgeagent.api.ops import cache, model_pulls, remotes, status
from edgeagent.api.responses import compaction_routes, routes, stored_routes
from edgeagent.api.responses.frontend import Responses
from edgeagent.api.responses.socket import connection
from edgeagent.config import Config

_MODULES = (
    *(completions, embeddings, completion, embedding, rerank, text_tools, props),
    *(routes, compaction_routes, stored_routes, connection),
    *(models, model_pulls, ollama, status, cache, remotes),
)
ROUTERS = (*(module.router for module in _MODULES), status.metrics_router)
FRONTENDS: tuple[type[Frontend], ...] = (Responses,)
"""The frontend classes of the protocols whose state outlives a request."""


def make_frontends(config: Config, folder: Path | None = None) -> Frontends:
    """Return a daemon's frontends. Their files are in `folder`; if it is None, they keep no files."""
    return Frontends(kind.of(config, folder) for kind in FRONTENDS)
