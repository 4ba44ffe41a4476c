"""The profiles of `edgeagent tune`: one private file for each model, in a folder of the state folder."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import msgspec

from edgeagent.cache_folder import ensure_private
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import read_private, write_private
from edgeagent.types.choices import Profile

PROFILES_FOLDER = "profiles"
MAX_BYTES = 256 << 10  # of a file; a profile has a few KB

logger = logging.getLogger(__name__)


class ProfileStore:
    """The saved profiles. Every method reads or writes the disk: call it in a thread."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir.absolute() / PROFILES_FOLDER

    def read(self, model: Path) -> Profile | None:
        """Return the profile of a model file; None if there is none, or none that can be used."""
        return _read(self._file(model))

    def all(self) -> list[Profile]:
        """Return the profiles of all models that can be used."""
        return [profile for file in sorted(self.folder.glob("*.json")) if (profile := _read(file)) is not None]

    def save(self, profile: Profile) -> None:
        """Save a model's profile, in place of an earlier one. Raise ConfigError or OSError if that fails."""
        ensure_private(self.folder)
        write_private(self._file(Path(profile.path)), msgspec.json.encode(profile))

    def remove(self, model: Path) -> None:
        self._file(model).unlink(missing_ok=True)

    def _file(self, model: Path) -> Path:
        digest = hashlib.blake2b(str(model.absolute()).encode("utf-8", "surrogateescape"), digest_size=16)
        return self.folder / f"{digest.hexdigest()}.json"


def json_of(profile: Profile) -> Any:
    return msgspec.to_builtins(profile)


def _read(file: Path) -> Profile | None:
    try:
        content = read_private(file, MAX_BYTES + 1) or b""
        return msgspec.json.decode(content, type=Profile) if content and len(content) <= MAX_BYTES else None
    except ConfigError as error:
        logger.warning("a profile of `edgeagent tune` is not used: %s", error.message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        logger.warning("%s is no profile of `edgeagent tune`, and is not used: %s", file, error)
    return None
