"""Finds and checks a model's draft model before each load. Remembers draft models whose trial ended the process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from edgeagent.errors import EdgeAgentError, ModelDamaged, ModelLoadFailed
from edgeagent.types import FileShape
from edgeagent.worker.parent.pool.model_files import identity
from edgeagent.worker.protocol import draft_part

logger = logging.getLogger(__name__)


class Header(Protocol):
    """The values in a model file's header that a load needs."""

    @property
    def num_vocab(self) -> int: ...
    @property
    def shape(self) -> FileShape: ...


class FoundDraft(Protocol):
    """The draft model that was found for a model. If `path` is None, there is none, and `why` says why.

    `is_trouble`: there is none because the search failed, for example at a damaged file.
    """

    @property
    def path(self) -> Path | None: ...
    @property
    def why(self) -> str: ...
    @property
    def is_trouble(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ChosenDraft:
    """The draft model for a load. If `path` is None, there is none. `why` is the reason for this choice.

    `by` is what decided this; see `SettingChoice.by`. `is_trouble`: there is none because the search failed, or because
    the draft model cannot be used. `header` is None if there is no draft model, or if its header is not known.
    """

    path: Path | None
    why: str
    by: str = "default"
    is_trouble: bool = False
    header: Header | None = None


NO_DRAFT = ChosenDraft(None, "no draft was looked for")


@dataclass(frozen=True, slots=True)
class DraftChecks:
    """The functions that find and check a draft model. They read the disk.

    - `find` gets a model and its header, and returns the model's draft model. It raises nothing.
    - `resolve` finds a model by its name. It may raise any EdgeAgentError.
    - `validate` and `difference`: see loading.Checks.
    """

    find: Callable[[Any, Any], FoundDraft]
    resolve: Callable[[str], Any]
    validate: Callable[[Path], Header | None]
    difference: Callable[[Any, Any], str | None]


@dataclass(slots=True)
class DraftChooser:
    """Finds a model's draft for each of its loads. `option` is the model's option --draft; `found` is the model itself.

    The methods read the disk: call them in a thread.
    """

    option: str
    found: Any
    checks: DraftChecks
    _tried: tuple[str, str] = ("", "")  # of the last load's draft: its trial and its identity
    _fatal: dict[str, tuple[str, str]] = field(default_factory=dict)  # by trial: the draft's identity and the cause

    def choose(self, header: Header | None) -> ChosenDraft:
        """Return the draft for the model's next load. Log a warning if there is a draft that cannot be used.

        `header` is the header of the model's file; None if it is not known.
        Raise ModelLoadFailed if the user named a draft whose vocabulary differs from the model's.
        """
        draft = self._find(header)
        if draft.path is not None:
            draft = self._checked(header, draft, draft.path)
        if draft.is_trouble:
            logger.warning("%s runs without its draft: %s", self.found.name, draft.why)
        path = draft.path
        self._tried = ("", "") if path is None else (draft_part(str(path.absolute())), identity(path))
        return draft

    def omit_part(self, part: str, cause: str) -> bool:
        """Leave the last load's draft out of the next loads, if `part` describes that draft's trial.

        Return False if `part` describes something else. The draft is used again once its file is replaced.
        """
        tried, given = self._tried
        if not tried or part != tried:
            return False
        self._fatal[tried] = given, cause
        return True

    @property
    def _is_named(self) -> bool:
        return self.option not in ("auto", "none", "ngram")

    def _find(self, header: Header | None) -> ChosenDraft:
        if self.option == "auto":
            found = self.checks.find(self.found, header)
            by = "trial" if found.is_trouble else "default"
            return ChosenDraft(found.path, found.why, by, found.is_trouble)
        if not self._is_named:
            return ChosenDraft(None, f"--draft {self.option}", "option")
        try:
            return ChosenDraft(self.checks.resolve(self.option).path, "you named it", "option")
        except (EdgeAgentError, OSError) as error:
            return _unusable(error)

    def _checked(self, header: Header | None, draft: ChosenDraft, path: Path) -> ChosenDraft:
        """Return a draft with its header, or the reason why it cannot be used. Raise ModelLoadFailed; see `choose`."""
        try:
            own = self.checks.validate(path)
            given, cause = self._fatal.get(draft_part(str(path.absolute())), ("", ""))
            if cause and given == identity(path):
                raise ModelDamaged(f"{path} ended the process that tried it ({cause}); get the file again")
            why = _mismatch(header, self.found.path, own, path, self.checks.difference)
        except (EdgeAgentError, OSError) as error:  # StoreError: it cannot be hashed
            return _unusable(error)
        if not why:
            return ChosenDraft(path, draft.why, draft.by, header=own)
        if self._is_named:
            raise ModelLoadFailed(f"{why}; a draft must share the model's vocabulary: choose another as --draft")
        return ChosenDraft(None, f"{why}; a draft must share the model's vocabulary", "trial", is_trouble=True)


def _unusable(error: EdgeAgentError | OSError) -> ChosenDraft:
    message = error.message if isinstance(error, EdgeAgentError) else str(error)
    return ChosenDraft(None, message, "trial", is_trouble=True)


def _mismatch(
    model: Header | None,
    model_path: Path,
    draft: Header | None,
    draft_path: Path,
    difference: Callable[[Any, Any], str | None],
) -> str:
    """Return in words how the vocabularies of draft and model differ; "" if they do not, or if a header is unknown."""
    if model is None or draft is None:
        return ""
    if model.num_vocab and draft.num_vocab and model.num_vocab != draft.num_vocab:
        return (
            f"the draft {draft_path} has {draft.num_vocab} tokens in its vocabulary and {model_path} has "
            f"{model.num_vocab}"
        )
    return difference(model, draft) or ""
