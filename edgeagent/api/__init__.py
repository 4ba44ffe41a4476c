"""The wire protocols: JSON over HTTP and WebSocket, access control, errors. They do not know where a request runs."""

import importlib
import os
from typing import Any

# Otherwise pydantic reads the metadata of all installed packages to find its plugins, which delays the start, and a
# plugin sees what clients send.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "true"


def defer_checks() -> None:
    """Let pydantic build the checks of FastAPI's own models when they are first used, and import FastAPI.

    FastAPI has a model for each part of an OpenAPI document, of which a daemon uses hardly any. Call this function
    before any other import of FastAPI. The bodies of `wire.body` are deferred in any case.
    """
    from pydantic import BaseModel

    models: Any = BaseModel
    build = models.__dict__["model_rebuild"]

    def build_if_used(model: Any, /, **options: Any) -> Any:
        # pydantic passes options when a model is used. FastAPI passes none: it would build three models at its import.
        return build.__func__(model, **options) if options else None

    models.model_config["defer_build"] = True
    models.model_rebuild = classmethod(build_if_used)
    try:
        importlib.import_module("fastapi")
    finally:
        models.model_rebuild = build
