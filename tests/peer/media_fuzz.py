"""Decodes mutations of images and sounds for some minutes: `python -m tests.peer.media_fuzz --minutes 60 [FOLDER...]`.

The files are those of tests/media_corpus.py, those of CPython's own tests where they are installed, and all small
images and sounds in the folders. Each mutation must be read or refused as a client's error, by a process that goes on.
A process of its own decodes them, so a crash is told with the seed that caused it. The program exits with 1 if a
mutation crashed the process, raised another error, or took too long or too much memory.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.model import Model
from edgeagent.engine.llama.projector import Projector
from edgeagent.errors import InvalidRequest
from edgeagent.media_files import mime_of
from edgeagent.types import MediaKind, MemoryKind
from edgeagent.worker.child.generator.media_file import check_medium
from tests.media_corpus import File, by_pillow, by_rule, mutated
from tests.models import make_tiny_model
from tests.projectors import make_projector, medium

MAX_FILE_BYTES = 200_000
MAX_S = 20.0
MAX_GROWTH_MIB = 900  # the worker ends itself beyond 1 GiB
SOUNDS_PER_LAYOUT = 50  # the spectra of half a minute take longer than the decoder
OF_PYTHON = Path(sysconfig.get_path("stdlib"), "test")
"""Where CPython's tests are: a logo in each format, saved by usual programs, and a recorded string."""
SUFFIXES = {".png", ".gif", ".jpg", ".jpeg", ".webp", ".bmp", ".wav", ".mp3", ".flac"}


class Decoders:
    """A projector for images and one for sounds, which check and decode files as a worker does."""

    def __init__(self, folder: Path) -> None:
        self._num_sounds = 0
        model = Model(make_tiny_model(folder / "m.gguf", MemoryKind.FULL_ATTENTION), EngineConfig())
        self._seeing = Projector(make_projector(folder / "see.gguf", "lfm2"), model, num_threads=1)
        self._hearing = Projector(make_projector(folder / "hear.gguf", "ultravox"), model, num_threads=1)

    def outcome(self, kind: MediaKind, data: bytes) -> str:
        """Return whether a file is read or refused."""
        try:
            check_medium(medium(data, kind))
            self._num_sounds += kind == "audio"
            if kind == "image":
                assert self._seeing.layout(data)
            elif self._num_sounds % SOUNDS_PER_LAYOUT:
                self._hearing._mtmd.mtmd_bitmap_free(self._hearing._bitmap(data))
            else:
                assert self._hearing.layout(data)
        except InvalidRequest:
            return "refused"
        return "read"


def real_files(folders: list[Path]) -> list[File]:
    """Return the small images and sounds in these folders, each once."""
    found: dict[File, None] = {}
    for path in sorted(path for folder in folders for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES):
        if path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
            data = path.read_bytes()
            if mime := mime_of(data):
                found["image" if mime.startswith("image/") else "audio", data] = None
    return list(found)


def decode(first: int, until_s: float, folders: list[Path]) -> None:
    """Decode one mutation for each seed, and print each seed before it. Print the counts at the end."""
    with tempfile.TemporaryDirectory() as folder:
        decoders = Decoders(Path(folder))
    files = [*by_rule(), *by_pillow(), *real_files([OF_PYTHON, *folders])]
    outcomes, by_mime = Counter[str](), Counter[str]()
    forms: dict[str, list[File]] = {}
    for kind, data in files:
        forms.setdefault(mime_of(data), []).append((kind, data))
    others = [data for _, data in files]
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seed = first
    while time.time() < until_s:
        chance = random.Random(seed)
        kind, data = chance.choice(forms[chance.choice(sorted(forms))])
        print(seed, flush=True)
        began_s = time.monotonic()
        outcome = decoders.outcome(kind, mutated(data, chance, others))
        took_s = time.monotonic() - began_s
        outcomes[outcome] += 1
        by_mime[f"{mime_of(data)} {outcome}"] += 1
        growth_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) >> 10
        assert growth_mib < MAX_GROWTH_MIB, f"it took {growth_mib} MiB"
        assert took_s < MAX_S, f"it took {took_s:.1f} s"
        seed += 1
    print(f"{len(files)} files, {dict(outcomes)}, {growth_mib} MiB more at most: {dict(sorted(by_mime.items()))}")


def main() -> int:
    """Run processes until the time is over; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    parser.add_argument("folders", nargs="*", type=Path)
    options = parser.parse_args()
    if options.until is not None:
        decode(options.first, options.until, options.folders)
        return 0
    first, until_s, num_failed = options.first, time.time() + 60 * options.minutes, 0
    while time.time() < until_s:
        command = [sys.executable, "-m", "tests.peer.media_fuzz", "--first", str(first), "--until", str(until_s)]
        done = subprocess.run([*command, *map(str, options.folders)], capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        if done.returncode == 0:
            print(f"{len(lines) - 1} mutations from seed {first} on; {lines[-1]}")
            continue
        seed = lines[-1] if lines else "none"
        print(f"seed {seed} ended the process with {done.returncode}: {done.stderr.strip()[-2000:]}", flush=True)
        num_failed += 1
        if not lines:
            break
        first = int(seed) + 1
    print(f"{num_failed} failed")
    return min(num_failed, 1)


if __name__ == "__main__":
    sys.exit(main())
