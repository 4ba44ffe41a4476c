"""The container image, made from small wheels and a small Debian. `make test-install` runs the real one."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from edgeagent.config import ServerConfig
from edgeagent.config_sources import load_config
from tests.packaging.wheelhouse import PACKAGING, small_wheels

sys.path.insert(0, str(PACKAGING))
import oci

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="for Linux")


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr(oci, "compile_modules", lambda folder, root: None)
    base = tmp_path / "base.tar"
    with tarfile.open(base, "w") as tar:
        for name in (
            "./usr/bin/python3.11",
            "./usr/bin/perl",
            "./bin/sh",
            "./lib/x86_64-linux-gnu/libc.so.6",
            "./usr/lib/python3.11/os.py",
            "./usr/lib/python3.11/idlelib/run.py",
            "./usr/share/ca-certificates/mozilla/A.crt",
            "./usr/share/doc/libc6/copyright",
            "./usr/share/doc/libc6/changelog.gz",
            "./var/lib/dpkg/status",
        ):
            member = tarfile.TarInfo(name)
            member.size, member.uid = 4, 1234
            tar.addfile(member, io.BytesIO(b"text"))
    return oci.make(small_wheels(tmp_path / "wheels"), tmp_path, base)


def blobs(image: Path) -> dict[str, bytes]:
    with tarfile.open(image) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]


def parts(image: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Return the configuration and the uncompressed layers, found as an engine finds them; every digest is checked."""
    files = blobs(image)

    def found(descriptor: dict[str, Any]) -> bytes:
        content = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
        assert len(content) == descriptor["size"]
        assert f"sha256:{hashlib.sha256(content).hexdigest()}" == descriptor["digest"]
        return content

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(found(entry))
    return json.loads(found(manifest["config"])), [gzip.decompress(found(each)) for each in manifest["layers"]]


def test_every_digest_is_that_of_its_content(image: Path) -> None:
    config, layers = parts(image)
    digests = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    assert config["rootfs"]["diff_ids"] == digests
    assert len(config["history"]) == len(layers)


def test_the_image_has_no_shell_and_no_package_manager(image: Path) -> None:
    _, layers = parts(image)
    names: dict[str, tarfile.TarInfo] = {}
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
            names.update((member.name, member) for member in tar)
    kept = {"usr/bin/python3.11", "lib/x86_64-linux-gnu/libc.so.6", "usr/share/doc/libc6/copyright", "etc/passwd"}
    assert kept <= set(names) and "usr/lib/edgeagent/bin/edgeagent" in names
    for dropped in ("bin/sh", "usr/bin/perl", "usr/lib/python3.11/idlelib/run.py", "var/lib/dpkg/status"):
        assert dropped not in names
    volumes = {"var/lib/edgeagent", "var/cache/edgeagent"}
    assert all(names[volume].uid == oci.UID and names[volume].mode == 0o700 for volume in volumes)
    assert all(member.uid == 0 for name, member in names.items() if name not in volumes)


def test_the_container_asks_for_a_token(image: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config, _ = parts(image)
    about = config["config"]
    assert about["User"] == f"{oci.UID}:{oci.UID}" and about["Entrypoint"] == ["/usr/bin/edgeagent", "serve"]
    for pair in about["Env"]:
        name, _, value = pair.partition("=")
        if name.startswith(("EDGEAGENT_", "XDG_")):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("EDGEAGENT_CONFIG", str(tmp_path / "none.toml"))
    (tmp_path / "none.toml").write_text("")
    server = load_config().config.server
    assert server.token_required and not server.is_loopback
    assert f"{server.port}/tcp" in about["ExposedPorts"] and server.port == ServerConfig().port
    assert set(about["Volumes"]) == {"/var/lib/edgeagent", "/var/cache/edgeagent"}


def test_the_same_parts_give_the_same_image(image: Path, tmp_path: Path) -> None:
    again = oci.make(tmp_path / "wheels", tmp_path / "again", tmp_path / "base.tar")
    assert again.read_bytes() == image.read_bytes()
