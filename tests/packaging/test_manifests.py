"""The Homebrew formula and the winget manifests: what can be checked without a Mac and without Windows."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.packaging.wheelhouse import PACKAGING, small_wheels

sys.path.insert(0, str(PACKAGING))
import manifests
import windows_zip

URL = "https://example.org/releases"


@pytest.fixture
def made(tmp_path: Path) -> dict[str, str]:
    files = {kind: tmp_path / f"{kind}.archive" for kind in ("arm", "intel", "windows")}
    for kind, path in files.items():
        path.write_text(kind)
    return manifests.manifests(URL, "1.2.0", files)


def test_the_formula_names_each_archive_with_its_digest(made: dict[str, str]) -> None:
    formula = made["homebrew/edgeagent.rb"]
    for kind in ("arm", "intel"):
        assert f'url "{URL}/{kind}.archive"\n      sha256 "{hashlib.sha256(kind.encode()).hexdigest()}"' in formula
    assert "{" not in re.sub(r"#\{[a-z.]+\}", "", formula), "a field of the template was not filled in"
    # brew audit: the line of `desc` has no article, no name of the formula and no full stop, and 80 characters at most.
    (desc,) = re.findall('desc "(.*)"', formula)
    assert len(desc) < 80 and not desc.endswith(".") and "edgeagent" not in desc.lower()
    if shutil.which("ruby"):
        subprocess.run(["ruby", "-wc"], input=formula, text=True, check=True)


def test_the_winget_manifests_agree(made: dict[str, str]) -> None:
    kinds = {"version": "", "installer": ".installer", "defaultLocale": ".locale.en-US"}
    for kind, suffix in kinds.items():
        manifest = yaml.safe_load(made[f"winget/{manifests.IDENTIFIER}{suffix}.yaml"])
        assert manifest["ManifestType"] == kind and manifest["ManifestVersion"] == manifests.SCHEMA
        assert manifest["PackageIdentifier"] == manifests.IDENTIFIER and manifest["PackageVersion"] == "1.2.0"
    installer = yaml.safe_load(made[f"winget/{manifests.IDENTIFIER}.installer.yaml"])
    (archive,) = installer["Installers"]
    assert re.fullmatch("[A-F0-9]{64}", archive["InstallerSha256"]) and archive["InstallerUrl"].startswith(URL)
    assert installer["NestedInstallerFiles"][0]["RelativeFilePath"] == r"edgeagent\edgeagent.exe"


def test_the_windows_archive_has_python_the_packages_and_a_launcher(tmp_path: Path) -> None:
    python = tmp_path / "python.zip"
    with zipfile.ZipFile(python, "w") as archive:
        archive.writestr("python.exe", b"MZ")
        archive.writestr("python311._pth", b"python311.zip\r\n.\r\n")
    target = windows_zip.make(small_wheels(tmp_path / "wheels"), python, tmp_path)
    again = windows_zip.make(tmp_path / "wheels", python, tmp_path / "again")
    assert target.read_bytes() == again.read_bytes()
    with zipfile.ZipFile(target) as archive:
        names = archive.namelist()
        start = archive.read("edgeagent/edgeagent.exe")
        assert archive.read("edgeagent/python/python311._pth").endswith(b"..\\packages\r\n")
    assert {"edgeagent/python/python.exe", "edgeagent/packages/edgeagent/cli.py"} <= set(names)
    # The launcher starts the line's program with itself, and Python runs the zip file at its end.
    assert start.startswith(b"MZ") and b"#!<launcher_dir>\\python\\python.exe\r\nPK" in start
    with zipfile.ZipFile(io.BytesIO(start)) as program:
        assert b"from edgeagent.cli import main" in program.read("__main__.py")
