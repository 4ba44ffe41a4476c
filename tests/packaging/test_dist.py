"""What `make dist` makes: the wheel, the same bytes twice, and a program that starts where it is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import edgeagent
from tests.patience import patient

ROOT = Path(__file__).resolve().parents[2]
METADATA = f"edgeagent-{edgeagent.__version__}.dist-info"


@pytest.fixture(scope="module")
def dist() -> ModuleType:
    """Return packaging/dist.py."""
    spec = importlib.util.spec_from_file_location("dist", ROOT / "packaging" / "dist.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dist"] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made(dist: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel and the sdist of edgeagent."""
    folder = tmp_path_factory.mktemp("dist")
    dist.make_python(folder)
    return folder


@pytest.fixture(scope="module")
def wheel(made: Path) -> zipfile.ZipFile:
    (path,) = made.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_and_the_bundled_models(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "edgeagent").rglob("*.py")}
    assert modules <= names
    for model in ("edgeagent-mini.gguf", "edgeagent-mini-draft.gguf"):
        assert wheel.read(f"edgeagent/_builtin/{model}") == (ROOT / "models" / "builtin" / model).read_bytes()
    assert "edgeagent/_builtin/catalog.toml" in names
    assert "edgeagent/py.typed" in names


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    allowed = (".py", ".gguf", "py.typed", "catalog.toml")
    names = [name for name in wheel.namelist() if not name.startswith((METADATA, "edgeagent/api/page/static/"))]
    strays = [name for name in names if not name.endswith(allowed)]
    assert strays == []
    assert {name.partition("/")[0] for name in wheel.namelist()} == {"edgeagent", METADATA}
    assert sum(entry.file_size for entry in wheel.infolist() if entry.filename.endswith(".gguf")) <= 16 << 20


def test_the_wheel_is_for_any_machine_and_names_its_command(wheel: zipfile.ZipFile) -> None:
    assert "Tag: py3-none-any" in wheel.read(f"{METADATA}/WHEEL").decode()
    assert "edgeagent = edgeagent.cli:main" in wheel.read(f"{METADATA}/entry_points.txt").decode()


def test_the_wheel_needs_no_test_tools(wheel: zipfile.ZipFile) -> None:
    required = [
        line.removeprefix("Requires-Dist: ")
        for line in wheel.read(f"{METADATA}/METADATA").decode().splitlines()
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    ]
    assert any(line.startswith("llama-cpp-python==") for line in required)
    tools = ("pytest", "mypy", "ruff", "hypothesis", "openai", "ollama", "torch", "hatchling")
    assert not [line for line in required if line.startswith(tools)]


@pytest.mark.slow(seconds=3)
def test_a_changed_clock_gives_the_same_bytes(dist: ModuleType, made: Path, tmp_path: Path) -> None:
    """The sdist is unpacked with other times, and makes the same wheel and the same sdist in another order of sets."""
    (sdist,) = made.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    for path in unpacked.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    again = tmp_path / "again"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(again)]
    other_order = {**os.environ, "PYTHONHASHSEED": "1"}  # of sets
    done = subprocess.run(command, cwd=unpacked, env=other_order, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert dist.digests(again) == dist.digests(made)


@pytest.fixture
def parts(dist: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let dist.py make three small parts; return what they write, one after the other."""
    written = ["a", "a"]
    made = iter(written)

    def make_text(target: Path) -> None:
        (target / "text").write_text(next(made), encoding="utf-8")

    monkeypatch.setattr(
        dist,
        "PARTS",
        (
            dist.Part("text", make_text),
            dist.Part("never", make_text, lambda: "there is no tool"),
            dist.Part("checksums", dist.make_checksums),
        ),
    )
    return written


def test_twice_the_same_is_said(
    dist: ModuleType, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dist.main(["--twice", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "dist: never is left out: there is no tool\n" in output
    assert output.endswith("dist: made twice, and 2 files have the same bytes\n")


def test_another_second_time_is_an_error(
    dist: ModuleType, parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts[1] = "b"
    assert dist.main(["--twice", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "dist: made twice, these files differ: SHA256SUMS, text\n"


def test_a_part_that_fails_is_one_message(dist: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without edgeagent's own wheel, pip is given an empty one, and refuses it."""
    (tmp_path / "edgeagent-0-py3-none-any.whl").touch()
    assert dist.main(["offline", "--out", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"dist: {sys.executable} -m pip download ")
    assert "edgeagent-0-py3-none-any.whl" in error and "Traceback" not in error
    with pytest.raises(SystemExit):
        dist.main(["nosuch"])
    assert "there is no part nosuch" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="its compiler is not on PATH")
def test_the_engine_is_built_wherever_a_compiler_is(
    dist: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dist, "portable_engines", lambda version: [])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "clang++")
    assert dist._no_engine() is None
    monkeypatch.delenv("CXX")
    assert "build-essential" in dist._no_engine()


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_the_checksums_can_be_checked(dist: ModuleType, parts: list[str], tmp_path: Path) -> None:
    (tmp_path / "offline").mkdir()
    (tmp_path / "offline" / "some.whl").write_bytes(b"wheel")
    assert dist.main(["text", "checksums", "--out", str(tmp_path)]) == 0
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, "offline/some.whl: OK\ntext: OK\n")
    (tmp_path / "text").write_text("changed", encoding="utf-8")
    assert subprocess.run(["sha256sum", "--check", "--status", "SHA256SUMS"], cwd=tmp_path).returncode == 1


@pytest.fixture(scope="module")
def installed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of a new environment with the wheel in it. It sees this environment's libraries."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    python = programs / ("python.exe" if os.name == "nt" else "python")
    (wheel,) = made.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run([*pip, "--no-compile", str(wheel)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    # Below this environment's own packages: a path file in that folder is not read, so its edgeagent stays unseen.
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(packages, "libraries.pth").write_text("".join(f"{path}\n" for path in libraries), encoding="utf-8")
    return programs


def _new_user(home: Path) -> dict[str, str]:
    kept = ("PATH", "SYSTEMROOT", "TEMP", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {"HOME": str(home)}


def test_an_installed_program_tells_its_version(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "edgeagent"), "--version"]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=_new_user(tmp_path))
    assert (told.stdout, told.stderr, told.returncode) == (f"edgeagent {edgeagent.__version__}\n", "", 0)
    code = "import edgeagent; print(edgeagent.__file__)"
    where = subprocess.run([installed / "python", "-c", code], capture_output=True, text=True, cwd=tmp_path).stdout
    assert installed.parent in Path(where.strip()).parents


def test_an_installed_program_answers_with_the_model_in_its_wheel(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "edgeagent"), "run", "builtin", "hi", "--temperature", "0"]
    quick = {"EDGEAGENT_ENGINE__FLASH_ATTENTION": "off", "EDGEAGENT_ENGINE__THREADS": "1"}
    environment = _new_user(tmp_path) | quick
    asked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=patient(110))
    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.strip()
