"""The files of an installed edgeagent on Linux, which the Debian package and the OCI image share.

/usr/lib/edgeagent is a virtual environment of the system's Python. Its packages are wheels, unpacked from a folder that
holds one wheel of each: no package index is asked, and the same wheels give the same files.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from setup_env import ROOT

PROGRAM = "usr/lib/edgeagent"
SYSTEM_PYTHON = "3.11"
"""The Python of Debian 12. The wheels of another distribution are those of its Python."""
# Tests and sources of the wheels' authors. Nothing imports them.
UNUSED = re.compile(
    r"/tests?/|\.(pyx|pxd|pxi|c|h|hpp|pyi|lib|a|cmake|f90|sh)$|^(numpy/f2py|llama_cpp/server)/|^(bin|include|lib)/"
)
# An installer's records of the machine that it ran on.
RECORDS = ("RECORD", "REQUESTED", "INSTALLER", "direct_url.json")
# Sonames of the system that a wheel may need, and Debian's packages of them. libc6 is needed by all.
LIBRARIES = {
    "libstdc++.so.6": "libstdc++6",
    "libgcc_s.so.1": "libgcc-s1",
    "libgomp.so.1": "libgomp1",
    "libz.so.1": "zlib1g",
    "libvulkan.so.1": "libvulkan1",
}
START = """\
#!/{program}/bin/python3
import sys

from edgeagent.cli import main

sys.exit(main())
"""


class PackageError(Exception):
    """The package cannot be made; the message says why and what to do."""


def wheels_in(folder: Path) -> list[Path]:
    """Return the wheels in a folder. Raise PackageError if one is there twice, or a needed one is not."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.whl")):
        name = path.name.partition("-")[0].lower()
        if name in found:
            raise PackageError(f"{folder} has two wheels of {name}: {found[name].name} and {path.name}; remove one")
        found[name] = path
    for name in ("edgeagent", "llama_cpp_python"):
        if name not in found:
            raise PackageError(f"{folder} has no wheel of {name}; `make dist` collects all of them")
    return list(found.values())


def version_in(wheels: Iterable[Path]) -> str:
    """Return the version of edgeagent's wheel."""
    return next(path.name.split("-")[1] for path in wheels if path.name.startswith("edgeagent-"))


def metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel: name, version, licence."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode("utf-8"))


def check_python(wheels: Iterable[Path], python: str) -> None:
    """Raise PackageError for a wheel that this version of Python, such as 3.11, cannot import."""
    own = int(python.partition(".")[2])
    for path in wheels:
        pythons, abi = path.stem.split("-")[-3:-1]
        versions = [int(tag[3:]) for tag in pythons.split(".") if re.fullmatch("cp3[0-9]+", tag)]
        is_fit = not versions or own in versions or (abi == "abi3" and min(versions) <= own)
        if not is_fit:
            raise PackageError(f"{path.name} is not for Python {python}")


def machine_of(wheels: Iterable[Path]) -> str:
    """Return the processor that the wheels are for, such as x86_64."""
    found = {match[1] for path in wheels if (match := re.search(r"linux(?:_[0-9]+_[0-9]+|[0-9]+)?_(\w+)", path.stem))}
    if len(found) != 1:
        raise PackageError(f"the wheels are for {', '.join(sorted(found)) or 'no'} processors of Linux, not for one")
    return found.pop()


def glibc_of(wheels: Iterable[Path]) -> str:
    """Return the oldest glibc with which all wheels work, from their names."""
    minors = [min(map(int, found)) for path in wheels if (found := re.findall(r"manylinux_2_([0-9]+)_", path.stem))]
    if any("-linux_" in path.name for path in wheels):  # compiled on this machine
        minors.append(int(os.confstr("CS_GNU_LIBC_VERSION").rpartition(".")[2]) if sys.platform == "linux" else 0)  # type: ignore[union-attr]
    return f"2.{max(minors, default=17)}"


def unpack(wheels: Iterable[Path], root: Path, python: str) -> None:
    """Write the virtual environment to `root`/usr/lib/edgeagent and the command to `root`/usr/bin."""
    program = root / PROGRAM
    site = program / "lib" / f"python{python}" / "site-packages"
    for wheel in wheels:
        for name, content in wheel_files(wheel):
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    (program / "bin").mkdir()
    start = program / "bin" / "edgeagent"
    start.write_text(START.format(program=PROGRAM), encoding="utf-8")
    start.chmod(0o755)
    (program / "bin" / "python3").symlink_to(f"../../../bin/python{python}")
    settings = ("home = /usr/bin", "include-system-site-packages = false", f"version = {python}")
    (program / "pyvenv.cfg").write_text("\n".join(settings) + "\n", encoding="utf-8")
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    (root / "usr/bin/edgeagent").symlink_to(f"../lib/{Path(PROGRAM).name}/bin/edgeagent")


def wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path in site-packages and the content of each file of a wheel that a running program may need."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            folder, _, rest = entry.filename.partition("/")
            if folder.endswith(".data"):
                kind, _, name = rest.partition("/")
                if kind not in ("purelib", "platlib"):
                    continue
            else:
                name = entry.filename
            if entry.is_dir() or UNUSED.search(name) or (".dist-info/" in name and name.endswith(RECORDS)):
                continue
            if ".." in Path(name).parts or Path(name).is_absolute():
                raise PackageError(f"{wheel.name} has a file outside of its folder: {name}")
            yield name, archive.read(entry)


def libraries_needed(root: Path) -> list[str]:
    """Return Debian's packages of the libraries that the programs below `root` need from the system, without libc6.

    A library that a wheel brings along has another name than the system's.
    """
    needed = set()
    for path in root.rglob("*.so*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            needed |= {package for name, package in LIBRARIES.items() if b"\0" + name.encode() + b"\0" in content}
    return sorted(needed)


def set_modes(root: Path, epoch: int) -> None:
    """Give each file and folder the mode and time that do not depend on this machine."""
    for path in sorted(root.rglob("*"), reverse=True):
        if not path.is_symlink():
            is_run = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if is_run else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    root.chmod(0o755)


def add_member(tar: tarfile.TarFile, path: Path, name: str, epoch: int) -> None:
    """Add a file, link or folder to a tar file under a name, owned by root."""
    member = tar.gettarinfo(path, name)
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = epoch
    if member.isfile():
        with path.open("rb") as file:
            tar.addfile(member, file)
    else:
        tar.addfile(member)


def epoch() -> int:
    """Return the time that all files get: SOURCE_DATE_EPOCH, else that of the last commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    answer = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    if answer.returncode:
        raise PackageError("set SOURCE_DATE_EPOCH: this is not a clone, so there is no commit whose time could be used")
    return int(answer.stdout)
