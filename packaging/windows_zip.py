"""Make the archive that winget installs: `python packaging/windows_zip.py --wheels dist/offline --python EMBEDDED.zip`.

EMBEDDED.zip is the "Windows embeddable package" of the Python that the wheels are for. In the archive are that Python,
the wheels unpacked, and edgeagent.exe, which is pip's launcher with the path of the Python beside it. Never run: no
Windows was at hand.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import program_tree
from program_tree import PackageError
from setup_env import ROOT

FOLDER = "edgeagent"
# The launcher reads this line at its end: which program to start, found from the launcher's own folder.
PYTHON = b"#!<launcher_dir>\\python\\python.exe\r\n"
MAIN = b"import sys\nfrom edgeagent.cli import main\nsys.exit(main())\n"
MOMENT = (1980, 1, 1, 0, 0, 0)


def main() -> int:
    """Make the archive and print its path; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, help="folder with one wheel of each package")
    parser.add_argument("--python", type=Path, required=True, help="Python's embeddable package")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    try:
        print(make(arguments.wheels, arguments.python, arguments.out))
    except PackageError as error:
        print(f"windows: {error}", file=sys.stderr)
        return 1
    return 0


def make(folder: Path, python: Path, out: Path) -> Path:
    """Write the archive into `out` and return its path. Raise PackageError if it cannot be made."""
    wheels = program_tree.wheels_in(folder)
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"edgeagent-{program_tree.version_in(wheels)}-windows-x64.zip"
    entries: dict[str, bytes] = {"edgeagent.exe": launcher()}
    with zipfile.ZipFile(python) as embedded:
        for name in embedded.namelist():
            content = embedded.read(name)
            if name.endswith("._pth"):  # what is imported: its own library, and the packages
                content += b"..\\packages\r\n"
            entries[f"python/{name}"] = content
    for wheel in wheels:
        entries.update((f"packages/{name}", content) for name, content in program_tree.wheel_files(wheel))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(entries.items()):
            archive.writestr(zipfile.ZipInfo(f"{FOLDER}/{name}", MOMENT), content, zipfile.ZIP_DEFLATED)
    return target


def launcher() -> bytes:
    """Return edgeagent.exe: pip's launcher for 64 bits, the line that names the Python, and the program."""
    program = io.BytesIO()
    with zipfile.ZipFile(program, "w") as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", MOMENT), MAIN)
    try:
        start = files("pip._vendor.distlib").joinpath("t64.exe").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise PackageError("pip's launcher t64.exe is missing; run this with a Python that has pip") from None
    return start + PYTHON + program.getvalue()


if __name__ == "__main__":
    sys.exit(main())
