"""A process that writes records until it is killed: `python -m tests.answers.similar.records_writer FILE NUMBER`."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from edgeagent.answers.key import KEY_BYTES
from edgeagent.answers.seal import Seal
from edgeagent.answers.similar.records import Kept, Learned, Records

SEAL = Seal(bytes(32))
NUM_KEPT = 20


def key_of(number: int) -> bytes:
    return number.to_bytes(KEY_BYTES, "big")


def kept_of(number: int) -> Kept:
    return Kept(b"place", f"question {number}", bytes([number % 256]) * 1536, ((0.9, True),) * (number % 8))


def learned_of(number: int) -> Learned:
    """Return a record of the size of a real one."""
    return Learned("file", "text", 0.01, {b"group": {"evidence": key_of(number) * 720}}, {"counts": [float(number)]})


def main(path: str, first: str) -> None:
    """Write records from a number on, remove the oldest, and tell each number that is written."""
    records = Records(Path(path), SEAL)
    for number in itertools.count(int(first)):
        records.put(learned_of(number), {key_of(number): kept_of(number)})
        records.remove([key_of(number - NUM_KEPT)])
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
