"""Make dist/offline: all wheels that edgeagent needs on a machine of this kind without a network, and a list of them.

The list, sbom.cdx.json, is a CycloneDX bill of materials: each package with its version, licence and SHA-256, and the
commit of llama.cpp from which its bindings were compiled.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from setup_env import ROOT, STAMP, read_stamp, wheel_folder

TARGET = ROOT / "dist" / "offline"
LIST = "sbom.cdx.json"


def main() -> int:
    """Write the wheels and their list to dist/offline; return the exit status."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for old in TARGET.glob("*.whl"):
        old.unlink()
    compiled = wheel_folder(read_stamp(STAMP))
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(TARGET)]
    # `make setup` has compiled the bindings for this CPU.
    status = subprocess.call([*wheel, "--find-links", str(compiled), "--prefer-binary", str(ROOT)])
    if status != 0:
        print("bundle: pip could not collect the wheels; see above", file=sys.stderr)
        return status
    wheels = sorted(TARGET.glob("*.whl"))
    listed = bill_of_materials(wheels, llama_cpp_commit())
    (TARGET / LIST).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    size = sum(path.stat().st_size for path in wheels)
    print(f"bundle: {len(wheels)} wheels, {size / 1e6:.0f} MB, and {LIST} are in {TARGET.relative_to(ROOT)}")
    return 0


def llama_cpp_commit() -> str:
    """Return the commit of llama.cpp that this environment's bindings were compiled from."""
    code = "from edgeagent.engine.llama.bindings import commit; print(commit())"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def bill_of_materials(wheels: Iterable[Path], commit: str) -> dict[str, Any]:
    """Return the CycloneDX document of these wheels (version 1.6 of its specification)."""
    components = [_component(path) for path in wheels]
    ours = next((each for each in components if each["name"] == "edgeagent"), None)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**(ours or {"name": "edgeagent"}), "type": "application"}},
        "components": [
            *(each for each in components if each is not ours),
            {
                "type": "library",
                "name": "llama.cpp",
                "version": commit,
                "description": "compiled into llama-cpp-python",
                "licenses": [{"license": {"id": "MIT"}}],
                "purl": f"pkg:github/ggml-org/llama.cpp@{commit}",
            },
        ],
    }


def _component(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        fields = HeaderParser().parsestr(wheel.read(name).decode("utf-8"))
    package, version = str(fields["Name"]).lower().replace("_", "-"), str(fields["Version"])
    return {
        "type": "library",
        "name": package,
        "version": version,
        "purl": f"pkg:pypi/{package}@{version}",
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        **_licenses(fields["License-Expression"], fields["License"], fields.get_all("Classifier") or []),
    }


def _licenses(expression: str | None, text: str | None, classifiers: list[str]) -> dict[str, Any]:
    """Return a package's licence as its SPDX expression, else as its one-line text, else as its classifiers.

    The result is empty if the package has none of them.
    """
    if expression:
        return {"licenses": [{"expression": expression}]}
    if text and "\n" not in text:
        return {"licenses": [{"license": {"name": text}}]}
    names = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


if __name__ == "__main__":
    sys.exit(main())
