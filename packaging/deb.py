"""Make the Debian package from a folder of wheels: `python packaging/deb.py --wheels dist/offline`.

No tool of Debian is needed. The same wheels and SOURCE_DATE_EPOCH give the same bytes. The package is for one Python,
that of the distribution: Debian 12 has 3.11, Ubuntu 24.04 has 3.12, Debian 13 has 3.13.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import lzma
import os
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import program_tree
from manual import completions, man_page
from program_tree import SYSTEM_PYTHON, PackageError, metadata
from setup_env import ROOT

MADE_FROM = ROOT / "packaging" / "debian"
UNITS = ROOT / "packaging" / "systemd"
SCRIPTS = ("postinst", "prerm", "postrm")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
REVISION = "1"
CONTROL = """\
Package: edgeagent
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {kilobytes}
Depends: python3 (>= {python}), python3 (<< {next_python}), libc6 (>= {glibc}), {libraries}{accounts}
Section: science
Priority: optional
Description: language models on this machine
 edgeagent is a daemon that runs GGUF models with llama.cpp and answers over
 HTTP and WebSockets, with the interfaces of OpenAI, Ollama and llama-server.
 It keeps prompts that it has computed over restarts.
 .
 The package brings the Python packages that it needs, and a small model that
 answers at once. No service is started: `edgeagent service install` starts one
 of the user, and with --system one of the machine.
"""
COPYRIGHT = """\
Copyright 2026 the authors of edgeagent

edgeagent is licensed under the Apache License, version 2.0. On Debian systems the text is in
/usr/share/common-licenses/Apache-2.0.

The package has these Python packages in /usr/lib/edgeagent, unpacked from their wheels. The text of each licence is
in the folder PACKAGE.dist-info. llama_cpp_python has llama.cpp in it, which is under the MIT licence.

{components}
"""


def main() -> int:
    """Make the package and print its path; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, help="folder with one wheel of each package")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the .deb")
    parser.add_argument("--python", default=SYSTEM_PYTHON, help="the Python of the distribution")
    parser.add_argument("--level", type=int, default=6, help="of compression; 1 is fast, for trials")
    arguments = parser.parse_args()
    try:
        print(make(arguments.wheels, arguments.out, arguments.python, arguments.level))
    except PackageError as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    return 0


def make(folder: Path, out: Path, python: str = SYSTEM_PYTHON, level: int = 6) -> Path:
    """Write the package into `out` and return its path. Raise PackageError if it cannot be made."""
    wheels = program_tree.wheels_in(folder)
    epoch = program_tree.epoch()
    with tempfile.TemporaryDirectory(prefix="edgeagent-deb-") as temporary:
        root = Path(temporary) / "root"
        fill(root, wheels, python, epoch)
        version = debian_version(program_tree.version_in(wheels), python)
        architecture = ARCHITECTURES[program_tree.machine_of(wheels)]
        out.mkdir(parents=True, exist_ok=True)
        package = out / f"edgeagent_{version}_{architecture}.deb"
        members = {
            "debian-binary": b"2.0\n",
            "control.tar.xz": lzma.compress(archive(root / "DEBIAN", epoch), preset=level),
            "data.tar.xz": lzma.compress(archive(root, epoch, "DEBIAN"), preset=level),
        }
    package.write_bytes(ar_archive(members, epoch))
    return package


def archive(root: Path, epoch: int, left_out: str | None = None) -> bytes:
    """Return a tar file of everything below `root`, owned by root, without the folder `left_out`."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in (root, *sorted(root.rglob("*"))):
            name = path.relative_to(root)
            if left_out is not None and name.parts[:1] == (left_out,):
                continue
            program_tree.add_member(tar, path, "." if path == root else f"./{name.as_posix()}", epoch)
    return raw.getvalue()


def ar_archive(members: Mapping[str, bytes], epoch: int) -> bytes:
    """Return the archive that a .deb is, see deb(5). Each member has a head of 60 bytes and an even length."""
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        parts.append(f"{name:<16}{epoch:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode())
        parts += [content, b"\n" * (len(content) % 2)]
    return b"".join(parts)


def debian_version(version: str, python: str) -> str:
    """Return the package's version. That for a newer Python is newer, so an upgraded system takes it."""
    return f"{version}-{REVISION}+py{python.replace('.', '')}"


def maintainer() -> str:
    """Return the maintainer's name and address, from the variables that Debian's tools use too."""
    name, address = os.environ.get("DEBFULLNAME", "edgeagent"), os.environ.get("DEBEMAIL", "edgeagent@packages.invalid")
    return f"{name} <{address}>"


def fill(root: Path, wheels: Sequence[Path], python: str, epoch: int) -> None:
    """Write everything that the package has below `root`, its DEBIAN folder too."""
    program_tree.check_python(wheels, python)
    program_tree.unpack(wheels, root, python)
    version = program_tree.version_in(wheels)
    for path, text in shared_files().items():
        _write(root / path, text)
    documents = root / "usr/share/doc/edgeagent"
    _write(documents / "copyright", copyright_text(wheels))
    _write_gz(documents / "changelog.gz", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    _write_gz(documents / "changelog.Debian.gz", changelog(version, python, epoch))
    _write_gz(root / "usr/share/man/man1/edgeagent.1.gz", man_page(version))
    _write(
        root / "usr/share/lintian/overrides/edgeagent", (MADE_FROM / "lintian-overrides").read_text(encoding="utf-8")
    )
    size = sum(path.lstat().st_size for path in root.rglob("*") if not path.is_dir())
    _write(root / "DEBIAN/control", control(wheels, root, python, size))
    for name in SCRIPTS:
        _write(root / "DEBIAN" / name, (MADE_FROM / name).read_text(encoding="utf-8"))
        (root / "DEBIAN" / name).chmod(0o755)
    program_tree.set_modes(root, epoch)
    _write(root / "DEBIAN/md5sums", checksums(root))
    program_tree.set_modes(root / "DEBIAN", epoch)


def shared_files() -> dict[str, str]:
    """Return the text files of the package that come from packaging/: units, the account, completions."""
    shell = completions()
    return {
        "usr/lib/systemd/system/edgeagent.service": _unit("system/edgeagent.service"),
        "usr/lib/systemd/system/edgeagent.socket": _unit("system/edgeagent.socket"),
        "usr/lib/systemd/user/edgeagent.service": _unit("edgeagent.service"),
        "usr/lib/systemd/user/edgeagent.socket": _unit("edgeagent.socket"),
        "usr/lib/sysusers.d/edgeagent.conf": _unit("system/sysusers.conf"),
        "usr/share/bash-completion/completions/edgeagent": shell["edgeagent.bash"],
        "usr/share/zsh/vendor-completions/_edgeagent": shell["_edgeagent"],
        "usr/share/fish/vendor_completions.d/edgeagent.fish": shell["edgeagent.fish"],
    }


def _unit(name: str) -> str:
    return (UNITS / name).read_text(encoding="utf-8")


def control(wheels: Sequence[Path], root: Path, python: str, size_bytes: int) -> str:
    """Return the control file of the package whose files are below `root`."""
    major, _, minor = python.partition(".")
    return CONTROL.format(
        version=debian_version(program_tree.version_in(wheels), python),
        architecture=ARCHITECTURES[program_tree.machine_of(wheels)],
        maintainer=maintainer(),
        kilobytes=-(-size_bytes // 1024),
        python=python,
        next_python=f"{major}.{int(minor) + 1}",
        glibc=program_tree.glibc_of(wheels),
        accounts="systemd | systemd-standalone-sysusers | systemd-sysusers",
        libraries="".join(f"{name}, " for name in program_tree.libraries_needed(root)),
    )


def copyright_text(wheels: Sequence[Path]) -> str:
    """Return the copyright file: each Python package with its version, licence and the digest of its wheel."""
    lines = []
    for wheel in wheels:
        fields = metadata(wheel)
        licence = fields["License-Expression"] or fields["License"] or ""
        if not licence or "\n" in licence:
            named = [line.rpartition(" :: ")[2] for line in fields.get_all("Classifier") or [] if "License ::" in line]
            licence = ", ".join(named) or "see its folder"
        lines.append(f"{fields['Name']} {fields['Version']}: {licence}")
        lines.append(f"  {wheel.name}")
        lines.append(f"  SHA-256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    return COPYRIGHT.format(components="\n".join(lines))


def changelog(version: str, python: str, epoch: int) -> str:
    """Return Debian's changelog of this package. What changed in the program is in the other changelog."""
    return (
        f"edgeagent ({debian_version(version, python)}) unstable; urgency=medium\n\n"
        f"  * edgeagent {version}; changelog.gz says what changed.\n\n"
        f" -- {maintainer()}  {formatdate(epoch)}\n"
    )


def checksums(root: Path) -> str:
    """Return the file md5sums, with which dpkg can check installed files."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    relative = {path: path.relative_to(root).as_posix() for path in files}
    return "".join(
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {name}\n"
        for path, name in relative.items()
        if not name.startswith("DEBIAN/")
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def _write_gz(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    sys.exit(main())
