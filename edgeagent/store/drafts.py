"""Finds a draft model on this machine for a model, and gives the reason for the choice. No network."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeagent.errors import EdgeAgentError, ModelNotFound
from edgeagent.store.gguf.header import ADAPTER, GgufHeader, first_difference
from edgeagent.store.library import Found, Library, current_header
from edgeagent.store.names.catalog import builtin_model, load_catalog

logger = logging.getLogger(__name__)

_SHARE = 4  # A draft found by its vocabulary takes at most this fraction of the model's bytes.
# Memories from which refused tokens can be removed.
_CUTTABLE = ("attention", "latent", "sliding window")


@dataclass(frozen=True, slots=True)
class FoundDraft:
    """The file of a draft model, and why it was chosen. If `path` is None, `why` says why there is no draft model.

    `is_trouble`: there is none because the search failed, or because the draft model cannot be used. `by` is what
    decided this; see `SettingChoice.by`. `header`: the file's, once it was read.
    """

    path: Path | None
    why: str
    is_trouble: bool = False
    by: str = "default"
    header: GgufHeader | None = None


class DraftFinder:
    """Finds draft models for a library's models."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def find(self, model: Found, header: GgufHeader) -> FoundDraft:
        """Return the draft model for a model with this header. No error is raised: the model works without a draft.

        The first of these is used:

        1. The bundled draft model, if the model is the bundled one.
        2. The model's partner, if it is on this machine. This is the draft model that the catalog names for it.
        3. A model on this machine with the same vocabulary, at most a quarter of the size, and a memory from which
           rejected tokens can be removed. Models of the same architecture come first, and among these the smallest.

        Files of 2 and 3 are verified with `Library.verify`. If drafts cannot be used for the model, `path` is None.
        """
        try:
            return self._find(model, header)
        except Exception as error:  # of any kind: see above
            logger.exception("no draft was found for %s", model.name)
            return FoundDraft(None, f"the search for a draft failed: {error}", is_trouble=True)

    def _find(self, model: Found, header: GgufHeader) -> FoundDraft:
        if (why := _why_not(header)) is not None:
            return FoundDraft(None, why)
        if model.origin == "builtin" and (bundled := builtin_model().draft) is not None:
            return FoundDraft(bundled, "the bundled draft")
        partner = self._partner(model.draft)
        if partner is not None and partner.path is not None:
            return partner
        for found in self._same_vocabulary(model, header):
            if self._is_verified(found):
                return FoundDraft(found.paths[0], f"{found.name} on this machine has the same vocabulary")
        return partner or FoundDraft(
            None, "no model on this machine has its vocabulary and at most a quarter of its size"
        )

    def _partner(self, name: str | None) -> FoundDraft | None:
        """Return the draft model with this name in the catalog, or why it cannot be used; None if `name` is None."""
        if name is None:
            return None
        try:
            found = self._library.find_on_hub(load_catalog()[name].hub_name(), wanted=name)
            self._library.verify(found, name)
        except ModelNotFound:
            return FoundDraft(None, f"the catalog's partner {name} is not here: `edgeagent pull {name}`")
        except EdgeAgentError as error:
            return FoundDraft(None, f"the catalog's partner cannot be used: {error.message}", is_trouble=True)
        return FoundDraft(found.paths[0], "the catalog's partner")

    def _same_vocabulary(self, model: Found, header: GgufHeader) -> Iterator[Found]:
        """Yield the models of `_small` that have the same vocabulary and can draft. The best draft model is first."""
        others = []
        for found in self._small(model):
            try:
                other = current_header(found.paths[0])
                if not _can_draft(other) or other.num_vocab != header.num_vocab or first_difference(header, other):
                    continue
            except (EdgeAgentError, OSError):
                continue
            if other.architecture == header.architecture:
                yield found
            else:
                others.append(found)
        yield from others

    def _small(self, model: Found) -> list[Found]:
        """Return the other models on this machine that have at most a quarter of a model's size, the smallest first."""
        most, own = model.size_bytes // _SHARE, model.path.resolve()
        sized = [(found.size_bytes, found) for found in self._library.found()]
        small = [(size, found) for size, found in sized if 0 < size <= most and found.paths[0].resolve() != own]
        return [found for _, found in sorted(small, key=lambda each: each[0])]

    def _is_verified(self, found: Found) -> bool:
        try:
            self._library.verify(found, found.name)
        except EdgeAgentError as error:
            logger.warning("%s is not used as a draft: %s", found.name, error.message)
            return False
        return True


def _why_not(header: GgufHeader) -> str | None:
    """Return why drafts cannot be used for a model with this header; None if they can."""
    if header.memory_kind == "encoder" or header.is_embedding:
        return "it generates no text"
    if header.memory_kind not in _CUTTABLE and not header.shape.keeps_states:
        return "refused drafts cannot be removed from its memory"
    return None if header.num_vocab else "its file has no vocabulary"


def _can_draft(header: GgufHeader) -> bool:
    return header.kind != ADAPTER and header.memory_kind in _CUTTABLE and not header.is_embedding
