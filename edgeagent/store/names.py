"""What a model can be called, and the strict reading of such names. Asks nothing but whether a path is a file.

builtin · a path to a .gguf · org/repo[:QUANT] · org/repo/file.gguf · a name from the catalog, also with :QUANT
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from edgeagent.errors import InvalidRequest, ModelNotFound
from edgeagent.home import with_home

MAX_NAME_CHARS = 1024

_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_QUANT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}"
_CATALOG = re.compile(rf"(?P<name>{_WORD})(?::(?P<quant>{_QUANT}))?", re.ASCII)
_REPO = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?::(?P<quant>{_QUANT}))?", re.ASCII)
_SEGMENT = re.compile(r"[A-Za-z0-9_(\[][A-Za-z0-9 ._+()\[\]@=,-]{0,190}", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class BuiltinName:
    """The model that comes with edgeagent."""


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A file on this machine."""

    path: Path


@dataclass(frozen=True, slots=True)
class CatalogName:
    """A short name; the catalog says which repository it stands for."""

    name: str
    quant: str | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.quant}" if self.quant else self.name


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository on the hub: one of its files, or the variant of a quantization, or (neither) the usual one."""

    repo: str
    quant: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        if self.file is not None:
            return f"{self.repo}/{self.file}"
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


ModelName = BuiltinName | LocalPath | CatalogName | HubName


def parse_name(name: str) -> ModelName:
    """Return what a name means.

    1. control characters, network paths, addresses: refused; 2. builtin; 3. what looks like a path, or is a file, is
    a path; 4. no slash: the catalog; 5. one slash: a repository; 6. more: a file of a repository.
    Raise InvalidRequest, or ModelNotFound for a relative path that is no file.
    """
    _check_characters(name)
    if name.startswith(("//", "\\\\")):
        raise _invalid(name, "network paths are not opened; copy the model to this machine")
    if "://" in name:
        raise _invalid(name, "give the repository as org/repo, without the address")
    if name == "builtin":
        return BuiltinName()
    if _is_path(name):
        return LocalPath(with_home(Path(name)))
    match name.count("/"):
        case 0 | 1 if name.lower().endswith(".gguf"):
            raise ModelNotFound(f"there is no file {name}: check the path", param="model")
        case 0:
            return _catalog_name(name)
        case 1:
            return _repo_name(name)
        case _:
            return _file_name(name)


def is_file_name(name: str) -> bool:
    """Say whether a repository's file name is harmless as a relative path on every platform."""
    return len(name) <= MAX_NAME_CHARS and all(map(_is_segment, name.split("/")))


def is_repo_name(name: str) -> bool:
    """Say whether this is org/repo by the hub's rules."""
    match = _REPO.fullmatch(name)
    # The hub forbids both; "--" also separates the parts of a cache folder's name.
    return match is not None and match["quant"] is None and "--" not in name and ".." not in name


def _is_segment(segment: str) -> bool:
    if _SEGMENT.fullmatch(segment) is None or _RESERVED.fullmatch(segment):
        return False
    return ".." not in segment and not segment.endswith((".", " "))


def _check_characters(name: str) -> None:
    if not name or len(name) > MAX_NAME_CHARS:
        raise _invalid(name[:40], f"a model's name has 1 to {MAX_NAME_CHARS} characters, this one {len(name)}")
    bad = next((char for char in name if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")), None)
    if bad is not None:
        raise _invalid(name, f"it holds the control character U+{ord(bad):04X}")


def _is_path(name: str) -> bool:
    if name.startswith(("/", "./", "../", "~", ".\\", "..\\")) or _DRIVE.match(name):
        return True
    return name.lower().endswith(".gguf") and Path(name).is_file()


def _catalog_name(name: str) -> CatalogName:
    match = _CATALOG.fullmatch(name)
    if match is None:
        raise _invalid(name, "give builtin, a path to a .gguf, org/repo[:QUANT] or a name from the catalog")
    return CatalogName(match["name"], match["quant"])


def _repo_name(name: str) -> HubName:
    match = _REPO.fullmatch(name)
    if match is None or not is_repo_name(match["repo"]):
        raise _invalid(name, "a repository is org/repo or org/repo:QUANT, of letters, digits, '.', '_' and '-'")
    return HubName(match["repo"], quant=match["quant"])


def _file_name(name: str) -> HubName:
    org, repo, file = name.split("/", 2)
    if not is_repo_name(f"{org}/{repo}") or not is_file_name(file) or not file.lower().endswith(".gguf"):
        raise _invalid(name, "a file of a repository is org/repo/file.gguf")
    return HubName(f"{org}/{repo}", file=file)


def _invalid(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{name!r} cannot be a model: {why}", param="model")
