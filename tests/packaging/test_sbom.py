"""What the bill of materials states about each wheel."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", ROOT / "packaging" / "sbom.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder: Path, name: str, version: str, *fields: str) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        metadata = "\n".join([f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}", *fields, "", "text"])
        file.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
    return path


def test_each_wheel_is_listed_with_version_licence_and_hash(sbom: ModuleType, tmp_path: Path) -> None:
    wheels = [
        wheel(tmp_path, "edgeagent", "1.0", "License-Expression: MIT"),
        wheel(tmp_path, "Some_Thing", "2.1", "License: BSD"),
        wheel(tmp_path, "other", "3.0", "Classifier: License :: OSI Approved :: Apache Software License"),
        wheel(tmp_path, "silent", "4.0"),
    ]
    listed = sbom.bill_of_materials(wheels, "0c1e570")
    assert (listed["bomFormat"], listed["metadata"]["component"]["version"]) == ("CycloneDX", "1.0")
    thing, other, silent, llama = listed["components"]
    assert thing["purl"] == "pkg:pypi/some-thing@2.1"
    assert thing["licenses"] == [{"license": {"name": "BSD"}}]
    assert thing["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(wheels[1].read_bytes()).hexdigest()}]
    assert other["licenses"] == [{"license": {"name": "Apache Software License"}}]
    assert "licenses" not in silent
    assert (llama["name"], llama["version"]) == ("llama.cpp", "0c1e570")
