"""What `edgeagent doctor` reads from a machine: planted processors and GPUs, folders, ports, a broken llama.cpp."""

from __future__ import annotations

import shutil
import socket
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeagent.config import ServerConfig
from edgeagent.doctor import system
from edgeagent.doctor.native import ask_native
from edgeagent.doctor.system import look_at, look_at_port


def test_the_real_llama_cpp_reports_what_it_is() -> None:
    native = ask_native()
    assert native.problem is None
    assert native.commit and native.bindings
    assert "CPU" in native.backends
    assert [device.kind for device in native.devices].count("cpu") == 1
    assert native.sandbox is not None


BROKEN = {
    "raise ImportError('libggml.so: no such file')": "ImportError: libggml.so: no such file",
    "import os, signal; os.kill(os.getpid(), signal.SIGILL)": "it was compiled for another CPU",
    "import os; os.abort()": "it crashed",
}


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("fault, why", BROKEN.items(), ids=["import", "illegal instruction", "abort"])
def test_a_broken_llama_cpp_is_told(tmp_path: Path, fault: str, why: str) -> None:
    native = ask_native(environment={"PYTHONPATH": plant(tmp_path, fault)})
    assert native.problem is not None and why in native.problem
    # The answers that the process sent before it ended are kept.
    assert native.sandbox is not None and native.commit == ""


def test_a_llama_cpp_that_hangs_is_told(tmp_path: Path) -> None:
    planted = plant(tmp_path, "import time; time.sleep(60)")
    native = ask_native(environment={"PYTHONPATH": planted}, timeout_s=1.0)
    assert native.problem == "it did not load within 1 s"


def plant(folder: Path, fault: str) -> str:
    """Return a folder with a broken llama_cpp that Python imports instead of the real one."""
    package = folder / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "llama_cpp.py").write_text(fault)
    return str(folder)


CPUINFO = {
    "model name\t: Xeon\nflags\t\t: fpu avx2 AVX512F\n\nmodel name\t: Xeon\n": {"fpu", "avx2", "avx512f"},
    "processor : 0\nFeatures\t: fp asimd asimddp\n": {"fp", "asimd", "asimddp"},
}


@pytest.mark.parametrize("text, flags", CPUINFO.items(), ids=["x86", "arm"])
def test_the_flags_of_a_processor(tmp_path: Path, text: str, flags: set[str]) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert system.cpu_flags(tmp_path, "linux") == flags


def test_the_flags_of_a_mac(tmp_path: Path) -> None:
    rows = "machdep.cpu.features: SSE3 AVX1.0 FMA\nhw.optional.arm.FEAT_DotProd: 1\nhw.optional.arm.FEAT_SME: 0\n"
    assert system._flags_of_sysctl(rows) == {"sse3", "avx1.0", "fma", "feat_dotprod"}


def test_the_gpus_of_a_machine(tmp_path: Path) -> None:
    assert system.gpus(tmp_path, "linux") == set()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    for number, vendor in enumerate(("0x1002", "0x8086", "0x1af4")):
        device = tmp_path / f"sys/class/drm/card{number}/device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
    assert system.gpus(tmp_path, "linux") == {"nvidia", "amd", "intel"}
    assert system.gpus(tmp_path, "darwin", "arm64") == {"apple"}
    assert system.gpus(tmp_path, "darwin", "x86_64") == set()


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    folder = look_at(tmp_path / "a" / "b", is_measured=True)
    assert not folder.is_there and folder.is_writable and folder.is_own and folder.problem is None
    assert folder.free_bytes > 0 and not (tmp_path / "a").exists()


def test_a_folder_with_files(tmp_path: Path) -> None:
    (tmp_path / "block").write_bytes(b"x" * 100)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "block").write_bytes(b"x" * 1000)
    assert look_at(tmp_path, is_measured=True).used_bytes == 1100
    assert look_at(tmp_path / "block").problem == "it is a file, not a folder"
    below = look_at(tmp_path / "block" / "cache")
    assert below.problem is not None and "is a file" in below.problem


def test_a_full_disk(tmp_path: Path) -> None:
    full = look_at(tmp_path, disk_usage=lambda _: SimpleNamespace(total=1000, used=1000, free=0))
    assert (full.free_bytes, full.total_bytes) == (0, 1000)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeagent.doctor.system.os.access", lambda *_: False)  # root may write anywhere
    assert not look_at(tmp_path).is_writable


def test_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    def fail(_: Path) -> object:
        raise OSError(5, "Input/output error")

    assert look_at(tmp_path, disk_usage=fail).problem == "Input/output error"
    assert look_at(tmp_path, disk_usage=shutil.disk_usage).problem is None


def test_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "ANSWER_TIMEOUT_S", 0.01)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        number = listener.getsockname()[1]
        taken = look_at_port(ServerConfig(port=number), None)
        assert taken.state == "taken"
        if sys.platform == "linux":
            assert "process" in taken.holder
        assert look_at_port(ServerConfig(port=number), number).state == "ours"
    assert look_at_port(ServerConfig(port=0), None).state == "free"
    assert look_at_port(ServerConfig(host="192.0.2.1", port=8127), None).state == "not ours"


def test_a_port_of_a_program_that_speaks_no_http() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
                connection.recv(1024)

        thread = threading.Thread(target=greet)
        thread.start()
        assert look_at_port(ServerConfig(port=listener.getsockname()[1]), None).state == "taken"
        thread.join()
