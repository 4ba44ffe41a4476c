"""Finds the draft of a model for each load, checks it, and remembers a draft whose trial ended the process."""

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
    """A model's draft, as found on this machine. If `path` is None, `why` says why there is none.

    `is_trouble`: there is none because a file is damaged or missing.
    """

    @property
    def path(self) -> Path | None: ...
    @property
    def why(self) -> str: ...
    @property
    def is_trouble(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ChosenDraft:
    """A draft for a load: its file, and the reason for it. If `path` is None, `why` says why there is none.

    `by` is what decided it, see `SettingChoice.by`. `is_trouble`: see FoundDraft. `header` is None if there is no
    draft, or if its header is not known.
    """

    path: Path | None
    why: str
    by: str = "default"
    is_trouble: bool = False
    header: Header | None = None


NO_DRAFT = ChosenDraft(None, "no draft was looked for")


@dataclass(frozen=True, slots=True)
class DraftChecks:
    """The functions that find and check a draft. They read the disk. See Checks for `validate` and `difference`.

    - `find` returns the draft of a found model with this header. It raises nothing.
    - `resolve` finds a model by its name. It may raise any EdgeAgentError.
    """

    find: Callable[[Any, Any], FoundDraft]
    resolve: Callable[[str], Any]
    validate: Callable[[Path], Header | None]
    difference: Callable[[Any, Any], str | None]


@dataclass(slots=True)
class DraftChooser:
    """Finds the draft of one model for each load. `option` is the model's option --draft; `found` is the model itself.

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
        """If `part` describes the trial of the last load's draft, leave this draft out of the next loads.

        Return whether it does. The draft is used again once its file is replaced.
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
    """Return how a draft's vocabulary differs from the model's, in words; "" if it does not."""
    if model is None or draft is None:
        return ""
    if model.num_vocab and draft.num_vocab and model.num_vocab != draft.num_vocab:
        return (
            f"the draft {draft_path} has {draft.num_vocab} tokens in its vocabulary and {model_path} has "
            f"{model.num_vocab}"
        )
    return difference(model, draft) or ""
