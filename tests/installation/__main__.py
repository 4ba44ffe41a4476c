"""Try the packages as their users do: `python -m tests.installation --wheels dist/offline`, as root on Debian.

The Debian package in a booted Debian, and the image as a container; both without a network. The tools: lintian,
mmdebstrap, systemd-nspawn (systemd-container), skopeo, umoci, crun.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.installation import debian, image
from tests.installation.steps import ROOT, TrialError, check, older_wheels, run, step

sys.path.insert(0, str(ROOT / "packaging"))
import deb
import oci
from setup_env import cache_dir

TOOLS = {
    "deb": ("lintian", "mmdebstrap", "systemd-nspawn", "nsenter", "setpriv"),
    "oci": ("mmdebstrap", "skopeo", "umoci", "crun", "nsenter", "unshare"),
}
# Debian's packages of the tools that have another name.
PACKAGES = {"systemd-nspawn": "systemd-container"} | dict.fromkeys(("nsenter", "setpriv", "unshare"), "util-linux")
# The same source under an older version. A revision that is older needs the engine that it was made for.
OLD_REVISION = "HEAD"


def main() -> int:
    """Try what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist" / "offline", help="one wheel of each package")
    parser.add_argument("--only", choices=tuple(TOOLS), help="try only this package")
    parser.add_argument("--old", default=OLD_REVISION, metavar="REVISION", help="what is installed before the upgrade")
    arguments = parser.parse_args()
    kinds = [arguments.only] if arguments.only else list(TOOLS)
    missing = sorted({tool for kind in kinds for tool in TOOLS[kind] if shutil.which(tool) is None})
    if missing or os.geteuid():
        install = f"apt install {' '.join(sorted({PACKAGES.get(tool, tool) for tool in missing}))}"
        print(f"test-install: {', '.join(missing)} missing: {install}" if missing else "test-install: run it as root")
        return 1
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1790000000")
    with tempfile.TemporaryDirectory(prefix="edgeagent-install-") as temporary:
        folder = Path(temporary)
        try:
            old = older_wheels(arguments.wheels, folder / "older", arguments.old)
            if "deb" in kinds:
                try_deb(old, arguments.wheels, folder)
            if "oci" in kinds:
                try_oci(old, arguments.wheels, folder)
        except TrialError as error:
            print(f"test-install: {error}", file=sys.stderr)
            return 1
    print("test-install: all is as it should be")
    return 0


def try_deb(old: Path, wheels: Path, folder: Path) -> None:
    """Make both versions of the Debian package, check the new one and try them."""
    with step("deb: make the package twice, and the older one"):
        first, second = (deb.make(wheels, folder / name, level=0) for name in ("first", "second"))
        check(first.read_bytes() == second.read_bytes(), "the same wheels give two different packages")
        before = deb.make(old, folder / "old-deb", level=0)
    with step(f"deb: lintian, {first.stat().st_size / 1e6:.0f} MB"):
        print(run("lintian", "--allow-root", "--fail-on=error,warning", first).strip() or "    no error, no warning")
    archive = debian.clean_root(cache_dir() / "install" / f"{debian.SUITE}.tar")
    debian.try_package(before, first, archive, folder)


def try_oci(old: Path, wheels: Path, folder: Path) -> None:
    """Make both versions of the image, and try them."""
    with step("oci: fetch Debian's packages"):
        base = oci.fetch_base(folder / "base.tar", int(os.environ["SOURCE_DATE_EPOCH"]))
    with step("oci: make the image twice, and the older one"):
        first, second = (oci.make(wheels, folder / name, base, level=1) for name in ("image", "again"))
        check(first.read_bytes() == second.read_bytes(), "the same wheels give two different images")
        before = oci.make(old, folder / "old-image", base, level=1)
    image.try_image(before, first, folder)


if __name__ == "__main__":
    sys.exit(main())
