"""The Debian package, made from small wheels. `make test-install` installs the real one."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgeagent.cli.commands import COMMANDS
from edgeagent.cli.service_files import PACKAGED_PROGRAM, packaged_files
from tests.packaging.wheelhouse import PACKAGING, make_wheel, small_wheels

sys.path.insert(0, str(PACKAGING))
import deb
import manual
import program_tree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="for Debian")
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.delenv("DEBEMAIL", raising=False)
    return small_wheels(tmp_path / "wheels")


@pytest.fixture
def root(wheels: Path, tmp_path: Path) -> Path:
    deb.fill(tmp_path / "root", program_tree.wheels_in(wheels), "3.11", 1700000000)
    return tmp_path / "root"


def fields(control: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in control.splitlines() if not line.startswith(" "))


def test_the_control_file_says_what_the_package_needs(root: Path) -> None:
    control = fields((root / "DEBIAN/control").read_text())
    assert control["Version"] == "1.2.0-1+py311" and control["Architecture"] == "amd64"
    needed = control["Depends"].split(", ")
    # numpy's wheel needs glibc 2.27 or 2.28, the engine's 2.31.
    assert needed[:3] == ["python3 (>= 3.11)", "python3 (<< 3.12)", "libc6 (>= 2.31)"]
    assert set(needed[3:5]) == {"libgomp1", "libstdc++6"}


def test_the_environment_has_what_runs_and_no_record_of_this_machine(root: Path) -> None:
    site = root / "usr/lib/edgeagent/lib/python3.11/site-packages"
    assert (site / "numpy/core.so").is_file()
    for unused in ("numpy/tests", "llama_cpp/server", "edgeagent-1.2.0.dist-info/RECORD"):
        assert not (site / unused).exists()
    assert (root / "usr/bin/edgeagent").readlink() == Path("../lib/edgeagent/bin/edgeagent")
    assert str(root) not in "".join(path.read_text() for path in (root / "usr/lib/edgeagent").glob("bin/edgeagent"))


def test_the_command_runs_with_the_packages_python(root: Path) -> None:
    python = root / "usr/lib/edgeagent/bin/python3"
    python.unlink()
    python.symlink_to(Path(sys.executable).resolve())
    if f"{sys.version_info[0]}.{sys.version_info[1]}" != "3.11":
        pytest.skip("the folder is named after Python 3.11")
    answer = subprocess.run([python, root / "usr/bin/edgeagent", "hi"], capture_output=True, text=True)
    assert answer.stdout == "edgeagent hi\n", answer.stderr


def test_the_units_are_those_of_service_install_and_start_the_packaged_command(root: Path) -> None:
    made = packaged_files()
    for kind, source in (("user", "systemd"), ("system", "systemd/system")):
        for unit in ("edgeagent.service", "edgeagent.socket"):
            text = (root / "usr/lib/systemd" / kind / unit).read_text()
            assert text == made[f"{source}/{unit}"]
        service = (root / "usr/lib/systemd" / kind / "edgeagent.service").read_text()
        assert f"\nExecStart={PACKAGED_PROGRAM} serve\n" in service
        assert (root / PACKAGED_PROGRAM.relative_to("/")).is_symlink()
    accounts = (root / "usr/lib/sysusers.d/edgeagent.conf").read_text()
    groups = next(line for line in made["systemd/system/edgeagent.service"].splitlines() if "SupplementaryG" in line)
    assert all(f"\ng {group} -\n" in accounts for group in groups.partition("=")[2].split())


def test_the_same_wheels_give_the_same_package(wheels: Path, tmp_path: Path) -> None:
    first, second = (deb.make(wheels, tmp_path / name, level=1).read_bytes() for name in ("a", "b"))
    assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest()


@needs_dpkg
def test_dpkg_reads_the_package(wheels: Path, tmp_path: Path) -> None:
    package = deb.make(wheels, tmp_path / "a", level=1)
    assert subprocess.check_output(["dpkg-deb", "--field", package, "Version"], text=True) == "1.2.0-1+py311\n"
    listed = subprocess.run(
        ["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert all(" root/root " in line and " 2023-11-14 " in line for line in listed)


def test_wheels_that_do_not_fit_are_refused(wheels: Path) -> None:
    with pytest.raises(program_tree.PackageError, match=r"numpy-2\.4\.6.* is not for Python 3\.13"):
        deb.make(wheels, wheels.parent, "3.13")
    make_wheel(wheels, "numpy", "2.5.0", "cp311-cp311-manylinux_2_28_x86_64", {})
    with pytest.raises(program_tree.PackageError, match="two wheels of numpy"):
        program_tree.wheels_in(wheels)
    with pytest.raises(program_tree.PackageError, match="has no wheel of edgeagent"):
        program_tree.wheels_in(wheels.parent)


@pytest.mark.parametrize("script", deb.SCRIPTS)
def test_maintainer_scripts_are_posix_shell(script: str) -> None:
    subprocess.run(["sh", "-n", deb.MADE_FROM / script], check=True)


def test_the_man_page_has_every_command() -> None:
    page = manual.man_page("1.2.0")
    missing = [name for name in COMMANDS if '.SS "edgeagent {}'.format(name.replace("-", "\\-")) not in page]
    assert missing == []
    assert "\\-\\-token\\-required" in page
    if shutil.which("mandoc"):
        checked = subprocess.run(["mandoc", "-Tlint", "-Wwarning"], input=page, capture_output=True, text=True)
        assert [line for line in checked.stdout.splitlines() if "missing date" not in line] == []


def test_completion_scripts_ask_the_command() -> None:
    scripts = manual.completions()
    assert set(scripts) == {"edgeagent.bash", "_edgeagent", "edgeagent.fish"}
    assert scripts["_edgeagent"].startswith("#compdef edgeagent\n")
    assert all("_EDGEAGENT_COMPLETE=complete_" in text for text in scripts.values())
