"""Checks a model's files before a worker loads them, and makes the worker's Load message."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from edgeagent.config import EngineConfig
from edgeagent.errors import NOT_INSTALLED, ModelDamaged, ModelLoadFailed, ModelNotFound, StoreError
from edgeagent.fit.need import num_cells_wanted, predict
from edgeagent.fit.plan import least_cells
from edgeagent.types import FileShape
from edgeagent.worker.parent.pool.drafts import NO_DRAFT, DraftChecks, DraftChooser, FoundDraft, Header
from edgeagent.worker.parent.pool.model_files import ModelFiles, WorkerCacheFolder, identity
from edgeagent.worker.parent.pool.tuning_store import TuningStore
from edgeagent.worker.protocol import MEASUREMENTS, DiskCache, Load, adapter_part, rewind_part

logger = logging.getLogger(__name__)

# Assumed memory of a worker and its compute buffers, in addition to the weights. It is replaced by a prediction if the
# file's header can be read.
_WORKER_BYTES = 200 << 20


def file_size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist or cannot be reached."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


class FoundModel(Protocol):
    """A model's files, as found by the store's resolver."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class Checks:
    """The functions and the tuning store that every load uses. They read the disk, so they are called in a thread.

    - `validate` returns a file's header; None if it is unknown. It raises ModelLoadFailed for a file that must not be
      loaded, ModelNotFound for a missing one, and StoreError for one that cannot be read.
    - `tuning_store` keeps each model's tuning from one load to the next.
    - `disk_cache` prepares and returns a worker's disk cache; None if there is none.
    - `size_of` returns the size of a file in bytes, together with the other parts of a split model.
    - `validate_adapter` checks the file of an adapter. It raises the same errors as `validate`.
    - `difference` describes in words how the vocabularies of two headers differ; None if they do not.
    - `known_sha256` returns the SHA-256 of a file; "" if it is not known.
    - `find_draft` gets a found model and its header, and returns the model's draft model. It raises nothing.
    """

    validate: Callable[[Path], Header | None]
    tuning_store: TuningStore
    disk_cache: Callable[[], DiskCache | None] = lambda: None
    size_of: Callable[[Path], int] = file_size
    validate_adapter: Callable[[Path], None] = lambda _: None
    difference: Callable[[Any, Any], str | None] = lambda _model, _draft: None
    known_sha256: Callable[[Path], str] = lambda _: ""
    find_draft: Callable[[Any, Any], FoundDraft] = lambda _model, _header: NO_DRAFT

    def draft_chooser(self, option: str, found: FoundModel, resolve: Callable[[str], FoundModel]) -> DraftChooser:
        """Return the DraftChooser of `found`. `option` is its option --draft. `resolve` finds a model by name."""
        return DraftChooser(option, found, DraftChecks(self.find_draft, resolve, self.validate, self.difference))


class LoadPreparation:
    """Prepares the loads of one model. `weigh` and `load` read the disk: call them in a thread."""

    def __init__(
        self,
        name: str,
        path: Path,
        draft: DraftChooser,
        engine: EngineConfig,
        checks: Checks,
        adapters: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self.name, self.path = name, path
        self._draft = draft
        self.engine = engine
        self.adapters = adapters
        self._checks = checks
        self._tried: dict[str, str] = {}
        self._fatal: dict[str, tuple[str, str]] = {}
        self._is_measured = True
        self._loaded_identity = ""  # the identity of the model's file at the last load
        self._why_no_drafts = ("", "")  # the model's identity, and why it must not take drafts
        self.files = self._files(None)
        self.folder = WorkerCacheFolder()
        self.weights_bytes = 0
        """The result of the latest `weigh`, in bytes; 0 before the first."""
        self.keep_alive_s = math.inf
        """How many seconds the model stays loaded without use."""
        self.needed_bytes = self.least_bytes = 0
        """How many bytes of memory the model is predicted to use, and with how few it could run; 0 before `load`."""
        self.sha256 = ""
        """The SHA-256 of the model's file; empty if it is not known, and until `load` has checked the file."""

    def weigh(self) -> int:
        """Return the size in bytes of the model's file, its adapters, and its draft model if `load` has chosen one.

        Call this in a thread: it reads the disk.
        """
        self.weights_bytes = sum(map(self._checks.size_of, self.files.paths))
        return self.weights_bytes

    def load(self) -> Load:
        """Check the files, which may have changed since the last load, and return the Load message.

        Raise the errors of `Checks.validate`. Raise ModelLoadFailed if llama.cpp is not installed, or if --draft names
        a model with another vocabulary.
        """
        if importlib.util.find_spec("llama_cpp") is None:
            raise ModelLoadFailed(NOT_INSTALLED)
        self.files.record()
        self.sha256 = ""
        self._loaded_identity = identity(self.path)
        model = self._checks.validate(self.path)
        self.sha256 = self._checks.known_sha256(self.path)
        unusable = self._unusable_adapters()
        usable = {name: path for name, path in self.adapters.items() if name not in unusable}
        self._tried = {name: identity(path) for name, path in usable.items()}
        draft = self._draft.choose(model)
        self.files = self._files(draft.path)
        self.files.record()
        disk = self._checks.disk_cache()
        self.folder.record(None if disk is None else Path(disk.folder))
        self.weigh()
        self.needed_bytes = self.least_bytes = self.weights_bytes + _WORKER_BYTES
        shapes: tuple[FileShape, ...] = ()
        if model is not None:
            shapes = (model.shape,) if draft.header is None else (model.shape, draft.header.shape)
            # If memory is short, the model runs without its draft. Other models are unloaded only for a named one.
            counted = shapes if draft.by == "option" else shapes[:1]
            self.needed_bytes, self.least_bytes = (
                predict(counted, self.engine, num_cells_wanted(model.shape, self.engine)).total_bytes,
                predict(shapes[:1], self.engine, least_cells(model.shape, self.engine)).total_bytes,
            )
        return Load(
            name=self.name,
            path=str(self.path.absolute()),
            draft_path=None if draft.path is None else str(draft.path.absolute()),
            engine_config=self._engine_of_load().model_dump_json().encode(),
            # With the adapters' identities, a stream is not continued with another adapter file of the same name.
            identity=" ".join(map(identity, (self.path, *usable.values()))),
            writable=() if disk is None else (disk.folder,),
            disk=disk,
            shapes=shapes,
            saved_tuning=self._checks.tuning_store.read(self.path),
            adapters={name: str(path.absolute()) for name, path in usable.items()},
            unusable_adapters=unusable,
            draft_why=draft.why,
            draft_by=draft.by,
            why_no_drafts=self._why_no_drafts[1] if self._why_no_drafts[0] == self._loaded_identity else "",
        )

    def _files(self, draft_path: Path | None) -> ModelFiles:
        return ModelFiles([self.path, *([] if draft_path is None else [draft_path]), *self.adapters.values()])

    def _unusable_adapters(self) -> dict[str, str]:
        """Return the adapters that cannot be used, with the reasons. Log a warning; the model loads without them."""
        found = {}
        for name, path in self.adapters.items():
            try:
                self._checks.validate_adapter(path)
                self._check_not_fatal(name, path)
            except (ModelLoadFailed, ModelNotFound, StoreError) as error:  # StoreError: it cannot be hashed
                found[name] = error.message
                logger.warning("%s is loaded without its adapter %s: %s", self.name, name, error.message)
        return found

    def omit_part(self, part: str, cause: str) -> bool:
        """Leave a part out of the next loads, because its trial ended the process or hung.

        Return False, and leave nothing out, if the model needs the part. `part` is the part's description; see
        `LoadProgress.part`. An adapter or a draft model is left out until its file is replaced. Drafts of any kind are
        left out until the model's file is replaced, and the measurements of settings until the daemon ends.
        """
        if part == MEASUREMENTS:
            self._is_measured = False
            return True
        if part == rewind_part(str(self.path.absolute())):
            self._why_no_drafts = self._loaded_identity, f"removing refused drafts ended the process ({cause})"
            return True
        for name, given in self._tried.items():
            if part == adapter_part(str(self.adapters[name].absolute())):
                self._fatal[name] = given, cause
                return True
        return self._draft.omit_part(part, cause)

    def _engine_of_load(self) -> EngineConfig:
        return self.engine if self._is_measured else self.engine.model_copy(update={"calibration_s": 0.0})

    def _check_not_fatal(self, name: str, path: Path) -> None:
        given, cause = self._fatal.get(name, ("", ""))
        if cause and given == identity(path):
            raise ModelDamaged(f"{path} ended the process that tried it ({cause})")
