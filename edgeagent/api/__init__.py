"""The wire protocols: JSON over HTTP and WebSocket, access control, errors. They do not know where a request runs."""

import os

# Otherwise pydantic reads the metadata of all installed packages to find its plugins, which delays the start, and a
# plugin sees what clients send.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "true"


def defer_checks() -> None:
    """Let pydantic build the checks of FastAPI's own models when they are first used, and not when FastAPI is imported.

    Call it before that import. FastAPI has a model for each part of an OpenAPI document, and a daemon uses hardly any.
    It takes 1.3 MB and 25 ms less. The bodies of `wire.body` are deferred in any case.
    """
    from pydantic import BaseModel

    BaseModel.model_config["defer_build"] = True
