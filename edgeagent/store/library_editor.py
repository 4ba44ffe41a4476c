"""Changes the models on this machine: removes a model, gives it a second name, or adopts another program's model.

To adopt a model is to give it a name here and use its file where it is. Files of other programs are never changed.
Removing an adopted model removes only its name.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgeagent.config import Config
from edgeagent.errors import InvalidRequest, ModelDamaged, ModelNotFound, StoreError
from edgeagent.store.adoption import Adoptable
from edgeagent.store.gguf.header import validate_model
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.last_use import LastUse
from edgeagent.store.names.catalog import match_entry
from edgeagent.store.names.own import Imported, OwnNamesFile, with_alias, with_import
from edgeagent.store.names.parsing import CatalogName, is_short_name, near_names, parse_name, without_latest
from edgeagent.store.resolve import DEFAULT_NAMES, Found, Library
from edgeagent.store.verified import VerifiedFiles


@dataclass(frozen=True, slots=True)
class Removal:
    """The effect of removing a name: the files that are deleted, the bytes freed, and the aliases removed with it.

    `found` is the removed model. It is None if only a name is removed: an alias, or the name of an adopted model.
    """

    name: str
    found: Found | None
    files: tuple[Path, ...] = ()
    freed_bytes: int = 0
    aliases: tuple[str, ...] = ()


class LibraryEditor:
    """The models of a configuration, with methods that change them."""

    def __init__(self, config: Config) -> None:
        self._library = Library.of(config)
        self._own = OwnNamesFile(config.state_dir)
        self._uses = LastUse(config.state_dir)
        self._verified = VerifiedFiles(config.state_dir)
        self._store = config.store

    def plan(self, name: str) -> Removal:
        """Return the effect of removing a name. Nothing is removed yet.

        Raise ModelNotFound if no model has the name, InvalidRequest if the name cannot be removed, or StoreError if the
        owner's names cannot be read.
        """
        own, name = self._own.read(), without_latest(name)
        if name in own.aliases:
            return Removal(name, None)
        if name in DEFAULT_NAMES:
            raise InvalidRequest("name the model to remove", param="model")
        if name in own.imports:
            return Removal(name, None, aliases=own.aliases_of(name))
        found = self._find(name)
        if found.origin == "builtin":
            raise InvalidRequest("builtin comes with edgeagent and cannot be removed", param="model")
        if found.origin == "path":
            raise InvalidRequest(f"{name} is a path: delete the file itself", param="model")
        names = (found.name, name, str(found.paths[0].resolve()))
        aliases = tuple(dict.fromkeys(alias for each in names for alias in own.aliases_of(each)))
        files = found.paths if found.origin == "folder" else self._cache().removable(found.paths)
        return Removal(found.name, found, files, sum(map(_size, files)), aliases)

    def _find(self, name: str) -> Found:
        """Return a model of this machine. Raise ModelNotFound with the names of those that are here."""
        try:
            return self._library.find(name)
        except ModelNotFound:
            here = {model.name for model in self._library.models()}
            near = near_names(name, here, "their aliases")
            raise ModelNotFound(f"{name[:80]} is not on this machine; {near}", param="model") from None

    def remove(self, removal: Removal) -> None:
        """Carry out a planned removal. Raise StoreError if a file cannot be deleted, or the names cannot be changed."""
        for path in removal.files:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{path} cannot be deleted: {error.strerror}", param="model") from None
        if removal.found is not None:
            self._uses.forget(removal.found.paths[0])
            if removal.found.origin == "hub":
                self._cache().drop_empty(removal.found.paths)
        ended = (removal.name, *removal.aliases)
        if self._own.read().without(*ended) != self._own.read():
            self._own.change(lambda names: names.without(*ended))

    def remaining_file(self, removal: Removal) -> Path | None:
        """Return the file of the model that has the removed name now; None if no model has it.

        After a removal, a name may mean another model, for example one with the same name in the hub's cache.
        """
        with suppress(ModelNotFound, InvalidRequest, StoreError):
            return self._library.find(removal.name).paths[0]
        return None

    def copy(self, source: str, alias: str) -> str:
        """Give a model an alias. Return the name or the path that the alias stands for. No file is copied.

        `source` is any name of the model. Raise ModelNotFound if there is no such model, InvalidRequest if the alias is
        taken or not allowed, or StoreError if the names cannot be read or written.
        """
        alias = without_latest(alias)
        if alias and alias in (*DEFAULT_NAMES, "builtin", "none"):
            raise InvalidRequest(f"{alias!r} has a meaning of its own; choose another name")
        if not is_short_name(alias):
            raise InvalidRequest(f"{alias[:80]!r} cannot be a model's name here: use letters, digits and . _ - :")
        found = self._find(source)
        target = str(found.paths[0].resolve()) if found.origin in ("alias", "path") else found.name
        if alias == target:
            raise InvalidRequest(f"{alias} is that model's name already")
        own = self._own.read()
        if alias not in own.aliases and (taken := self._taken_by(alias)):
            raise InvalidRequest(f"{alias} is {taken}; choose another name")
        self._own.change(lambda names: with_alias(names, alias, target))
        return target

    def adopt(self, model: Adoptable, on_bytes: Callable[[int], None] | None = None) -> bool:
        """Adopt another program's model without copying it. Return False if it was adopted before.

        If the other program records the file's sha256, the file is checked, and `on_bytes` gets the number of bytes
        read so far. Raise ModelNotFound if the file is gone, ModelLoadFailed if the model cannot be used,
        InvalidRequest if its name is taken, or StoreError if a file cannot be read or written.
        """
        own = self._own.read()
        before = own.imports.get(model.name)
        if before is not None and before.paths == model.paths:
            return False
        if model.name in own.aliases or (before is not None and before.paths[0].is_file()):
            raise InvalidRequest(f"the name {model.name} is taken; `edgeagent rm {model.name}` frees it")
        validate_model(model.paths[0])
        if model.sha256 is not None and not self._verified.check(model.paths[0], model.sha256, on_bytes):
            raise ModelDamaged(f"{model.paths[0]} is damaged: its sha256 is not {model.sha256}", param="model")
        imported = Imported(model.paths, model.source, model.sha256)
        self._own.change(lambda names: with_import(names, model.name, imported))
        return True

    def _taken_by(self, alias: str) -> str | None:
        """Return in words what already has this name; None if the name is free."""
        with suppress(ModelNotFound, InvalidRequest):
            meaning = parse_name(alias)
            if isinstance(meaning, CatalogName) and match_entry(meaning) is not None:
                return "a name of the catalog"
        return "a model's name already" if self._library.holds(alias) else None

    def _cache(self) -> HubCache:
        return HubCache.of(self._store)


def _size(path: Path) -> int:
    try:
        return 0 if path.is_symlink() else path.stat().st_size
    except OSError:
        return 0
