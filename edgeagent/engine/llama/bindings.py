"""llama.cpp's C API, from the ctypes module `llama_cpp.llama_cpp` of llama-cpp-python.

The rest of that package is not imported. Its `__init__` imports a disk cache that unpickles files (CVE-2025-69872), and
takes half a second. So an empty `llama_cpp` package is registered, from which only the ctypes module is imported.

Importing this module loads the native library, so no module that the daemon process imports may import it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edgeagent.errors import NOT_INSTALLED, InternalError
from edgeagent.types import DeviceInfo


def _load() -> Any:
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.submodule_search_locations is None:
        raise InternalError(NOT_INSTALLED)
    # An abort in ggml must end the process at once; with this unset it would attach a debugger and print for seconds.
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    if "llama_cpp" not in sys.modules:
        package = types.ModuleType("llama_cpp")
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = spec
        sys.modules["llama_cpp"] = package
    return importlib.import_module("llama_cpp.llama_cpp")


lib = _load()

KV_TYPES = {  # ggml_type
    "auto": 1,
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "bf16": 30,
}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
ERROR_LEVEL = 4  # ggml_log_level
_Q8_0 = 8  # ggml_type
_last_errors: deque[str] = deque(maxlen=8)
# The abort flags of all contexts. While one is set, llama.cpp reports the interruption as an error with words of
# _INTERRUPTIONS. Such errors are not logged.
abort_flags: list[ctypes.Array[ctypes.c_char]] = []
_INTERRUPTIONS = ("failed to compute graph", "graph_compute_async failed", "failed to encode", "failed to decode")


def _log(level: int, text: bytes, _: object) -> None:
    # Less severe messages describe the model, and the daemon logs its own description of it.
    if level != ERROR_LEVEL:
        return
    line = text.decode(errors="replace").strip()
    is_interrupted = any(flag.value for flag in abort_flags)
    if not (is_interrupted and any(words in line for words in _INTERRUPTIONS)):
        _last_errors.append(line)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


_log_callback = lib.llama_log_callback(_log)  # kept alive: llama.cpp holds the pointer


def listen() -> None:
    """Send llama.cpp's log messages to this module. This replaces any other listener."""
    lib.llama_log_set(_log_callback, None)


listen()


def last_error() -> str:
    """Return the error messages that llama.cpp logged since the last call, at most eight; "" if there are none."""
    messages = "; ".join(dict.fromkeys(_last_errors))
    _last_errors.clear()
    return messages


_DEVICE_KINDS = {0: "cpu", 1: "gpu", 2: "gpu", 3: "accelerator"}
_INTEGRATED = 2


class _DeviceProps(ctypes.Structure):
    """The struct ggml_backend_dev_props of ggml-backend.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_bool * 16),  # five, and room for more
    )


@cache
def _ggml(name: str) -> Any:
    """Return one of ggml's shared libraries by its name, such as "ggml-base". The file's name differs by platform.

    The name may end in `*`: then it is the loaded library whose name begins so.

    A wheel contains copies of a library under up to three names. llama.cpp has loaded one of these copies, and the same
    copy must be returned: another one would have its own registry and buffer types. Raise InternalError if the library
    is missing.
    """
    folder = Path(sys.modules["llama_cpp"].__path__[0]) / "lib"
    if hasattr(os, "RTLD_NOLOAD"):
        for path in (*folder.glob(f"lib{name}.so*"), *folder.glob(f"lib{name}.*dylib")):
            with contextlib.suppress(OSError):
                return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD)
    prefixes, suffixes = ("lib", ""), (".so", ".dylib", ".dll")
    for path in (folder / f"{prefix}{name}{suffix}" for prefix in prefixes for suffix in suffixes):
        if path.exists():
            return ctypes.CDLL(str(path))
    raise InternalError(f"{name} is missing from {folder}; `edgeagent doctor` shows how to install llama.cpp again")


def commit() -> str:
    """Return the llama.cpp commit of the library, as 7 hex digits; "unknown" if the build did not record it."""
    function = _ggml("ggml-base").ggml_commit
    function.restype = ctypes.c_char_p
    return str(function().decode().removesuffix("-dirty"))


# The portable engine has one library for each generation of CPUs, and ggml chooses the best one that this CPU can run.
# A build for one machine has its back ends linked in, and no plug-in is loaded.
#
# Only two folders are searched: llama_cpp/lib, and that of the plug-in wheels beside llama_cpp.
# ggml_backend_load_all() is not called, since it also searches the folder of the program and the current folder. ggml
# also loads the library that GGML_BACKEND_PATH names: a user's own choice, like PYTHONPATH.
PLUG_IN_FOLDER = "edgeagent_engines"
"""Plug-in wheels put their library into this folder's COMMIT/NAME. COMMIT: the llama.cpp that it was compiled with."""
CPU_VARIABLE = "EDGEAGENT_CPU_VARIANT"
"""This environment variable chooses the library for a generation of CPUs: haswell, zen4 and others."""
_PLUG_IN_ENDING = ".dll" if os.name == "nt" else ".so"  # on macOS too
_CPU = 0  # ggml_backend_dev_type


def _load_plug_ins(ggml: Any, package: Path, commit: str) -> bool:
    """Load the back ends of a portable engine and its plug-ins; return False if the back ends are linked in.

    `ggml` is the library of that name, and `package` the folder of llama_cpp. A plug-in that cannot be loaded is left
    out, and ggml logs why. Raise InternalError if no library runs on this CPU.
    """
    if ggml.ggml_backend_reg_count():
        return False
    load, find = ggml.ggml_backend_load, ggml.ggml_backend_dev_by_type
    load.restype = find.restype = ctypes.c_void_p
    for plug_in in plug_ins(package.parent / PLUG_IN_FOLDER / commit):
        load(os.fsencode(plug_in))
    lib = package / "lib"
    if wanted := os.environ.get(CPU_VARIABLE):
        path = cpu_variants(lib).get(wanted)
        if path is None or not load(os.fsencode(path)):
            why = f"this CPU cannot run {path.name}" if path else f"llama.cpp has {', '.join(cpu_variants(lib))}"
            raise InternalError(f"{CPU_VARIABLE}={wanted}: {why}")
    else:
        ggml.ggml_backend_load_all_from_path(os.fsencode(lib))
    if not find(_CPU):
        raise InternalError(f"no library in {lib} runs on this CPU; `edgeagent doctor` shows how to compile one")
    return True


def plug_ins(folder: Path) -> Iterator[Path]:
    """Yield the libraries in the folder of one commit. Of several with one file name, the last in alphabetical order.

    The plug-ins cuda12 and cuda13 have the same file name. Together they would list each GPU twice.
    """
    yield from {path.name: path for path in sorted(folder.glob(f"*/*ggml-*{_PLUG_IN_ENDING}"))}.values()


def cpu_variants(lib: Path) -> dict[str, Path]:
    """Return the libraries for generations of CPUs by their names; empty if this is not a portable engine."""
    paths = sorted(lib.glob(f"*ggml-cpu-*{_PLUG_IN_ENDING}"))
    return {path.name.partition("ggml-cpu-")[2].removesuffix(_PLUG_IN_ENDING): path for path in paths}


IS_PORTABLE = _load_plug_ins(_ggml("ggml"), Path(sys.modules["llama_cpp"].__path__[0]), commit())
PLUG_IN_TROUBLE = last_error()
"""What ggml said about plug-ins that cannot be loaded; "" if it loaded all."""


Convert = Callable[[int, int, int], object]
"""A function that converts values to another type. It takes a source address, a target address and how many values."""


_declare_convert = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


@dataclass(frozen=True, slots=True)
class RowConversions:
    """ggml's functions that convert values between types. llama-cpp-python does not declare them."""

    f16_to_f32: Convert
    f32_to_f16: Convert
    f32_to_q8_0: Convert
    q8_0_to_f32: Convert


@cache
def row_conversions() -> RowConversions:
    """Return the conversions that are optimized for this processor; portable ones if its library is not found."""
    base, declare = _ggml("ggml-base"), _declare_convert
    from_q8_0 = declare(("dequantize_row_q8_0", base))
    try:
        cpu = _ggml("ggml-cpu-*" if IS_PORTABLE else "ggml-cpu")
    except InternalError:
        to_f32, to_f16 = declare(("ggml_fp16_to_fp32_row", base)), declare(("ggml_fp32_to_fp16_row", base))
        return RowConversions(to_f32, to_f16, declare(("quantize_row_q8_0_ref", base)), from_q8_0)
    cpu.ggml_cpu_init()  # it fills a table that the conversions of f16 read; more than once does no harm
    traits = cpu.ggml_get_type_traits_cpu
    traits.restype, traits.argtypes = ctypes.POINTER(ctypes.c_void_p), [ctypes.c_int]
    from_float = declare(traits(_Q8_0)[0])
    to_f32, to_f16 = declare(("ggml_cpu_fp16_to_fp32", cpu)), declare(("ggml_cpu_fp32_to_fp16", cpu))
    return RowConversions(to_f32, to_f16, from_float, from_q8_0)


def cpu_variant() -> str:
    """Return which library for a generation of CPUs a portable engine has loaded, such as "haswell"; "" if unknown."""
    with contextlib.suppress(InternalError):
        if IS_PORTABLE:
            return Path(_ggml("ggml-cpu-*")._name).stem.partition("ggml-cpu-")[2]
    return ""


def system_description() -> str:
    """Return llama.cpp's line about the instruction sets and backends that it uses."""
    return str(lib.llama_print_system_info().decode())


def backends() -> tuple[str, ...]:
    """Return the names of the backends that llama.cpp was compiled with."""
    ggml, base = _ggml("ggml"), _ggml("ggml-base")
    ggml.ggml_backend_reg_count.restype = ctypes.c_size_t
    get, name = ggml.ggml_backend_reg_get, base.ggml_backend_reg_name
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    return tuple(name(get(index)).decode(errors="replace") for index in range(ggml.ggml_backend_reg_count()))


def devices() -> tuple[DeviceInfo, ...]:
    """Return the compute devices that llama.cpp sees, in its order."""
    ggml, base = _ggml("ggml"), _ggml("ggml-base")
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    get = ggml.ggml_backend_dev_get
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    describe, backend, name = (
        base.ggml_backend_dev_get_props,
        base.ggml_backend_dev_backend_reg,
        base.ggml_backend_reg_name,
    )
    describe.argtypes = [ctypes.c_void_p, ctypes.POINTER(_DeviceProps)]
    backend.restype, backend.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        device, props = get(index), _DeviceProps()
        describe(device, ctypes.byref(props))
        found.append(
            DeviceInfo(
                name=_text(props.name),
                description=_text(props.description),
                kind=_DEVICE_KINDS.get(props.type, "accelerator"),  # type: ignore[arg-type]
                memory_total_bytes=props.memory_total,
                memory_free_bytes=props.memory_free,
                is_integrated=props.type == _INTEGRATED,
                backend=_text(name(backend(device))),
                id=_text(props.device_id),
            )
        )
    return tuple(found)


def device_named(name: str) -> int | None:
    """Return llama.cpp's pointer to a compute device; None if there is none with this name."""
    find = _ggml("ggml").ggml_backend_dev_by_name
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    device: int | None = find(name.encode())
    return device


class _GgufParams(ctypes.Structure):
    """The struct gguf_init_params of gguf.h."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


class _TypeTraits(ctypes.Structure):
    """The struct ggml_type_traits of ggml.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block_values", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a file has the values of a tensor. `to_f32` converts them, see Convert; None: they are f32."""

    offset: int
    num_bytes: int
    block_values: int
    block_bytes: int
    to_f32: Convert | None

    def row_bytes(self, num_values: int) -> int:
        """Return how many bytes `num_values` values take."""
        return num_values // self.block_values * self.block_bytes


def find_tensor(path: Path, name: str) -> Tensor | None:
    """Return where a GGUF file has a tensor; None if it has none of this name. This reads the file's header.

    Raise InternalError if ggml cannot read it.
    """
    base, header_type = _ggml("ggml-base"), ctypes.c_void_p
    for function, result, arguments in (
        ("gguf_init_from_file", header_type, [ctypes.c_char_p, _GgufParams]),
        ("gguf_find_tensor", ctypes.c_int64, [header_type, ctypes.c_char_p]),
        ("gguf_get_data_offset", ctypes.c_size_t, [header_type]),
        ("gguf_get_tensor_offset", ctypes.c_size_t, [header_type, ctypes.c_int64]),
        ("gguf_get_tensor_size", ctypes.c_size_t, [header_type, ctypes.c_int64]),
        ("gguf_get_tensor_type", ctypes.c_int, [header_type, ctypes.c_int64]),
        ("gguf_free", None, [header_type]),
        ("ggml_get_type_traits", ctypes.POINTER(_TypeTraits), [ctypes.c_int]),
    ):
        declared = getattr(base, function)
        declared.restype, declared.argtypes = result, arguments
    header = base.gguf_init_from_file(str(path).encode(), _GgufParams(True, None))
    if not header:
        raise InternalError(f"ggml cannot read the header of {path}")
    try:
        index = base.gguf_find_tensor(header, name.encode())
        if index < 0:
            return None
        traits = base.ggml_get_type_traits(base.gguf_get_tensor_type(header, index)).contents
        convert = _declare_convert(traits.to_float) if traits.to_float else None
        offset = base.gguf_get_data_offset(header) + base.gguf_get_tensor_offset(header, index)
        size = base.gguf_get_tensor_size(header, index)
        return Tensor(offset, size, traits.block_values, traits.block_bytes, convert)
    finally:
        base.gguf_free(header)


def has_tensor(path: Path, name: str) -> bool:
    """Whether a GGUF file has a tensor of this name. This reads the file's header; raise InternalError if it cannot."""
    return find_tensor(path, name) is not None


class BufferOverride(ctypes.Structure):
    """The struct llama_model_tensor_buft_override of llama.h: tensors with matching names get a buffer of this type."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


@cache
def cpu_buffer_type() -> int:
    """Return a pointer to ggml's buffer type for host memory."""
    function = _ggml("ggml-base").ggml_backend_cpu_buffer_type
    function.restype = ctypes.c_void_p
    return int(function())


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")
