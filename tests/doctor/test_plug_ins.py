"""Which plug-in of the portable engine a machine needs, and how one is installed, from a folder and with real pip."""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from edgeagent.cli import engine as command
from edgeagent.cli import main
from edgeagent.doctor import plug_ins, system
from edgeagent.doctor.facts import GpuVendor, Native, Tools
from edgeagent.errors import EdgeAgentError
from edgeagent.types import DeviceInfo

PORTABLE = Native("0.3.36+portable", "0c1e570", backends=("CPU",), is_portable=True, variant="haswell")
GPU = DeviceInfo("Vulkan0", "A GPU", "gpu", 8, 8, backend="Vulkan")


@pytest.mark.parametrize(
    ("gpu", "tools", "name"),
    [
        ("nvidia", Tools("python"), "cuda12"),
        ("nvidia", Tools("python", nvidia_driver=580), "cuda12"),
        ("nvidia", Tools("python", nvidia_driver=590), "cuda13"),
        ("amd", Tools("python"), "vulkan"),
        ("amd", Tools("python", has_rocm=True), "rocm"),
        ("intel", Tools("python"), "vulkan"),
        ("apple", Tools("python"), ""),
    ],
)
def test_the_plug_in_for_a_gpu(gpu: GpuVendor, tools: Tools, name: str) -> None:
    assert plug_ins.plug_in_for(gpu, tools) == name


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:08:32 UTC 2025\n", 580),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build\nGCC version: 12.2.0\n",
            595,
        ),
        ("something else\n", 0),
    ],
)
def test_the_nvidia_driver(tmp_path: Path, text: str, number: int) -> None:
    folder = tmp_path / "proc/driver/nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(text)
    assert system.tools(tmp_path).nvidia_driver == number
    assert system.tools(tmp_path / "another").nvidia_driver == 0


@pytest.fixture(scope="module")
def fresh_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment to copy. Its pip is a copy too if there is one, since installing pip takes seconds."""
    folder = tmp_path_factory.mktemp("fresh") / "environment"
    pip = importlib.util.find_spec("pip")
    options = ["--without-pip"] if pip else []
    subprocess.run([sys.executable, "-m", "venv", *options, str(folder)], check=True)
    if pip and pip.origin:
        (packages,) = [each for each in folder.rglob("site-packages") if "lib64" not in each.parts]
        shutil.copytree(Path(pip.origin).parent, packages / "pip")
    return folder


@pytest.fixture
def environment(fresh_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real virtual environment, whose Python the commands use; return its folder of packages."""
    folder = tmp_path / "environment"
    shutil.copytree(fresh_environment, folder, symlinks=True)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(plug_ins, "installed_bindings", lambda: PORTABLE.bindings)
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip())


def make_wheel(folder: Path, version: str = "0.3.36", platform: str = "any", needs: str = "") -> None:
    folder.mkdir(exist_ok=True)
    info = f"edgeagent_engine_vulkan-{version}.dist-info"
    with zipfile.ZipFile(folder / f"edgeagent_engine_vulkan-{version}-py3-none-{platform}.whl", "w") as wheel:
        wheel.writestr("edgeagent_engines/0c1e570/vulkan/libggml-vulkan.so", b"a library")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: edgeagent-engine-vulkan\nVersion: {version}\n{needs}"
        )
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_a_plug_in_is_installed_from_a_folder(tmp_path: Path, environment: Path) -> None:
    make_wheel(tmp_path / "wheels")
    plug_ins.install("vulkan", str(tmp_path / "wheels"), tmp_path / "state")
    assert (environment / "edgeagent_engines/0c1e570/vulkan/libggml-vulkan.so").read_bytes() == b"a library"


@pytest.mark.slow(seconds=4)
def test_a_wheel_for_another_machine_is_not_installed(tmp_path: Path, environment: Path) -> None:
    make_wheel(tmp_path / "wheels", platform="linux_s390x")
    make_wheel(tmp_path / "wheels", version="0.3.35")
    with pytest.raises(EdgeAgentError, match=r"wheels has no edgeagent-engine-vulkan==0\.3\.36 that fits this machine"):
        plug_ins.install("vulkan", str(tmp_path / "wheels"), tmp_path / "state")


@pytest.mark.slow(seconds=4)
def test_a_page_that_cannot_be_reached_is_not_called_empty(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_RETRIES", "1")
    with socket.socket() as closed:  # it is bound and does not listen, so that nobody else can
        closed.bind(("127.0.0.1", 0))
        page = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        with pytest.raises(EdgeAgentError, match=rf"^{page} cannot be reached: "):
            plug_ins.install("vulkan", page, tmp_path / "state")


def test_what_a_plug_in_needs_and_the_folder_lacks_is_named(tmp_path: Path, environment: Path) -> None:
    make_wheel(tmp_path / "wheels", needs="Requires-Dist: nvidia-cuda-runtime>=13\n")
    remedy = r"; fetch it: pip download --dest \S+wheels 'nvidia-cuda-runtime>=13'$"
    with pytest.raises(
        EdgeAgentError, match=rf"wheels has no nvidia-cuda-runtime>=13 that fits this machine.*{remedy}"
    ):
        plug_ins.install("vulkan", str(tmp_path / "wheels"), tmp_path / "state")


def test_what_cannot_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EdgeAgentError, match="no back end 'opencl'; there are cuda12, cuda13, rocm, vulkan"):
        plug_ins.install("opencl", "", tmp_path / "state")
    monkeypatch.setattr(plug_ins, "installed_bindings", lambda: "0.3.36")
    with pytest.raises(EdgeAgentError, match=r"llama\.cpp was compiled for this machine"):
        plug_ins.install("vulkan", str(tmp_path), tmp_path / "state")
    monkeypatch.setattr(plug_ins, "installed_bindings", lambda: PORTABLE.bindings)
    with pytest.raises(EdgeAgentError, match="nowhere is not a folder"):
        plug_ins.install("vulkan", str(tmp_path / "nowhere"), tmp_path / "state")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    options = rf"--no-index --find-links {re.escape(str(tmp_path))} edgeagent-engine-vulkan==0\.3\.36"
    with pytest.raises(EdgeAgentError, match=rf"run: uv pip install --python \S+ {options}"):
        plug_ins.install("vulkan", str(tmp_path), tmp_path / "state")


def test_no_package_index_is_asked(
    tmp_path: Path, environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stranger could register a plug-in's name at the index that the user's pip asks."""
    make_wheel(tmp_path / "edgeagent-engine-vulkan")
    (wheel,) = (tmp_path / "edgeagent-engine-vulkan").iterdir()
    (wheel.parent / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    monkeypatch.setenv("PIP_INDEX_URL", tmp_path.as_uri())
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(tmp_path / "found"), "--no-deps"]
    subprocess.run([*pip, "edgeagent-engine-vulkan"], check=True)
    assert main(["engine", "install", "vulkan"]) == 2
    assert "the back ends are on no package index" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(EdgeAgentError, match=r"empty has no edgeagent-engine-vulkan==0\.3\.36"):
        plug_ins.install("vulkan", str(tmp_path / "empty"), tmp_path / "state")
    assert not (environment / "edgeagent_engines").exists()


def test_the_list_of_back_ends(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    native = Native("0.3.36+portable", "0c1e570", backends=("Vulkan", "CPU"), devices=(GPU,), is_portable=True)
    monkeypatch.setattr(command, "ask_native", lambda: native)
    monkeypatch.setattr(command, "installed_plug_ins", lambda: {"vulkan": "0.3.36"})
    monkeypatch.setattr(system, "gpus", lambda: frozenset({"intel", "nvidia"}))
    assert main(["engine", "list"]) == 0
    output = capsys.readouterr().out
    rows = {line.split()[0]: line for line in output.splitlines() if line}
    assert rows["vulkan"].split() == ["vulkan", "0.3.36", "yes", "Vulkan0", "(A", "GPU)"]
    assert rows["cuda12"].split() == ["cuda12", "-", "no"]
    assert "edgeagent engine install cuda12 --find-links DIR" in output
    assert "edgeagent engine install vulkan" not in output


def test_a_back_end_that_finds_no_device_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "install", lambda name, source, state_dir: None)
    monkeypatch.setattr(command, "ask_native", lambda: PORTABLE)
    assert main(["engine", "install", "vulkan"]) == 1
    assert "vulkan is installed, but it finds no device" in capsys.readouterr().err
