"""Measures kept answers: `python -m tests.peer.answers [--entries 100000] [--rounds 300]`, about two minutes.

It fills the store of a daemon with answers, starts the daemon with the bundled model, and measures over HTTP: the time
to the first byte of the body of a kept answer, and what a question that is not kept pays for the look-up. For the
second, questions with and without the cache go to the same daemon by turns, each with a prompt of its own and one
token of answer, so the load of the machine is the same for both. It prints rows for docs/figures.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import tempfile
import time
from pathlib import Path

import psutil

from edgeagent.answers.answer import Answer, encode
from edgeagent.answers.database import AnswerDatabase
from edgeagent.answers.seal import Seal
from edgeagent.bench.stats import median, quantile
from edgeagent.cache_folder import ensure_secret
from edgeagent.state_files import ANSWERS_FILE
from edgeagent.types import Finished, FinishReason, Started, Step, TextDelta, Timings, Usage
from tests.integration.conftest import Daemon, serving
from tests.patience import patient

MAX_BYTES = 4 << 30
PATH = "/v1/chat/completions"


def fill(state_dir: Path, num_entries: int) -> None:
    """Write answers of about 150 words under random keys, in one transaction, as the daemon would seal them."""
    seal, chance = Seal(ensure_secret(state_dir)), random.Random(1)
    words = [chance.randbytes(3).hex() for _ in range(2000)]
    database = AnswerDatabase(state_dir / ANSWERS_FILE, MAX_BYTES)
    connection = database._connection
    connection.execute("BEGIN")
    end = Finished(FinishReason.STOP, Usage(40, 0, 150), Timings())
    for number in range(num_entries):
        text = " ".join(chance.choices(words, k=150))
        step = Step((TextDelta(text),), tuple(range(150)))
        content = encode(Answer(f"question {number}", "builtin", "", time.time(), Started(40, 0), (step,), end))
        assert content is not None
        key = chance.randbytes(32)
        sealed = seal.seal(key, content)
        row = (key, "", "builtin", sealed, time.time(), number, 0, len(sealed) + 256)
        connection.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    connection.execute("COMMIT")
    database.close()


class Asker:
    """Asks on one open connection."""

    def __init__(self, daemon: Daemon) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=patient(60))

    def first_byte_ms(self, question: str, max_tokens: int, answers: str) -> tuple[float, bool]:
        """Return the milliseconds from sending a request to the first byte of its stream, and whether it was kept."""
        body = {
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": max_tokens,
            "stream": True,
            "edgeagent": {"answers": answers},
        }
        began_s = time.perf_counter()
        self._connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        first = answer.read(1)
        took_ms = 1000 * (time.perf_counter() - began_s)
        rest = first + answer.read()
        return took_ms, b'"served_by":"answers"' in rest.replace(b" ", b"")


def measure(daemon: Daemon, num_rounds: int, num_entries: int) -> None:
    """Print the table."""
    asker = Asker(daemon)
    process = psutil.Process(daemon.process.pid)
    questions = [f"What is the number of the room {number}?" for number in range(20)]
    for question in questions:
        asker.first_byte_ms(question, 40, "use")
    before_s = cpu_s(process)
    hits = [asker.first_byte_ms(questions[index % 20], 40, "use") for index in range(num_rounds)]
    hit_cpu_ms = 1000 * (cpu_s(process) - before_s) / num_rounds
    kept_ms = [took_ms for took_ms, is_kept in hits if is_kept]
    taken: dict[str, list[float]] = {"use": [], "none": []}
    spent_ms = {"use": 0.0, "none": 0.0}
    for number in range(2 * num_rounds):
        # Each prompt is new. The order of the two changes from pair to pair.
        mode = "use" if number % 4 in (0, 3) else "none"
        before_s = cpu_s(process)
        taken[mode].append(asker.first_byte_ms(f"{10_000 + number}: yes or no?", 1, mode)[0])
        spent_ms[mode] += 1000 * (cpu_s(process) - before_s)
    added_ms = [use - none for use, none in zip(taken["use"], taken["none"], strict=True)]
    print("| | measured | bar |")
    print("|---|---|---|")
    print(f"| a kept answer among {num_entries:,}, to the first byte, 95 % | {quantile(kept_ms, 0.95):.1f} ms | 5 ms |")
    print(f"| – median | {median(kept_ms):.1f} ms | |")
    print(f"| – the daemon's CPU time, to the end of the answer | {hit_cpu_ms:.1f} ms | |")
    print(f"| what a question that is not kept pays, median | {median(added_ms):.1f} ms | 3 ms |")
    added_cpu_ms = (spent_ms["use"] - spent_ms["none"]) / num_rounds
    print(f"| – the daemon's CPU time, with keeping the answer | {added_cpu_ms:.1f} ms | |")
    print(f"| – to the first byte without the cache, median | {median(taken['none']):.1f} ms | |")
    print(f"\n{len(kept_ms)} of {len(hits)} were kept ones; load of the machine {os.getloadavg()[0]:.1f}")


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time of the daemon's own process so far, without its workers'."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=300)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state_dir = Path(folder) / "state"
        state_dir.mkdir(mode=0o700)
        fill(state_dir, asked.entries)
        flags = ("--answers-exact", "--answers-max-bytes", str(MAX_BYTES), "--cache-disk-bytes", "0")
        with serving(state_dir, *flags) as daemon:
            measure(daemon, asked.rounds, asked.entries)


if __name__ == "__main__":
    _main()
