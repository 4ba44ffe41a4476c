"""Make the container image without a daemon: `python packaging/oci.py --wheels dist/offline`.

The result, edgeagent-VERSION-oci-amd64.tar, is an OCI image layout in one file. `podman load`, `docker load` (25 or
newer) and `skopeo copy oci-archive:…` read it. It has two layers: Debian's Python with the libraries that the wheels
need, and edgeagent. There is no shell and no package manager in it. The same wheels, packages of Debian and
SOURCE_DATE_EPOCH give the same bytes. mmdebstrap fetches Debian's packages and checks their signatures.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import program_tree
from program_tree import PROGRAM, PackageError
from setup_env import ROOT

from edgeagent.cli.service_files import SYSTEM_CACHE_DIR, SYSTEM_ENVIRONMENT, SYSTEM_STATE_DIR

SUITE, PYTHON = "bookworm", "3.11"
# Extracted, not installed: nothing of them runs while the image is made. apt adds what they depend on.
BASE = (
    *("base-files", "ca-certificates", "libgomp1", "libgcc-s1", "libpython3-stdlib", "libstdc++6", "media-types"),
    *("python3-minimal", "tzdata", "zlib1g"),
)
KEPT = re.compile(
    r"(usr/)?lib(64)?/([^/]*-linux-gnu/)?[^/]*\.so[^/]*|usr/lib/([^/]*-linux-gnu/)?ossl-modules/.*|usr/bin/python3[.0-9]*"
    r"|usr/lib/python3[.0-9]*/.*|usr/share/zoneinfo/.*|usr/share/doc/[^/]*/copyright|usr/lib/os-release"
    r"|etc/(os-release|debian_version|mime.types)"
)
DROPPED = re.compile(r"/(__pycache__|tests?|idlelib|turtledemo|tkinter|lib2to3|ensurepip|pydoc_data|dist-packages)/")
AUTHORITIES = "usr/share/ca-certificates/mozilla"
BUNDLE = "etc/ssl/certs/ca-certificates.crt"
USER, UID = "edgeagent", 65532
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
PORT = 8127
# Each request but /health needs a token, since a container's port may be published to the network. Who publishes it
# beyond this machine should give a certificate too: EDGEAGENT_SERVER__TLS_CERTIFICATE and …__TLS_KEY.
ENVIRONMENT = {
    **SYSTEM_ENVIRONMENT,
    "PATH": "/usr/bin",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # /tmp cannot be written where the root is read-only.
    "TMPDIR": str(SYSTEM_CACHE_DIR),
    "SSL_CERT_FILE": f"/{BUNDLE}",
    "EDGEAGENT_SERVER__HOST": "0.0.0.0",
    "EDGEAGENT_SERVER__PLAINTEXT": "true",
    "EDGEAGENT_SERVER__TOKEN_REQUIRED": "true",
}
VOLUMES = (str(SYSTEM_STATE_DIR), str(SYSTEM_CACHE_DIR))
_VND = "application/vnd.oci.image"
INDEX, MANIFEST, CONFIG = f"{_VND}.index.v1+json", f"{_VND}.manifest.v1+json", f"{_VND}.config.v1+json"
LAYER = f"{_VND}.layer.v1.tar+gzip"


def main() -> int:
    """Make the image and print its path and sizes; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, help="folder with one wheel of each package")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the image")
    parser.add_argument("--base", type=Path, help="mmdebstrap's tar file, if it was made before")
    arguments = parser.parse_args()
    try:
        image = make(arguments.wheels, arguments.out, arguments.base)
    except PackageError as error:
        print(f"oci: {error}", file=sys.stderr)
        return 1
    print(image)
    return 0


def make(folder: Path, out: Path, base: Path | None = None, level: int = 6) -> Path:
    """Write the image into `out` and return its path. Raise PackageError if it cannot be made."""
    wheels = program_tree.wheels_in(folder)
    program_tree.check_python(wheels, PYTHON)
    epoch = program_tree.epoch()
    version = program_tree.version_in(wheels)
    with tempfile.TemporaryDirectory(prefix="edgeagent-oci-") as temporary:
        system, program = Path(temporary) / "system", Path(temporary) / "program"
        unpack_base(base or fetch_base(Path(temporary) / "base.tar", epoch), system)
        compile_modules(system / "usr/lib" / f"python{PYTHON}", system)
        program_tree.unpack(wheels, program, PYTHON)
        compile_modules(program / PROGRAM / "lib", program)
        for root in (system, program):
            program_tree.set_modes(root, epoch)
        layers = [layer(system, epoch, level), layer(program, epoch, level, VOLUMES)]
    out.mkdir(parents=True, exist_ok=True)
    architecture = ARCHITECTURES[program_tree.machine_of(wheels)]
    image = out / f"edgeagent-{version}-oci-{architecture}.tar"
    about = configuration(version, architecture, layers, epoch)
    image.write_bytes(layout(about, layers, f"edgeagent:{version}", epoch))
    return image


def fetch_base(target: Path, epoch: int) -> Path:
    """Fetch Debian's packages into a tar file; return its path."""
    if shutil.which("mmdebstrap") is None:
        raise PackageError("mmdebstrap is missing: sudo apt install mmdebstrap")
    answer = subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(BASE)}", SUITE, str(target)],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
    )
    if answer.returncode:
        raise PackageError(f"mmdebstrap failed: {answer.stderr.strip()[-2000:]}")
    return target


def unpack_base(archive: Path, root: Path) -> None:
    """Write what the image has of Debian's packages, the account and the certificates below `root`."""
    authorities = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if name.startswith(f"{AUTHORITIES}/") and member.isfile():
                authorities[name] = _content(tar, member)
            elif not member.isdir() and KEPT.fullmatch(name) and not DROPPED.search(name):
                member.name = name
                tar.extract(member, root, filter="tar")
    files = {
        BUNDLE: b"".join(authorities[name] for name in sorted(authorities)),
        "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\n{USER}:x:{UID}:{UID}::{VOLUMES[1]}:/sbin/nologin\n".encode(),
        "etc/group": f"root:x:0:\n{USER}:x:{UID}:\n".encode(),
        "etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files dns\n",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def compile_modules(folder: Path, root: Path) -> None:
    """Compile all modules in a folder, which nothing in a container can do later."""
    is_own = f"{sys.version_info[0]}.{sys.version_info[1]}" == PYTHON
    python = sys.executable if is_own else shutil.which(f"python{PYTHON}")
    if python is None:
        raise PackageError(f"python{PYTHON} is missing: it compiles the image's modules")
    command = [
        python,
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode",
        "unchecked-hash",
        "-s",
        str(root),
        "-p",
        "/",
        str(folder),
    ]
    # Modules that are written for another version of Python do not compile, and are not imported.
    subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "0"}, stdout=subprocess.DEVNULL)


@dataclass(frozen=True, slots=True)
class Blob:
    """A compressed layer and the digest of its uncompressed content."""

    content: bytes
    diff_id: str


def layer(root: Path, epoch: int, level: int, volumes: Iterable[str] = ()) -> Blob:
    """Return a layer with everything below `root`, owned by root, and folders that the daemon's account owns."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            program_tree.add_member(tar, path, path.relative_to(root).as_posix(), epoch)
        for name in volumes:
            folder = tarfile.TarInfo(name.strip("/"))
            folder.type, folder.mode, folder.mtime, folder.uid, folder.gid = tarfile.DIRTYPE, 0o700, epoch, UID, UID
            tar.addfile(folder)
    content = raw.getvalue()
    return Blob(gzip.compress(content, level, mtime=0), _digest(content))


def configuration(version: str, architecture: str, layers: Sequence[Blob], epoch: int) -> dict[str, Any]:
    """Return the image's configuration. Healthcheck is Docker's addition; Podman ignores it in OCI images."""
    second = 1_000_000_000
    return {
        "created": _time(epoch),
        "architecture": architecture,
        "os": "linux",
        "config": {
            "User": f"{UID}:{UID}",
            "ExposedPorts": {f"{PORT}/tcp": {}},
            "Env": [f"{name}={value}" for name, value in sorted(ENVIRONMENT.items())],
            "Entrypoint": ["/usr/bin/edgeagent", "serve"],
            "Volumes": {volume: {} for volume in VOLUMES},
            "WorkingDir": "/",
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "edgeagent",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/edgeagent", "health"],
                "Interval": 30 * second,
                "Timeout": 10 * second,
                "StartPeriod": 60 * second,
                "Retries": 3,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [each.diff_id for each in layers]},
        "history": [
            {"created": _time(epoch), "created_by": "packages of Debian"},
            {"created": _time(epoch), "created_by": "wheels of edgeagent"},
        ],
    }


def layout(about: Mapping[str, Any], layers: Sequence[Blob], name: str, epoch: int) -> bytes:
    """Return an OCI image layout as a tar file: the image of a configuration and its layers, under a name."""
    config = _json(about)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _descriptor(CONFIG, config),
            "layers": [_descriptor(LAYER, each.content) for each in layers],
        }
    )
    platform = {"architecture": about["architecture"], "os": about["os"]}
    entry = {
        **_descriptor(MANIFEST, manifest),
        "platform": platform,
        "annotations": {"org.opencontainers.image.ref.name": name},
    }
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}),
        **{
            f"blobs/sha256/{_digest(content).removeprefix('sha256:')}": content
            for content in (config, manifest, *(each.content for each in layers))
        },
    }
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size, member.mode, member.mtime = len(content), 0o644, epoch
            tar.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2).encode()


def _time(epoch: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


if __name__ == "__main__":
    sys.exit(main())
