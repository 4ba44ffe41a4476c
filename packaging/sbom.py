"""The bill of materials of a folder of wheels, in CycloneDX: each package with its version, licence and SHA-256.

It also names the commit of llama.cpp from which the engine was compiled.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterable
from email.parser import HeaderParser
from pathlib import Path
from typing import Any


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
