"""Before a worker loads a model: checks the model's files, its adapters and its draft, and makes the Load message.

It remembers adapters and drafts whose trial ended the process, and detects files that were replaced.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeagent.config import EngineConfig
from edgeagent.errors import NOT_INSTALLED, EdgeAgentError, ModelDamaged, ModelLoadFailed, ModelNotFound, StoreError
from edgeagent.fit.need import num_cells_wanted, predict
from edgeagent.fit.plan import least_cells
from edgeagent.store.drafts import FoundDraft
from edgeagent.store.gguf.header import GgufHeader, first_difference
from edgeagent.store.library import Found
from edgeagent.store.names.parsing import split_paths
from edgeagent.store.projectors import find_projector, memory_bytes
from edgeagent.types import FileShape, ModelFile
from edgeagent.worker.parent.pool.cache_shares import CacheShares
from edgeagent.worker.parent.pool.known_prefixes import KnownPrefixes
from edgeagent.worker.parent.pool.profile_store import ProfileStore
from edgeagent.worker.protocol import DiskShare, Load, adapter_part, draft_part, projector_part, rewind_part

logger = logging.getLogger(__name__)


class ModelFiles:
    """The files of a model. Each method reads the disk: call it in a thread."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._recorded: tuple[str, ...] = ()

    def record(self) -> None:
        """Record the identities of the files, which are about to be loaded."""
        self._recorded = self._found()

    def are_replaced(self) -> bool:
        """Return whether a file was replaced or removed since the last call of `record`."""
        return self._found() != self._recorded

    def _found(self) -> tuple[str, ...]:
        return tuple(map(identity, self.paths))


def identity(path: Path) -> str:
    """Return a value that changes when the file is replaced or written; "" if the file cannot be reached."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


class FatalParts:
    """The parts of a model whose trial ended the process, until their files are replaced.

    A part is named by its description; see `LoadProgress.part`. `try_again` and `cause` read the disk: call them in a
    thread.
    """

    def __init__(self) -> None:
        self._tried: dict[str, str] = {}  # by part: the identity of its file at the latest load
        self._fatal: dict[str, tuple[str, str]] = {}  # by part: that identity, and what happened

    def try_again(self, parts: Mapping[str, Path]) -> None:
        """Record the parts that the next load tries, with their files, in place of the parts of the load before."""
        self._tried = {part: identity(path) for part, path in parts.items()}

    def omit(self, part: str, cause: str) -> bool:
        """Leave a part out of the next loads because of `cause`. Return False if the latest load did not try it."""
        if part in self._tried:
            self._fatal[part] = self._tried[part], cause
        return part in self._tried

    def cause(self, part: str, path: Path) -> str:
        """Return what happened when a part was tried; "" if nothing did, or if its file `path` was replaced since."""
        given, cause = self._fatal.get(part, ("", ""))
        return cause if cause and given == identity(path) else ""


NO_DRAFT = FoundDraft(None, "no draft was looked for")


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, together with the other parts of a split model.

    A part that does not exist or cannot be reached counts as 0.
    """
    size = 0
    for part in split_paths(path):
        with suppress(OSError):
            size += part.stat().st_size
    return size


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where models come from: the functions that find and check their files, and what a load needs beside them.

    All but `names_stamp` read the disk, so they are called in a thread.

    - `resolve` finds a model's files by a name from the configuration, `offer` by a name from a request. `resolve` may
      raise any EdgeAgentError. `offer` raises ModelNotFound (also if requests may not load the model), ModelDamaged or
      StoreError. If `offer` is None, requests may name only configured models.
    - `validate` returns a file's header; None if it is unknown. It raises ModelLoadFailed for a file that must not be
      loaded, ModelNotFound for a missing one, and StoreError for one that cannot be read.
    - `profiles` has the profiles that `edgeagent tune` saved; None if there are none.
    - `cache` gives each model its share of the disk cache; None if there is none.
    - `validate_adapter` checks the file of an adapter. It raises the same errors as `validate`.
    - `known_sha256` returns the SHA-256 of a file; "" if it is not known.
    - `find_draft` gets a found model and its header, and returns the model's draft model. It raises nothing.
    - `check_projector` checks the file with which a model reads images and sounds. It raises the same errors.
    - `names_stamp` returns a value that changes whenever the owner adds or removes a model's name.
    """

    resolve: Callable[[str], Found]
    validate: Callable[[Path], GgufHeader | None]
    offer: Callable[[str], Found] | None = None
    profiles: ProfileStore | None = None
    cache: CacheShares | None = None
    validate_adapter: Callable[[Path], None] = lambda _: None
    known_sha256: Callable[[Path], str] = lambda _: ""
    find_draft: Callable[[Found, Any], FoundDraft] = lambda _model, _header: NO_DRAFT
    check_projector: Callable[[Path], None] = lambda _: None
    names_stamp: Callable[[], object] = lambda: None


def _unusable(error: EdgeAgentError | OSError) -> FoundDraft:
    message = error.message if isinstance(error, EdgeAgentError) else str(error)
    return FoundDraft(None, message, is_trouble=True, by="trial")


def _mismatch(model: GgufHeader | None, model_path: Path, draft: GgufHeader | None, draft_path: Path) -> str:
    """Return in words how the vocabularies of draft and model differ; "" if they do not, or if a header is unknown."""
    if model is None or draft is None:
        return ""
    if model.num_vocab and draft.num_vocab and model.num_vocab != draft.num_vocab:
        return (
            f"the draft {draft_path} has {draft.num_vocab} tokens in its vocabulary and {model_path} has "
            f"{model.num_vocab}"
        )
    return first_difference(model, draft) or ""


# Assumed memory of a worker and its compute buffers, in addition to the weights. It is replaced by a prediction if the
# file's header can be read.
_WORKER_BYTES = 200 << 20


class LoadPreparation:
    """Prepares the loads of one model. `weigh` and `load` read the disk: call them in a thread."""

    def __init__(
        self,
        found: Found,
        draft: str,
        engine: EngineConfig,
        source: ModelSource,
        adapters: Mapping[str, Path] = MappingProxyType({}),
        mmproj: str = "auto",
    ) -> None:
        """`draft` and `mmproj`: the model's options --draft and --mmproj."""
        self.name, self.path = found.name, found.path
        self.fatal = FatalParts()
        """What the next loads leave out: adapters, the draft model, or drafts of any kind."""
        self._draft, self._found = draft, found
        self.engine = engine
        self.adapters = adapters
        self._source = source
        self._mmproj = mmproj
        self.projector_path: Path | None = None
        self.why_no_projector = ""  # what `_find_projector` said last
        """The file with which the model reads images and sounds. `load` finds it."""
        self.files = self._files(None)
        self.cache_folder: Path | None = None
        """The folder of the model's cached blocks that the latest load gave to its worker; None if it gave none."""
        self.weights_bytes = 0
        """The result of the latest `weigh`, in bytes; 0 before the first."""
        self.keep_alive_s = math.inf
        """How many seconds the model stays loaded without use."""
        self.prefixes = KnownPrefixes()
        """What its file of known prefixes said when the model was found."""
        self.needed_bytes = self.least_bytes = 0
        """How many bytes of memory the model is predicted to use, and with how few it could run; 0 before `load`."""
        self.sha256 = ""
        """The SHA-256 of the model's file; empty if it is not known, and until `load` has checked the file."""
        self._loaded: dict[str, str] = {}  # the identities of the model's file and adapters at the latest load

    def weigh(self) -> int:
        """Return the size in bytes of the model's file, its adapters, and its draft model if `load` has chosen one.

        Call this in a thread: it reads the disk.
        """
        self.weights_bytes = sum(map(file_size, self.files.paths))
        return self.weights_bytes

    def load(self) -> Load:
        """Check the files, which may have changed since the last load, and return the Load message.

        Raise the errors of `ModelSource.validate`. Raise ModelLoadFailed if llama.cpp is not installed, if --draft
        names a model with another vocabulary, or if --mmproj names a file that is no projector.
        """
        if importlib.util.find_spec("llama_cpp") is None:
            raise ModelLoadFailed(NOT_INSTALLED)
        self.files.record()
        self.sha256 = ""
        self._loaded = {name: identity(path) for name, path in self._parts().items()}
        model = self._source.validate(self.path)
        self.sha256 = self._source.known_sha256(self.path)
        unusable = self._unusable_adapters()
        usable = {name: path for name, path in self.adapters.items() if name not in unusable}
        draft = self._choose_draft(model)
        self.projector_path, self.why_no_projector = self._find_projector()
        rewind = rewind_part(str(self.path.absolute()))
        tried = {adapter_part(str(path.absolute())): path for path in usable.values()} | {rewind: self.path}
        if self.projector_path is not None:
            tried[projector_part(str(self.projector_path.absolute()))] = self.projector_path
        self.fatal.try_again(
            tried if draft.path is None else {draft_part(str(draft.path.absolute())): draft.path, **tried}
        )
        cause = self.fatal.cause(rewind, self.path)
        self.files = self._files(draft.path)
        self.files.record()
        disk = None if self._source.cache is None else self._source.cache.prepare(self.path)
        self.cache_folder = None if disk is None else Path(disk.folder)
        self.weigh()
        self.needed_bytes = self.least_bytes = self.weights_bytes + _WORKER_BYTES
        projector_bytes = 0 if self.projector_path is None else memory_bytes(self.projector_path)
        shapes: tuple[FileShape, ...] = ()
        if model is not None:
            shapes = (model.shape,) if draft.header is None else (model.shape, draft.header.shape)
            # If memory is short, the model runs without its draft. Other models are unloaded only for a named one.
            counted = shapes if draft.by == "option" else shapes[:1]
            self.needed_bytes, self.least_bytes = (
                predict(counted, self.engine, num_cells_wanted(model.shape, self.engine)).total_bytes,
                predict(shapes[:1], self.engine, least_cells(model.shape, self.engine)).total_bytes,
            )
            self.needed_bytes += projector_bytes
            self.least_bytes += projector_bytes
        return Load(
            name=self.name,
            path=str(self.path.absolute()),
            draft_path=None if draft.path is None else str(draft.path.absolute()),
            engine_config=self.engine,
            # With the adapters' identities, a stream is not continued with another adapter file of the same name.
            identity=" ".join(map(identity, (self.path, *usable.values()))),
            writable=() if disk is None else (disk.folder,),
            disk=disk,
            shapes=shapes,
            profile=None if self._source.profiles is None else self._source.profiles.read(self.path),
            adapters={name: str(path.absolute()) for name, path in usable.items()},
            unusable_adapters=unusable,
            draft_why=draft.why,
            draft_by=draft.by,
            why_no_drafts=cause and f"removing refused drafts ended the process ({cause})",
            projector_path=None if self.projector_path is None else str(self.projector_path.absolute()),
            why_no_projector=self.why_no_projector,
            projector_bytes=projector_bytes,
        )

    def model_files(self) -> dict[str, ModelFile]:
        """Return the model's own file, by the name "", and those of its adapters. Nothing is read."""
        return {
            name: ModelFile(str(path.absolute()), self._loaded.get(name, "")) for name, path in self._parts().items()
        }

    def _parts(self) -> dict[str, Path]:
        return {"": self.path, **self.adapters}

    def disk_share(self) -> DiskShare | None:
        """Return the model's present share of the disk cache; None if its worker has no folder."""
        cache, folder = self._source.cache, self.cache_folder
        return None if cache is None or folder is None else cache.share_of(folder)

    def is_cache_folder_replaced(self) -> bool:
        cache, folder = self._source.cache, self.cache_folder
        return cache is not None and folder is not None and cache.is_replaced(folder)

    def _files(self, draft_path: Path | None) -> ModelFiles:
        beside = (draft_path, self.projector_path)
        return ModelFiles([self.path, *(path for path in beside if path is not None), *self.adapters.values()])

    def sees(self) -> bool:
        """Whether the model has a projector, with which it may read images and sounds. Reads the disk."""
        try:
            path, self.why_no_projector = self._find_projector()
        except ModelLoadFailed as error:
            path, self.why_no_projector = None, error.message
        return path is not None

    def check_projector(self) -> None:
        """Raise ModelLoadFailed if the owner named a projector that cannot be used. Reads the disk."""
        if self._mmproj not in ("auto", "none"):
            try:
                self._source.check_projector(Path(self._mmproj))
            except (ModelLoadFailed, ModelNotFound, StoreError) as error:
                raise ModelLoadFailed(
                    f"the projector of {self.name} cannot be used: {error.message}; name another one with --mmproj, or "
                    "none",
                    param="model",
                ) from None

    def _find_projector(self) -> tuple[Path | None, str]:
        """Return the projector for the next load. If it cannot be used, return why it is left out instead.

        Raise ModelLoadFailed if it cannot be used and the owner named it.
        """
        match self._mmproj:
            case "none":
                return None, "Its projector is switched off (mmproj = none)."
            case "auto":
                path = self._found.projector or find_projector(self.path)
            case named:
                path = Path(named)
        if path is None:
            return None, ""
        self.check_projector()
        try:
            self._source.check_projector(path)
            cause = self.fatal.cause(projector_part(str(path.absolute())), path)
            if not cause:
                return path, ""
            why = f"{path} ended the process that tried it ({cause}); get the file again"
        except (ModelLoadFailed, ModelNotFound, StoreError) as error:
            why = error.message
        logger.warning("%s is loaded without its projector: %s", self.name, why)
        return None, why

    def _choose_draft(self, header: GgufHeader | None) -> FoundDraft:
        """Return the draft for the next load. Log a warning if there is a draft that cannot be used.

        `header` is the header of the model's file; None if it is not known. Raise ModelLoadFailed if the owner named a
        draft whose vocabulary differs from the model's.
        """
        draft = self._find_draft(header)
        if draft.path is not None:
            draft = self._checked_draft(header, draft, draft.path)
        if draft.is_trouble:
            logger.warning("%s runs without its draft: %s", self.name, draft.why)
        return draft

    def _find_draft(self, header: GgufHeader | None) -> FoundDraft:
        match self._draft:
            case "auto":
                found = self._source.find_draft(self._found, header)
                return replace(found, by="trial") if found.is_trouble else found
            case "none" | "ngram":
                return FoundDraft(None, f"--draft {self._draft}", by="option")
        try:
            return FoundDraft(self._source.resolve(self._draft).path, "you named it", by="option")
        except (EdgeAgentError, OSError) as error:
            return _unusable(error)

    def _checked_draft(self, header: GgufHeader | None, draft: FoundDraft, path: Path) -> FoundDraft:
        """Return a draft with its header, or the reason why it cannot be used. For errors see `_choose_draft`."""
        try:
            own = self._source.validate(path)
            if cause := self.fatal.cause(draft_part(str(path.absolute())), path):
                raise ModelDamaged(f"{path} ended the process that tried it ({cause}); get the file again")
            why = _mismatch(header, self.path, own, path)
        except (EdgeAgentError, OSError) as error:  # StoreError: it cannot be hashed
            return _unusable(error)
        if not why:
            return replace(draft, header=own)
        if self._draft != "auto":
            raise ModelLoadFailed(f"{why}; a draft must share the model's vocabulary: choose another as --draft")
        return FoundDraft(None, f"{why}; a draft must share the model's vocabulary", is_trouble=True, by="trial")

    def _unusable_adapters(self) -> dict[str, str]:
        """Return the adapters that cannot be used, with the reasons. Log a warning; the model loads without them."""
        found = {}
        for name, path in self.adapters.items():
            try:
                self._source.validate_adapter(path)
                if cause := self.fatal.cause(adapter_part(str(path.absolute())), path):
                    raise ModelDamaged(f"{path} ended the process that tried it ({cause})")
            except (ModelLoadFailed, ModelNotFound, StoreError) as error:  # StoreError: it cannot be hashed
                found[name] = error.message
                logger.warning("%s is loaded without its adapter %s: %s", self.name, name, error.message)
        return found
