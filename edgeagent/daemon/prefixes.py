"""Computes the configured prefixes of a model after each load, so that the first request finds them in the cache.

They are computed in the lowest scheduling tier, so that clients' requests come first. If a prefix cannot be computed,
the error is logged.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeagent.api.ops.cache import read_warming
from edgeagent.config import Config
from edgeagent.errors import EdgeAgentError
from edgeagent.service.client_sink import Ending
from edgeagent.service.service import Service
from edgeagent.types import FinishReason, GenerateRequest, RouteMode, Tier, WorkerState, replace

_CHECK_S = 0.5
_MAX_BYTES = 16 << 20

logger = logging.getLogger(__name__)


class Prefixes:
    """Computes the configured prefixes of each model, after each load of the model."""

    def __init__(self, service: Service, config: Config) -> None:
        self._service = service
        self._files = {name: own.prefixes for name, own in config.models.items() if own.prefixes}
        self._names: dict[str, str] = {}
        """Maps a model's name in the configuration to its canonical name. Models that are not found yet are missing."""
        self._computed: dict[str, int | None] = {}
        """Maps a model's canonical name to the id of the last process for which computing its prefixes was begun."""

    @property
    def are_wanted(self) -> bool:
        """Whether the owner configured any prefixes."""
        return bool(self._files)

    async def run(self) -> None:
        """Compute the prefixes of newly loaded models, forever."""
        while True:
            await self.compute_missing()
            await asyncio.sleep(_CHECK_S)

    async def compute_missing(self) -> None:
        """Compute the prefixes of each ready model, once for each of the model's worker processes."""
        for status in self._service.models.statuses():
            if status.state is WorkerState.READY and self._computed.get(status.name, 0) != status.pid:
                self._computed[status.name] = status.pid
                for path in await self._files_of(status.name):
                    await self._compute(status.name, path)

    async def _files_of(self, model: str) -> tuple[Path, ...]:
        for name, files in self._files.items():
            if name not in self._names:
                try:
                    self._names[name] = await self._service.models.locate(name)
                except EdgeAgentError:
                    continue  # a model that is not here yet
            if self._names[name] == model:
                return files
        return ()

    async def _compute(self, model: str, path: Path) -> None:
        try:
            request = await asyncio.to_thread(_read, path, model)
            computed = Ending()
            await self._service.generate(request, computed)
            if computed.finished is not None and computed.finished.reason is not FinishReason.CANCELLED:
                used = computed.finished.usage
                logger.info(
                    "the prefix %s of %s is ready: %d tokens, %d of them cached before",
                    *(path, model, used.num_prompt_tokens, used.num_cached_tokens),
                )
        except OSError as error:
            logger.error("the prefix %s of %s cannot be read: %s", path, model, error.strerror)
        except (EdgeAgentError, ValueError) as error:
            logger.error("the prefix %s of %s cannot be computed: %s", path, model, error)


def _read(path: Path, model: str) -> GenerateRequest:
    """Read a file, and return the request that computes its prefix. Raise OSError, ValueError or InvalidRequest.

    A .json file has the body that /edgeagent/cache/warm takes. The text of any other file is a conversation's
    instructions.
    """
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES >> 20} MiB")
    request = read_warming(_fields(path, content), model)
    cache = replace(request.cache, pin=True)
    return replace(request, model=model, tier=Tier.BATCH, cache=cache, route=RouteMode.LOCAL_ONLY)


def _fields(path: Path, content: bytes) -> dict[str, Any]:
    if path.suffix != ".json":
        # Many templates require a user's message. The start of this message marks the end of the instructions.
        said = ({"role": "system", "content": content.decode()}, {"role": "user", "content": "Hello"})
        return {"messages": list(said)}
    fields = json.loads(content)
    if not isinstance(fields, Mapping):
        raise ValueError("it is not a JSON object")
    return dict(fields)
