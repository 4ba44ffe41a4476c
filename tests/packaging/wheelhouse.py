"""A folder of small wheels, from which packages are made in a moment."""

from __future__ import annotations

import zipfile
from pathlib import Path

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"


def make_wheel(folder: Path, name: str, version: str, tag: str, files: dict[str, bytes]) -> Path:
    """Write a wheel with these files and its metadata; return its path."""
    about = f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
        archive.writestr(f"{about}/METADATA", f"Name: {name}\nVersion: {version}\nLicense-Expression: Apache-2.0\n")
        archive.writestr(f"{about}/RECORD", "what an installer writes\n")
    return path


def small_wheels(folder: Path, version: str = "1.2.0") -> Path:
    """Return a folder with an edgeagent that prints its arguments, an engine and a package for Python 3.11 only."""
    main = b"import sys\n\n\ndef main():\n    print('edgeagent', *sys.argv[1:])\n    return 0\n"
    make_wheel(folder, "edgeagent", version, "py3-none-any", {"edgeagent/__init__.py": b"", "edgeagent/cli.py": main})
    engine = b"\x7fELF\0libstdc++.so.6\0libgomp.so.1\0"
    files = {"llama_cpp/__init__.py": b"", "llama_cpp/lib/libllama.so": engine, "llama_cpp/server/app.py": b"raise 1\n"}
    make_wheel(folder, "llama_cpp_python", "0.3.36+portable", "py3-none-manylinux_2_31_x86_64", files)
    numpy = {
        "numpy/__init__.py": b"",
        "numpy/tests/test_all.py": b"",
        "numpy-2.4.6.data/platlib/numpy/core.so": b"\x7f",
    }
    make_wheel(folder, "numpy", "2.4.6", "cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64", numpy)
    return folder
