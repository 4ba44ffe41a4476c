"""packaging/js/edgeagent.js with a real daemon and model: in Node.js, and in Deno and Bun if they are here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import edgeagent
from edgeagent.client import sync
from tests.cutting_proxy import cutting_proxy
from tests.integration.conftest import Daemon, serving
from tests.integration.test_readme_examples import node
from tests.media import RED
from tests.patience import patient

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packaging" / "js"
CASES = Path(__file__).with_name("client_js.mjs")


def command_of(runtime: str) -> list[str]:
    """Return the command that runs a script."""
    if runtime == "node":
        return node()
    if (found := shutil.which(runtime)) is None:
        pytest.skip(f"no {runtime} here")
    return [found, "run", "-A"] if runtime == "deno" else [found]


@pytest.mark.parametrize("runtime", ["node", "deno", "bun"])
def test_every_case(daemon: Daemon, tmp_path: Path, runtime: str) -> None:
    command = [*command_of(runtime), str(CASES)]
    photo = tmp_path / "photo.png"
    photo.write_bytes(RED)
    program = Path(sys.executable).with_name("edgeagent.exe" if os.name == "nt" else "edgeagent")
    with (
        serving(tmp_path / "state", "builtin", "--token-required") as locked,
        cutting_proxy(daemon.port, 5000, 700, 1300) as proxy,
    ):
        environment = {
            **os.environ,
            "URL_": daemon.url,
            "CUTTING_URL": proxy.url,
            "LOCKED_URL": locked.url,
            "TOKEN": (locked.state_dir / "token").read_text().strip(),
            "STATE_DIR": str(locked.state_dir),
            "COMMAND": str(program),
            "PHOTO": str(photo),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(90))
        assert done.returncode == 0, done.stdout + done.stderr
        assert proxy.cuts == []
    assert done.stdout.split() == re.findall(r"^  (?:async )?(\w+)\(\) \{$", CASES.read_text(encoding="utf-8"), re.M)


def members(owner: type) -> set[str]:
    """Return the public names of a class, as JavaScript writes them."""
    names = {name for name in vars(owner) if not name.startswith("_")}
    return {re.sub(r"_(\w)", lambda found: found[1].upper(), name) for name in names}


@pytest.mark.parametrize("owner", [sync.Client, sync.Reply, sync.Conversation])
def test_the_names_are_python_s(owner: type) -> None:
    declared = (PACKAGE / "edgeagent.d.ts").read_text(encoding="utf-8")
    (body,) = re.findall(rf"^export declare class {owner.__name__}\b[^{{]*\{{\n(.*?)^\}}", declared, re.M | re.S)
    assert members(owner) == set(re.findall(r"^  (?:get )?(\w+)[(:]", body, re.M)) - {"request"}


def test_the_package_has_edgeagent_s_version_and_only_its_own_files(tmp_path: Path) -> None:
    manifest = json.loads((PACKAGE / "package.json").read_text())
    assert manifest["version"] == edgeagent.__version__
    done = subprocess.run([sys.executable, ROOT / "packaging" / "dist.py", "js", "--twice", "--out", tmp_path])
    assert done.returncode == 0
    (made,) = tmp_path.glob(f"edgeagent-client-{edgeagent.__version__}.tgz")
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path, filter="data")
    files = {path.name for path in (tmp_path / "package").iterdir()}
    assert files == {"package.json", "README.md", "LICENSE", *manifest["files"]}
    npm = shutil.which("npm")
    if npm is not None and os.name == "posix":
        app = tmp_path / "app"
        app.mkdir()
        subprocess.run(
            [npm, "install", "--offline", "--no-audit", "--no-fund", "--silent", str(made)], cwd=app, check=True
        )
        code = 'import("edgeagent-client").then(({ Sentences }) => console.log(new Sentences().add("One. Two")[0]))'
        assert subprocess.run([*node(), "-e", code], cwd=app, capture_output=True, text=True).stdout == "One.\n"
