"""What happens to a model's files before a worker loads them: they are checked, and the message for it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from edgeagent.config import EngineConfig
from edgeagent.store.fit import Header, kv_bytes_per_token, num_cells_wanted, predict
from edgeagent.worker.fit import check_draft
from edgeagent.worker.parent.kept_choices import KeptChoices
from edgeagent.worker.parent.model_files import GivenFolder, ModelFiles, identity
from edgeagent.worker.protocol import DiskCache, Load

# Of a worker, and of the buffers that a model computes in, where the file's header could not be read.
_WORKER_BYTES = 200 << 20


def file_size(path: Path) -> int:
    """Return the size of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


class FoundModel(Protocol):
    """A model's files, as the store's resolver found them."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    @property
    def draft_path(self) -> Path | None: ...


@dataclass(frozen=True, slots=True)
class Checks:
    """What every load asks for. Each function reads the disk, in a thread.

    `validate` raises ModelLoadFailed for a file that must not be loaded, and returns its header, if it could be read;
    `size_of` returns the bytes of a file and of the other parts of its model; `disk_cache` prepares a worker's disk
    cache; `validate_adapter` raises ModelLoadFailed for a file that is not an adapter.
    """

    validate: Callable[[Path], Header | None]
    kept: KeptChoices
    disk_cache: Callable[[], DiskCache | None] = lambda: None
    size_of: Callable[[Path], int] = file_size
    validate_adapter: Callable[[Path], None] = lambda _: None


class Preparation:
    """The files and the folder of one model's worker. Its methods read the disk: call them in a thread."""

    def __init__(
        self,
        name: str,
        path: Path,
        draft_path: Path | None,
        engine: EngineConfig,
        checks: Checks,
        adapters: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self.name, self.path, self.draft_path = name, path, draft_path
        self.engine = engine
        self.adapters = adapters
        self._checks = checks
        self._models = [path for path in (self.path, draft_path) if path is not None]
        self.files = ModelFiles([*self._models, *adapters.values()])
        self.folder = GivenFolder()
        self.weights_bytes = 0
        """The size of all files, once they were weighed."""
        self.keep_alive_s = math.inf
        """How long the model stays loaded without use."""
        self.needed_bytes = 0
        """The memory that the model should take, once its files were checked."""

    def weigh(self) -> int:
        """Read the size of all files, and return it."""
        self.weights_bytes = sum(map(self._checks.size_of, self.files.paths))
        return self.weights_bytes

    def load(self) -> Load:
        """Check the files before each load, since they may have changed; raise ModelLoadFailed."""
        self.files.give()
        headers = {path: header for path in self._models if (header := self._checks.validate(path)) is not None}
        for path in self.adapters.values():
            self._checks.validate_adapter(path)
        model = headers.get(self.path)
        if model is not None and self.draft_path is not None and self.draft_path in headers:
            check_draft(model, self.path, headers[self.draft_path], self.draft_path)
        disk = self._checks.disk_cache()
        self.folder.give(None if disk is None else Path(disk.folder))
        num_cells = 0 if model is None else num_cells_wanted(model, self.engine)
        bytes_per_token = kv_bytes_per_token(tuple(headers.values()), self.engine)
        self.weigh()
        self.needed_bytes = self.weights_bytes + _WORKER_BYTES
        if model is not None:
            drafts = [header for path, header in headers.items() if path != self.path]
            self.needed_bytes = predict([model, *drafts], self.engine, num_cells).total_bytes
        return Load(
            name=self.name,
            path=str(self.path.absolute()),
            draft_path=None if self.draft_path is None else str(self.draft_path.absolute()),
            engine_config=self.engine.model_dump_json().encode(),
            # A stream that an adapter began is not continued with another file of its name.
            identity=" ".join(map(identity, (self.path, *self.adapters.values()))),
            writable=() if disk is None else (disk.folder,),
            disk=disk,
            num_cells=num_cells,
            kv_bytes_per_token=bytes_per_token,
            num_trained=0 if model is None else model.context_length or 0,
            kept=self._checks.kept.read(self.path),
            adapters={name: str(path.absolute()) for name, path in self.adapters.items()},
        )
