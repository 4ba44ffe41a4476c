"""Makes a quantized copy of a model: plans it, has a child process write it, and names it once it is complete.

The child runs this module too: `python -m edgeagent.quantize`. In the sandbox it may only read the model and write one
file. Its order is one line of JSON on stdin. Its replies are lines of JSON on stdout: first the size of the quantized
tensors (null if unknown), then the progress, at the end success or an error. After the size it waits for the line "go".
"""

from __future__ import annotations

import ctypes
import difflib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import psutil

from edgeagent.config import StoreConfig
from edgeagent.errors import ConfigError, EdgeAgentError, InvalidRequest, ModelLoadFailed, StoreError
from edgeagent.store.gguf.header import GgufHeader, validate_model
from edgeagent.store.gguf.tables import FILE_TYPES
from edgeagent.store.library import Found
from edgeagent.store.names.parsing import quant_label, split_stem
from edgeagent.units import size_text
from edgeagent.worker.child_process import claim_stdout, end_with_parent, ignore_interrupts, lower_thread_priority
from edgeagent.worker.exit_cause import describe_exit, num_oom_kills
from edgeagent.worker.parent.environment import worker_environment
from edgeagent.worker.sandbox.sandbox import enclose, set_limits

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
_COMMAND = (sys.executable, "-P", "-m", "edgeagent.quantize")
# Lines of llama.cpp's log: `[  12/ 290]  blk.0.attn_q.weight - [...]` before each tensor, and one with the size.
_TENSOR = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")
_SIZE = re.compile(r"quant size\s*=\s*([\d.]+) MiB")


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
    """Delete the unfinished files of processes that no longer run."""
    with suppress(OSError):
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match and not psutil.pid_exists(int(match["pid"])):
                path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Order:
    """The parameters of a quantization.

    `sources` are the model's file, or all files of a split model in order. `target` must exist and be empty.
    `file_type` is llama.cpp's number for the type of quantization. If `num_threads` is 0, all usable cores are used.
    `is_enclosed`: the process runs in the sandbox.
    """

    sources: tuple[Path, ...]
    target: Path
    file_type: int
    num_threads: int = 0
    allow_requantize: bool = False
    is_enclosed: bool = True


def quantize(
    order: Order,
    check_size: Callable[[int | None], None],
    on_tensor: Callable[[int, int], None],
    *,
    command: Sequence[str] = _COMMAND,
) -> None:
    """Quantize the sources into the target. `on_tensor` gets the number of finished tensors and the total.

    Before anything is written, `check_size` gets the size of the quantized tensors in bytes; None if unknown. An
    exception from `check_size` or `on_tensor` ends the process and is passed on. Raise ModelLoadFailed if llama.cpp
    refuses the model, or if the process ends early.
    """
    oom_kills = num_oom_kills()
    with tempfile.TemporaryFile() as stderr, _started(command, stderr) as process:
        assert process.stdin is not None and process.stdout is not None
        _send(process.stdin, json.dumps(asdict(order), default=str))
        is_done = False
        for line in process.stdout:
            reply = _reply(line)
            if "size_bytes" in reply:
                check_size(reply["size_bytes"])
                _send(process.stdin, "go")
            elif "total" in reply:
                on_tensor(reply["done"], reply["total"])
            elif "error" in reply:
                raise ModelLoadFailed(f"{order.sources[0]} cannot be quantized: {reply['error']}", param="model")
            is_done = is_done or bool(reply.get("is_done"))
        code = process.wait()
        if not is_done:
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - (64 << 10)))
            said = stderr.read().decode(errors="replace")
            cause = describe_exit(code, said, has_seen_prompts=False, num_oom_kills=num_oom_kills() - oom_kills)
            raise ModelLoadFailed(f"{order.sources[0]} cannot be quantized: its process ended: {cause}", param="model")


@contextmanager
def _started(command: Sequence[str], stderr: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(  # noqa: S603 our own module
        command,
        env=worker_environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        encoding="utf-8",
        errors="replace",
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _send(stdin: IO[str], line: str) -> None:
    with suppress(OSError):  # the process has ended, which its exit code explains
        stdin.write(f"{line}\n")
        stdin.flush()


def _reply(line: str) -> dict[str, Any]:
    try:
        reply = json.loads(line)
    except ValueError:
        return {}
    return reply if isinstance(reply, dict) else {}


class _Quantizer:
    """llama.cpp's quantization of one file into another, in the child. It redirects llama.cpp's log."""

    def __init__(self, order: Order, on_tensor: Callable[[int, int], None]) -> None:
        # The daemon and the command line load no native code, so only the child imports it, in the sandbox.
        from edgeagent.engine.llama import bindings
        from edgeagent.engine.llama.cores import num_usable_cores

        self._bindings = bindings
        self._order = order
        self._on_tensor = on_tensor
        self._size_bytes: int | None = None
        self._errors: list[str] = []
        self._log = bindings.lib.llama_log_callback(self._read)  # kept alive: llama.cpp holds the pointer
        self._params = bindings.lib.llama_model_quantize_default_params()
        self._params.ftype = order.file_type
        self._params.nthread = order.num_threads or num_usable_cores()
        self._params.allow_requantize = order.allow_requantize
        self._params.max_buf_size = 1 << 30  # of the rows that are converted at a time; llama.cpp's default is 8 GiB

    def size_bytes(self) -> int | None:
        """Return how many bytes the result's tensors will have. Return None if llama.cpp does not report it.

        Raise ModelLoadFailed if llama.cpp fails.
        """
        report, self._on_tensor = self._on_tensor, lambda _done, _all: None
        self._run(Path(os.devnull), is_dry=True)
        self._on_tensor = report
        return self._size_bytes

    def write(self) -> None:
        """Write the result over the order's target. Raise ModelLoadFailed if llama.cpp fails."""
        self._run(self._order.target, is_dry=False)

    def _run(self, target: Path, *, is_dry: bool) -> None:
        self._params.dry_run = is_dry
        self._errors.clear()
        self._bindings.lib.llama_log_set(self._log, None)
        paths = str(self._order.sources[0]).encode(), str(target).encode()
        status = self._bindings.lib.llama_model_quantize(*paths, ctypes.byref(self._params))
        self._bindings.listen()
        if status != 0:
            raise ModelLoadFailed("; ".join(dict.fromkeys(self._errors)) or "llama.cpp gives no reason", param="model")

    def _read(self, level: int, text: bytes, _: object) -> None:
        line = text.decode(errors="replace").strip()
        if level == 4:  # an error, in ggml_log_level
            self._errors.append(_readable_error(line))
        elif found := _TENSOR.match(line):
            self._on_tensor(int(found[1]), int(found[2]))
        elif found := _SIZE.search(line):
            self._size_bytes = round(float(found[1]) * (1 << 20))


def _readable_error(line: str) -> str:
    """Return a readable form of an error in llama.cpp's log. If a write fails, the log does not give the reason."""
    if "iostream error" in line:
        return "the result cannot be written: the disk is full, or a limit for the size of files is reached"
    return line.removeprefix("llama_model_quantize: failed to quantize: ")


def main() -> int:
    """Quantize the model that stdin names; return the exit code. This is the child process."""
    end_with_parent()
    ignore_interrupts()  # the parent ends this process
    set_limits()
    lower_thread_priority()
    fields = json.loads(sys.stdin.readline())
    fields |= {"sources": tuple(map(Path, fields["sources"])), "target": Path(fields["target"])}
    order = Order(**fields)
    replies = claim_stdout()
    if order.is_enclosed:
        enclose(order.sources, [order.target])
    try:
        quantizer = _Quantizer(order, lambda done, total: _write(replies, done=done, total=total))
        _write(replies, size_bytes=quantizer.size_bytes())
        if sys.stdin.readline() != "go\n":
            return 1
        quantizer.write()
    except EdgeAgentError as error:
        _write(replies, error=error.message)
        return 1
    _write(replies, is_done=True)
    return 0


def _write(replies: BinaryIO, **fields: Any) -> None:
    replies.write(json.dumps(fields).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    code = main()
    # Skip the clean-up: llama.cpp's threads have ended, and its static objects need none.
    os._exit(code)
