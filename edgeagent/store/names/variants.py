"""Groups a repository's files into models, and selects a model by quantization. It uses only the files' names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgeagent.errors import ModelNotFound
from edgeagent.store.names.parsing import HubName

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
