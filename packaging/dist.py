"""Make what a release publishes, in dist/: `python packaging/dist.py [PART...] [--twice]`.

PARTS are made in their order; without a name, all of them. They are reproducible: the same commit, the same wheels of
other packages and the same SOURCE_DATE_EPOCH give the same bytes. --twice makes all parts a second time, in another
folder, and compares them.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import deb
import oci
from program_tree import PackageError
from sbom import bill_of_materials
from setup_env import (
    ROOT,
    STAMP,
    SetupError,
    pinned_bindings,
    portable_engines,
    read_stamp,
    require_compiler,
    wheel_folder,
)

DIST = ROOT / "dist"
OFFLINE = "offline"
"""The folder with one wheel of each package that edgeagent needs at run time on a machine of this kind."""
SBOM = "sbom.cdx.json"
CHECKSUMS = "SHA256SUMS"
ENGINE_BUILD = ROOT / "packaging" / "engine" / "build.py"
# What packaging/engine/build.py writes; copies of it are published.
ENGINES = DIST / "engine"
EARLIEST_IN_ZIP = 315532800  # 1 January 1980


class DistError(Exception):
    """A part cannot be made; the message says why."""


def _always() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Part:
    """Something that is published.

    `make` writes it into a folder, in which the parts before it are already. `why_not` says why it cannot be made on
    this machine; it is then left out. The other files of the folder must not be changed.
    """

    name: str
    make: Callable[[Path], None]
    why_not: Callable[[], str | None] = _always


def main(arguments: Sequence[str]) -> int:
    """Make the parts that the arguments name; return the exit status."""
    parser = argparse.ArgumentParser(prog="dist.py", description="Make what a release publishes.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(part.name for part in PARTS))
    parser.add_argument("--twice", action="store_true", help="make everything twice, and compare the bytes")
    parser.add_argument("--out", type=Path, default=DIST, help="the folder (default: dist)")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - {part.name for part in PARTS}:
        parser.error(f"there is no part {min(unknown)}")
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(commit_time()))
    parts = [part for part in PARTS if part.name in options.parts or not options.parts]
    try:
        make(parts, options.out.resolve())
        return compare(parts, options.out.resolve()) if options.twice else 0
    except DistError as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1


def commit_time() -> int:
    """Return when the commit was made, in seconds since 1970; outside of a checkout the beginning of 1980."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return EARLIEST_IN_ZIP


def make(parts: Iterable[Part], target: Path) -> None:
    """Make the parts in a folder, and say what was made. Raise DistError if one cannot be made."""
    target.mkdir(parents=True, exist_ok=True)
    for part in parts:
        if reason := part.why_not():
            print(f"dist: {part.name} is left out: {reason}", flush=True)
            continue
        before = digests(target)
        part.make(target)
        after = digests(target)
        made = [name for name in after if after[name] != before.get(name)]
        size = sum((target / name).stat().st_size for name in made)
        print(f"dist: {part.name}: {_names(made) or 'unchanged'} ({size / 1e6:.1f} MB)", flush=True)


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} files"


def compare(parts: Iterable[Part], first: Path) -> int:
    """Make the parts again in another folder; return 0 if the bytes are the same, else 1."""
    with tempfile.TemporaryDirectory(prefix="edgeagent-dist-") as folder:
        second = Path(folder)
        make(parts, second)
        wanted = digests(second)
        found = {name: digest for name, digest in digests(first).items() if name in wanted}
    different = sorted(name for name in wanted if found.get(name) != wanted[name])
    if different:
        print(f"dist: made twice, these files differ: {', '.join(different)}", file=sys.stderr)
        return 1
    print(f"dist: made twice, and {len(wanted)} files have the same bytes")
    return 0


def digests(target: Path) -> dict[str, str]:
    """Return the SHA-256 of each published file of a folder by its path. What build.py wrote is not published."""
    files = sorted(path for path in target.rglob("*") if path.is_file() and ENGINES not in path.parents)
    return {path.relative_to(target).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def make_python(target: Path) -> None:
    """Make the wheel and the sdist of edgeagent."""
    _remove(target, "edgeagent-*.whl", "edgeagent-*.tar.gz")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(target.resolve()))


def make_js(target: Path) -> None:
    """Make the npm package of the client for JavaScript, as `npm pack` would: its files, in the folder `package`."""
    folder = ROOT / "packaging" / "js"
    manifest = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    files = [folder / name for name in ("package.json", "README.md", *manifest["files"])]
    _remove(target, "edgeagent-client-*.tgz")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in sorted([*files, ROOT / "LICENSE"]):
            entry = tarfile.TarInfo(f"package/{file.name}")
            entry.size, entry.mtime = file.stat().st_size, int(os.environ["SOURCE_DATE_EPOCH"])
            with file.open("rb") as content:
                archive.addfile(entry, content)
    (target / f"edgeagent-client-{manifest['version']}.tgz").write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def make_engine(target: Path) -> None:
    """Copy the portable engine and its plug-ins; build the engine if there is none for this machine."""
    version = pinned_bindings((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if not portable_engines(version):
        _run(sys.executable, str(ENGINE_BUILD), "--out", str(ENGINES))
    engine = next(iter(portable_engines(version)), None)
    if engine is None:
        raise DistError(f"{ENGINE_BUILD.name} made no engine of llama-cpp-python {version} that fits this machine")
    _remove(target, "llama_cpp_python-*.whl", "edgeagent_engine_*.whl")
    for wheel in (engine, *sorted(engine.parent.glob(f"edgeagent_engine_*-{version}*.whl"))):
        shutil.copyfile(wheel, target / wheel.name)


def _no_engine() -> str | None:
    version = pinned_bindings((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if portable_engines(version):
        return None
    try:
        require_compiler()  # build.py fetches its other tools
    except SetupError as error:
        return str(error)
    return None


def make_offline(target: Path) -> None:
    """Collect a wheel of each package that edgeagent needs. Without a portable engine, it is the compiled one."""
    (wheel,) = target.glob("edgeagent-*.whl")
    shutil.rmtree(target / OFFLINE, ignore_errors=True)
    engines = target if list(target.glob("llama_cpp_python-*.whl")) else wheel_folder(read_stamp(STAMP))
    _run(
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary", ":all:", "--find-links", str(engines), "--dest", str(target / OFFLINE), str(wheel)),
    )


def make_deb(target: Path) -> None:
    """Make the Debian package for this machine's version of Python."""
    _remove(target, "edgeagent_*.deb")
    _packed(deb.make, target, f"{sys.version_info[0]}.{sys.version_info[1]}")


def _no_deb() -> str | None:
    return None if sys.platform == "linux" else "it is for Linux"


def make_oci(target: Path) -> None:
    """Make the container image."""
    _remove(target, "edgeagent-*-oci-*.tar")
    _packed(oci.make, target)


def _no_oci() -> str | None:
    if sys.platform != "linux" or shutil.which("mmdebstrap") is None:
        return "it needs mmdebstrap"
    is_own = f"{sys.version_info[0]}.{sys.version_info[1]}" == oci.PYTHON
    return None if is_own else f"the wheels are for another Python than the image's, {oci.PYTHON}"


def _packed(make_package: Callable[..., Path], target: Path, *more: str) -> None:
    try:
        make_package(target / OFFLINE, target, *more)
    except PackageError as error:
        raise DistError(str(error)) from None


def make_sbom(target: Path) -> None:
    """Write the bill of materials of the wheels in the folder `offline`."""
    listed = bill_of_materials(sorted((target / OFFLINE).glob("*.whl")), llama_cpp_commit())
    (target / SBOM).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def make_checksums(target: Path) -> None:
    """Write the SHA-256 of each file, in the form that `sha256sum --check` reads."""
    lines = [f"{digest}  {name}\n" for name, digest in digests(target).items() if name != CHECKSUMS]
    (target / CHECKSUMS).write_text("".join(lines), encoding="utf-8", newline="\n")


def llama_cpp_commit() -> str:
    """Return the commit of llama.cpp in the pinned version of its bindings, from those of this environment."""
    code = "from edgeagent.engine.llama.bindings import commit; print(commit())"
    return _run(sys.executable, "-c", code).strip()


def _remove(target: Path, *patterns: str) -> None:
    """Remove what an earlier version left."""
    for path in (path for pattern in patterns for path in target.glob(pattern)):
        path.unlink()


def _run(*command: str) -> str:
    """Run a command and return its output. Raise DistError with the output if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise DistError("{} failed:\n{}".format(" ".join(command), (done.stdout + done.stderr).rstrip()))
    return done.stdout


PARTS: tuple[Part, ...] = (
    Part("python", make_python),
    Part("js", make_js),
    Part("engine", make_engine, _no_engine),
    Part("offline", make_offline),
    Part("deb", make_deb, _no_deb),
    Part("oci", make_oci, _no_oci),
    Part("sbom", make_sbom),
    Part("checksums", make_checksums),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
