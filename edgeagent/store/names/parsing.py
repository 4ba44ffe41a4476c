"""Parses the names of models strictly, and selects a model of a repository by its files' names.

The only I/O is to check whether a path is a file. A name is: builtin · a path to a .gguf · org/repo[:QUANT] ·
org/repo/file.gguf · a name from the catalog, also with :QUANT. Ollama's spellings are accepted too: hf.co/ or
huggingface.co/ before a repository, and :latest instead of no tag.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgeagent.config import with_home
from edgeagent.errors import InvalidRequest, ModelNotFound

_LIKENESS = 0.6
_MAX_NEAR = 3
MAX_KNOWN = 30


def near_names(
    name: str, known: Collection[str], others: str = "org/repo[:QUANT]", listed: Collection[str] | None = None
) -> str:
    """Return suggestions as a phrase for an error's text. If no name is similar, it lists the first of `known`.

    `listed` is listed instead, if given. A set is sorted first; other collections keep their order. `others` describes
    what else can be a name. In an error for a client, it must not mention paths, because clients may not name models by
    path.
    """
    by_folded = {each.lower().replace(":", "-"): each for each in sorted(known)}
    whole = name.lower().replace(":", "-")
    stem = name.lower().partition(":")[0]
    near: list[str] = []
    for text in (whole, stem):
        near = near or difflib.get_close_matches(text, by_folded, n=_MAX_NEAR, cutoff=_LIKENESS)
    near = near or [each for each in by_folded if stem[:4] and each.startswith(stem[:4])][:_MAX_NEAR]
    if near:
        return f"near names: {', '.join(by_folded[each] for each in near)}"
    listed = known if listed is None else listed
    shown = sorted(listed) if isinstance(listed, Set) else list(dict.fromkeys(listed))
    rest = f" and {len(shown) - MAX_KNOWN} more" if len(shown) > MAX_KNOWN else ""
    return f"known names: {', '.join(shown[:MAX_KNOWN])}{rest}, and {others}"


MAX_NAME_CHARS = 1024

_WORD = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_QUANT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}"
_CATALOG = re.compile(rf"(?P<name>{_WORD})(?::(?P<quant>{_QUANT}))?", re.ASCII)
_REPO = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?::(?P<quant>{_QUANT}))?", re.ASCII)
_SEGMENT = re.compile(r"[A-Za-z0-9_(\[][A-Za-z0-9 ._+()\[\]@=,-]{0,190}", re.ASCII)
_HUB_HOST = re.compile(r"(?:hf\.co|huggingface\.co)/(?P<rest>.+)", re.IGNORECASE | re.ASCII)
_LATEST = ":latest"
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
    """A short name that the catalog maps to a repository."""

    name: str
    quant: str | None = None

    def __str__(self) -> str:
        return f"{self.name}:{self.quant}" if self.quant else self.name


@dataclass(frozen=True, slots=True)
class HubName:
    """A model in a repository on the hub, named by file or by quantization. If both are None, `choose` selects it."""

    repo: str
    quant: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        if self.file is not None:
            return f"{self.repo}/{self.file}"
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


ModelName = BuiltinName | LocalPath | CatalogName | HubName


def parse_name(name: str) -> ModelName:
    """Return the parsed form of a name.

    The first rule that fits applies:

    1. A name with control characters, a network path, an address, and a name that is empty or too long are refused.
    2. A name that begins with hf.co/ or huggingface.co/ means a repository, or a file of a repository.
    3. builtin means the bundled model.
    4. A name that looks like a path, or ends in .gguf and is a file, is a path.
    5. Any other name without a slash is of the catalog, with one slash a repository, with more a file of a repository.

    In rules 2 to 5, :latest at the end is ignored. Raise InvalidRequest for a refused name, and for one that has none
    of these forms. Raise ModelNotFound if a name with at most one slash ends in .gguf and is not a file.
    """
    _check_characters(name)
    if name.startswith(("//", "\\\\")):
        raise _invalid(name, "network paths are not opened; copy the model to this machine")
    if "://" in name:
        raise _invalid(name, "give the repository as org/repo, without the address")
    if on_hub := _HUB_HOST.fullmatch(name):
        return _hub_name(on_hub["rest"].removesuffix(_LATEST))
    name = without_latest(name)
    if name == "builtin":
        return BuiltinName()
    if is_path(name):
        return LocalPath(with_home(Path(name)))
    match name.count("/"):
        case 0 | 1 if name.lower().endswith(".gguf"):
            raise ModelNotFound(f"there is no file {name}: check the path", param="model")
        case 0:
            return _catalog_name(name)
        case _:
            return _hub_name(name)


def without_latest(name: str) -> str:
    """Return a name without Ollama's :latest, which means the same as no tag."""
    return name[: -len(_LATEST)] if name.lower().endswith(_LATEST) and len(name) > len(_LATEST) else name


def is_short_name(name: str) -> bool:
    """Whether this can be a name of one word, with or without a tag: an alias, or a name of the catalog."""
    return _CATALOG.fullmatch(name) is not None


def is_file_name(name: str) -> bool:
    """Whether a repository's file name is harmless as a relative path on every platform."""
    return len(name) <= MAX_NAME_CHARS and all(map(_is_segment, name.split("/")))


def is_repo_name(name: str) -> bool:
    """Whether this is a repository name (org/repo) by the hub's rules."""
    match = _REPO.fullmatch(name)
    # The hub forbids "--" and "..". "--" also separates the parts of a cache folder's name.
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


def is_path(name: str) -> bool:
    """Whether a name looks like a path, or is a .gguf file relative to the current folder."""
    if name.startswith(("/", "./", "../", "~", ".\\", "..\\")) or _DRIVE.match(name):
        return True
    try:
        return name.lower().endswith(".gguf") and Path(name).is_file()
    except OSError:  # longer than a file's name can be
        return False


def _catalog_name(name: str) -> CatalogName:
    match = _CATALOG.fullmatch(name)
    if match is None:
        raise _invalid(name, "give builtin, a path to a .gguf, org/repo[:QUANT] or a name from the catalog")
    return CatalogName(match["name"], match["quant"])


def _hub_name(name: str) -> HubName:
    return _repo_name(name) if name.count("/") < 2 else _file_name(name)


def _repo_name(name: str) -> HubName:
    match = _REPO.fullmatch(name)
    if match is None or not is_repo_name(match["repo"]):
        raise _invalid(name, "a repository is org/repo or org/repo:QUANT, of letters, digits, '.', '_' and '-'")
    return HubName(match["repo"], quant=match["quant"])


def _file_name(name: str) -> HubName:
    org, repo, file = name.split("/", 2)
    if not is_repo_name(f"{org}/{repo}") or not is_file_name(file) or not file.lower().endswith(".gguf"):
        raise _invalid(
            name, "there is no such file in the current folder, and one of a repository is org/repo/file.gguf"
        )
    return HubName(f"{org}/{repo}", file=file)


def _invalid(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{name!r} cannot be a model: {why}", param="model")


MAX_SPLITS = 1000

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE | re.ASCII)


def split_stem(name: str) -> str:
    """Return a file name without its part number and suffix."""
    match = _SPLIT_NAME.fullmatch(name)
    if match is not None:
        return match["stem"]
    return name[:-5] if name.lower().endswith(".gguf") else name


def split_names(name: str) -> tuple[str, ...]:
    """Return the names of all parts in order, from the name of any part; (name,) for a file that is not a part.

    llama.cpp opens the first part and finds the others by this rule.
    """
    match = _SPLIT_NAME.fullmatch(name)
    if match is None:
        return (name,)
    no, count = int(match["no"]), int(match["count"])
    if not 1 <= no <= count <= MAX_SPLITS:
        return (name,)
    return tuple(f"{match['stem']}-{part:05d}-of-{count:05d}{match['suffix']}" for part in range(1, count + 1))


def split_paths(path: Path) -> tuple[Path, ...]:
    """Return the paths of all parts in order, from the path of any part; (path,) for a file that is not a part."""
    return tuple(path.with_name(name) for name in split_names(path.name))


# Tried in this order if no quantization is requested. The first are small enough for a device, and good enough.
PREFERRED = (
    *("Q4_K_M", "Q4_0", "Q4_K_S", "Q4_K_XL", "IQ4_NL", "IQ4_XS", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_0", "Q5_1"),
    *("Q8_0", "Q6_K", "MXFP4_MOE", "MXFP4", "Q3_K_M", "Q3_K_L", "Q3_K_S", "IQ3_M", "Q2_K", "BF16", "F16", "F32"),
)
MAX_NAMED = 20

_LABEL = re.compile(
    r"(?:^|[-._/])((?:I?Q[1-8]_(?:[01]|K|XXS|XS|NL|S|M)(?:_(?:XL|XS|S|M|L))?)|MXFP4(?:_MOE)?|NVFP4|TQ[12]_0|BF16|F16|F32)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a repository: its files in order, and its quantization.

    `quant` comes from the name of the file or its folder, in upper case. It is None if neither name contains one.
    """

    files: tuple[str, ...]
    quant: str | None

    @property
    def stem(self) -> str:
        """The name of the first file without part number and suffix."""
        return split_stem(self.files[0])


def variants(files: Iterable[str]) -> tuple[Variant, ...]:
    """Return the models among a repository's files, except projectors, importance matrices and incomplete models."""
    present = {file for file in files if file.lower().endswith(".gguf") and not is_companion(file)}
    firsts = sorted({_parts(file)[0] for file in present})
    models = (Variant(_parts(first), quant_label(first)) for first in firsts)
    return tuple(model for model in models if present.issuperset(model.files))


def choose(models: tuple[Variant, ...], name: HubName, where: str) -> Variant:
    """Return the one model that a name means.

    A name may give a file or a quantization. If it gives neither, return the only model, or else the one whose
    quantization comes first in PREFERRED. Raise ModelNotFound, which lists the choices, if no model or more than one
    fits. `where` says in the error where the models were looked for, for example "on this machine".
    """
    if not models:
        raise ModelNotFound(f"{name.repo} holds no GGUF model {where}", param="model")
    if name.file is not None:
        found = [model for model in models if name.file in model.files]
        return _only(found, models, name, f"{name.repo} has no complete model {name.file} {where}")
    if name.quant is not None:
        found = [model for model in models if _has_quant(model, name.quant)]
        return _only(found, models, name, f"{name.repo} has no {name.quant} {where}")
    if len(models) == 1:
        return models[0]
    for label in PREFERRED:
        found = [model for model in models if model.quant == label]
        if found:
            return _only(found, models, name, "")
    raise _ambiguous(models, name)


def canonical_name(models: tuple[Variant, ...], model: Variant, repo: str) -> HubName:
    """Return the model's name in its repository: by quantization if no other model has the same, else by file."""
    if model.quant is not None and [other.quant for other in models].count(model.quant) == 1:
        return HubName(repo, quant=model.quant)
    return HubName(repo, file=model.files[0])


def quant_label(file: str) -> str | None:
    """Return the quantization in a file's name or in its folder's name, in upper case; None if there is none."""
    path = PurePosixPath(file)
    for text in (split_stem(path.name), path.parent.name):
        match = _LABEL.search(text)
        if match is not None:
            return match[1].upper()
    return None


def _only(found: list[Variant], models: tuple[Variant, ...], name: HubName, none_message: str) -> Variant:
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(tuple(found), name)
    raise ModelNotFound(f"{none_message}; it has {_listed(models, name)}", param="model")


def _ambiguous(models: tuple[Variant, ...], name: HubName) -> ModelNotFound:
    return ModelNotFound(f"{name} could be any of {_listed(models, name)}: name one of them", param="model")


def _listed(models: tuple[Variant, ...], name: HubName) -> str:
    choices = [str(canonical_name(models, model, name.repo)) for model in models[:MAX_NAMED]]
    rest = len(models) - len(choices)
    return ", ".join(choices) + (f" and {rest} more" if rest else "")


def _has_quant(model: Variant, quant: str) -> bool:
    # Unusual labels (UD-Q4_K_XL) are compared with the end of the name.
    wanted = quant.upper()
    return model.quant == wanted or re.search(rf"[-._]{re.escape(wanted)}$", model.stem.upper()) is not None


def _parts(file: str) -> tuple[str, ...]:
    path = PurePosixPath(file)
    return tuple(str(path.with_name(name)) for name in split_names(path.name))


def is_companion(file: str) -> bool:
    """Whether a GGUF file only accompanies a model: a projector for images, or an importance matrix."""
    name = PurePosixPath(file).name.lower()
    return "mmproj" in name or "imatrix" in name
