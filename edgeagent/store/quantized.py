"""Plans a quantized copy of a model, and gives the copy its final name once it is complete."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeagent.config import StoreConfig
from edgeagent.errors import ConfigError, InvalidRequest, StoreError
from edgeagent.sizes import size_text
from edgeagent.store.gguf.header import GgufHeader, validate_model
from edgeagent.store.gguf.tensor_types import FILE_TYPES
from edgeagent.store.names.split import split_stem
from edgeagent.store.names.variants import quant_label
from edgeagent.store.resolve import Found

# The types that need no importance matrix, from the most accurate to the smallest.
TYPES = (
    *("F32", "BF16", "F16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0"),
    *("IQ4_NL", "IQ4_XS", "MXFP4_MOE", "Q3_K_L", "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_S", "Q2_K"),
)
_NEED_A_MATRIX = ("IQ3_XS", "IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S", "Q2_K_S")
_UNQUANTIZED = frozenset({"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"})
# Space for metadata and for the file system itself.
_MARGIN_BYTES = 64 << 20
_TEMPORARY = re.compile(r"\..+\.(?P<pid>\d+)-[0-9a-f]{8}\.part")


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """The source, the type and the path (`target`) of a quantized copy.

    `name`, `sources` and `header` are those of the source. `quant` is the name of the copy's type, `file_type` is
    llama.cpp's number for it. `quantized_before` is the source's type if the source is already quantized; otherwise it
    is empty.
    """

    name: str
    sources: tuple[Path, ...]
    header: GgufHeader
    quant: str
    file_type: int
    target: Path
    quantized_before: str


def type_number(name: str) -> tuple[str, int]:
    """Return a type's name and llama.cpp's number for it. Case does not matter.

    Raise ConfigError, which suggests similar types, if the type is unknown or cannot be made here.
    """
    wanted = name.upper()
    if wanted in TYPES:
        return wanted, next(number for number, label in FILE_TYPES.items() if label == wanted)
    if wanted in _NEED_A_MATRIX:
        raise ConfigError(f"{wanted} needs an importance matrix, which is not made here: choose {_near(wanted)}")
    raise ConfigError(f"{name[:40]!r} is not a type: near ones are {_near(wanted)}; all: {', '.join(TYPES)}")


def _near(wanted: str) -> str:
    near = difflib.get_close_matches(wanted, TYPES, n=3, cutoff=0.4)
    return ", ".join(near or ("Q4_K_M", "Q8_0"))


def plan(found: Found, type_name: str, out: Path | None, store: StoreConfig) -> QuantizePlan:
    """Return the plan for a quantized copy of a model.

    `out` is the copy's file or folder; see `_target`. Raise ConfigError for a wrong type, or if the copy's name is
    wrong or would replace the model. Raise ModelNotFound or ModelLoadFailed if the model's file is gone or unusable.
    """
    quant, number = type_number(type_name)
    header = validate_model(found.paths[0])
    types = {name for name, _ in header.tensor_types}
    before = header.quant if types - _UNQUANTIZED else ""
    target = _target(found, quant, out, store)
    if any(_is_same(target, source) for source in found.paths):
        raise ConfigError(f"{target} is the model itself; choose another name")
    return QuantizePlan(found.name, found.paths, header, quant, number, target, before)


def _target(found: Found, quant: str, out: Path | None, store: StoreConfig) -> Path:
    """Return the path of the copy. If `out` is given, this is `out`, or a file in `out` if that is a folder.

    Otherwise a model that was found by a path, by an alias or in the models folder gets its copy in its own folder. The
    copy of any other model (imported, builtin, in the hub's cache) goes to the models folder, or to the current folder
    if no models folder is configured. Raise ConfigError if `out` is not a folder and does not end in .gguf.
    """
    name = f"{_without_label(split_stem(found.paths[0].name))}-{quant}.gguf"
    if out is not None:
        target = out / name if out.is_dir() else out
        if not target.name.lower().endswith(".gguf"):
            raise ConfigError(f"{target} must end in .gguf, as files of models do")
        return target
    if found.origin in ("alias", "folder", "path"):
        return found.paths[0].with_name(name)
    return (store.models_dir or Path.cwd()) / name


def _without_label(stem: str) -> str:
    label = quant_label(f"{stem}.gguf")
    return stem[: -len(label)].rstrip("-._") or stem if label and stem.upper().endswith(label) else stem


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def check_room(plan: QuantizePlan, size_bytes: int | None, free: Callable[[Path], Any] = shutil.disk_usage) -> None:
    """Raise StoreError if the copy does not fit on the target's disk, or if the target's folder cannot be used.

    `size_bytes` is the expected size of the copy. If it is None, the size of the source is used.
    """
    needed = (size_bytes if size_bytes is not None else plan.header.size_bytes) + _MARGIN_BYTES
    folder = plan.target.parent
    try:
        free_bytes = free(folder).free
    except OSError as error:
        raise StoreError(f"{folder} cannot be used: {error.strerror}") from None
    if free_bytes < needed:
        raise StoreError(
            f"{plan.target.name} needs {size_text(needed)} and {folder} has {size_text(free_bytes)} free: free some "
            "space, choose a smaller type, or give another folder as OUT"
        )


@contextmanager
def being_written(plan: QuantizePlan, *, overwrite: bool) -> Iterator[Path]:
    """Create an empty file beside the plan's target, and provide its path. The `with` block fills the file.

    After the block, the file is renamed to the target if it is a complete model. Otherwise it is deleted. Unfinished
    files of processes that no longer run are deleted before the block.

    Raise InvalidRequest if the target exists and `overwrite` is False. Raise StoreError if the file cannot be written
    or lacks tensors, and ModelLoadFailed if it is not a valid model.
    """
    _check_free(plan.target, overwrite=overwrite)
    _sweep(plan.target.parent)
    draft = plan.target.with_name(f".{plan.target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield draft
        _check_whole(plan, draft)
        _flush(draft)
        _check_free(plan.target, overwrite=overwrite)
        draft.replace(plan.target)
    except OSError as error:
        raise StoreError(f"{plan.target} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _check_free(target: Path, *, overwrite: bool) -> None:
    if target.exists() and not overwrite:
        raise InvalidRequest(f"{target} exists; --force replaces it")


def _check_whole(plan: QuantizePlan, draft: Path) -> None:
    header = validate_model(draft)
    if header.num_tensors != plan.header.num_tensors or header.architecture != plan.header.architecture:
        raise StoreError(
            f"the result has {header.num_tensors} tensors of {plan.header.num_tensors}, so it was not kept"
        )


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Delete the unfinished files of processes that no longer run. On Windows nothing is deleted."""
    with suppress(OSError):
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and not _is_running(int(match["pid"])):
                path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
