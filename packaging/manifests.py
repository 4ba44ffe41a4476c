"""Write the Homebrew formula and the winget manifests of a release: `python packaging/manifests.py --url BASE`.

BASE is where the release's files can be fetched. Digests are those of the files in dist/. Neither was ever run: they
were written from the documentation of Homebrew and winget, and are checked as far as that is possible elsewhere
(tests/packaging/test_manifests.py).
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

from edgeagent import __version__

ROOT = Path(__file__).resolve().parent.parent

SUMMARY = "Run language models on this machine"
IDENTIFIER = "edgeagent.edgeagent"
SCHEMA = "1.10.0"
# Archives of a release, made by packaging/dist.py on each kind of machine: dist/offline as a tar file on a Mac, and
# packaging/windows_zip.py on Windows.
MAC = {"arm": "edgeagent-{version}-macos-arm64.tar.gz", "intel": "edgeagent-{version}-macos-x86_64.tar.gz"}
WINDOWS = "edgeagent-{version}-windows-x64.zip"
FORMULA = """\
# Made by packaging/manifests.py. Never run: no Mac was at hand.
class Edgeagent < Formula
  include Language::Python::Virtualenv

  desc "{summary}"
  homepage "{url}"
  version "{version}"
  license "Apache-2.0"

  depends_on "python@3.13"

  on_macos do
    on_arm do
      url "{arm_url}"
      sha256 "{arm_sha256}"
    end
    on_intel do
      url "{intel_url}"
      sha256 "{intel_sha256}"
    end
  end

  # The archive has a wheel of each package, the engine too, so nothing is compiled or fetched.
  def install
    virtualenv_create(libexec, "python3.13")
    system "python3.13", "-m", "pip", "--python=#{{libexec}}/bin/python", "install", "--no-index",
           "--find-links=#{{buildpath}}", "edgeagent==#{{version}}"
    bin.install_symlink libexec/"bin/edgeagent"
    man1.install "edgeagent.1"
    bash_completion.install "edgeagent.bash" => "edgeagent"
    zsh_completion.install "_edgeagent"
    fish_completion.install "edgeagent.fish"
  end

  # State, settings and the token are the user's: ~/Library/Application Support/edgeagent.
  service do
    run [opt_bin/"edgeagent", "serve", "--log-file", var/"log/edgeagent.log"]
    keep_alive successful_exit: false
    process_type :interactive
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/edgeagent version")
    ENV["XDG_STATE_HOME"] = testpath
    refute_empty shell_output("#{{bin}}/edgeagent run builtin 'What can you do?' --state-dir #{{testpath}}").strip
  end
end
"""
VERSION_MANIFEST = """\
# Made by packaging/manifests.py. Never run: no Windows was at hand.
PackageIdentifier: {identifier}
PackageVersion: {version}
DefaultLocale: en-US
ManifestType: version
ManifestVersion: {schema}
"""
# The command needs the files beside it: winget adds the folder to PATH and makes no link to the command elsewhere.
INSTALLER_MANIFEST = """\
# Made by packaging/manifests.py. Never run: no Windows was at hand.
PackageIdentifier: {identifier}
PackageVersion: {version}
Platform:
- Windows.Desktop
MinimumOSVersion: 10.0.17763.0
InstallerType: zip
NestedInstallerType: portable
NestedInstallerFiles:
- RelativeFilePath: edgeagent\\edgeagent.exe
  PortableCommandAlias: edgeagent
ArchiveBinariesDependOnPath: true
UpgradeBehavior: uninstallPrevious
Commands:
- edgeagent
Dependencies:
  PackageDependencies:
  - PackageIdentifier: Microsoft.VCRedist.2015+.x64
Installers:
- Architecture: x64
  InstallerUrl: {windows_url}
  InstallerSha256: {windows_sha256}
ManifestType: installer
ManifestVersion: {schema}
"""
LOCALE_MANIFEST = """\
# Made by packaging/manifests.py. Never run: no Windows was at hand.
PackageIdentifier: {identifier}
PackageVersion: {version}
PackageLocale: en-US
Publisher: edgeagent
PackageName: edgeagent
PackageUrl: {url}
License: Apache-2.0
ShortDescription: {summary}
Tags:
- gguf
- inference
- llama.cpp
- llm
ManifestType: defaultLocale
ManifestVersion: {schema}
"""


def main() -> int:
    """Write the files; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where the files of the release can be fetched")
    parser.add_argument("--files", type=Path, default=ROOT / "dist", help="folder with the files of the release")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    names = {"windows": WINDOWS, **MAC}
    files = {kind: arguments.files / name.format(version=__version__) for kind, name in names.items()}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        print(f"manifests: {arguments.files} lacks {', '.join(missing)}", file=sys.stderr)
        return 1
    for name, text in manifests(arguments.url, __version__, files).items():
        path = arguments.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path)
    return 0


def manifests(url: str, version: str, files: Mapping[str, Path]) -> dict[str, str]:
    """Return the text of each file. `files`: the archives for "arm", "intel" and "windows"."""
    values = {"url": url, "version": version, "summary": SUMMARY, "identifier": IDENTIFIER, "schema": SCHEMA}
    for kind, path in files.items():
        values[f"{kind}_url"] = f"{url.rstrip('/')}/{path.name}"
        values[f"{kind}_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    values["windows_sha256"] = values["windows_sha256"].upper()
    return {
        "homebrew/edgeagent.rb": FORMULA.format(**values),
        f"winget/{IDENTIFIER}.yaml": VERSION_MANIFEST.format(**values),
        f"winget/{IDENTIFIER}.installer.yaml": INSTALLER_MANIFEST.format(**values),
        f"winget/{IDENTIFIER}.locale.en-US.yaml": LOCALE_MANIFEST.format(**values),
    }


if __name__ == "__main__":
    sys.exit(main())
