"""Runs every attack beside a live stream: `python -m tests.peer.attack [NAME...]`, in a few minutes on a quiet machine.

The attacks are the kinds of client-made work of tests/robust/test_client_work.py and tests/integration/
test_bounded_work.py, and what else a hostile client or a failing machine does. A process of its own reads the stream.
For each attack the script prints the largest gap of the stream, and how much more memory the daemon and the worker hold
afterwards. It exits with 1 if a gap, the memory or an answer is not as it should be.

An attack that stops or replaces the worker has no limit of the gap: the stream waits for the worker, and must go on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import httpx
import psutil

from edgeagent.runtime_file import find_daemon
from tests.integration import test_bounded_work as bounded
from tests.integration import test_cycles as mixed
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.robust import test_client_work as work
from tests.robust.frames import FIN, PING, frame
from tests.robust.test_F1_random_faults import victims

MAX_GAP_S = 0.25
MAX_KEPT_MIB = 20.0
REPORT_EVERY_S = 0.02
SETTLE_S = 20.0
# A worker keeps the context that embeds texts for a minute after the last one.
EMBEDDING_SETTLE_S = 80.0
PATIENCE_S = 60.0
NUM_MIXED = 2000
# A worker that has just begun grows by 25 MiB in so many, mostly by compiled grammars; later ones add little.
NUM_FILLING = 500
NUM_CLIENTS = 4
HOLD_S = 2.0
MIB = 1 << 20


class Canary:
    """The stream beside the attacks, which another process reads. A report gives the largest gap since the last one."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "tests.peer.attack", "--canary", str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._changed = threading.Condition()
        self._largest_s, self._num_tokens = 0.0, 0
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in cast(IO[str], self._process.stdout):
            report = json.loads(line)
            with self._changed:
                self._largest_s = max(self._largest_s, report["gap_s"])
                self._num_tokens = report["num_tokens"]
                self.errors = report["errors"]
                self._changed.notify_all()

    def largest_gap_s(self) -> float:
        """Return the largest gap since the last call, once a token has come that was sent after this call."""
        with self._changed:
            wanted = self._num_tokens + 2
            goes_on = self._changed.wait_for(lambda: self._num_tokens >= wanted or bool(self.errors), PATIENCE_S)
            largest_s, self._largest_s = self._largest_s, 0.0
        return largest_s if goes_on and not self.errors else PATIENCE_S

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        cast(IO[str], self._process.stdout).close()


def report_gaps(port: int) -> None:
    """Read a stream from the daemon at a port, and print the largest gap again and again, until this process ends."""
    with work.Canary(cast(Daemon, SimpleNamespace(port=port))) as canary:
        while True:
            time.sleep(REPORT_EVERY_S)
            gap_s = canary.largest_gap_s()
            report = {"gap_s": gap_s, "num_tokens": canary.num_tokens, "errors": canary.errors}
            print(json.dumps(report), flush=True)


@dataclass(frozen=True)
class Attack:
    """Something that is done to a daemon. `run` returns what is wrong with its outcome; empty if nothing is.

    `fill` is called before the memory is measured, so that caches that are kept on purpose are full.
    """

    name: str
    run: Callable[[Daemon], str]
    stops_worker: bool = False
    settle_s: float = SETTLE_S
    fill: Callable[[Daemon], str] | None = None


def client_work() -> Iterator[Attack]:
    """Yield the kinds of work that a client makes for the daemon, each one step beyond its bound."""
    for each in work.members():

        def run(daemon: Daemon, member: work.Member = each) -> str:
            outcome = member.send(daemon)
            found = outcome if isinstance(outcome, set) else {outcome}
            return "" if found <= member.outcomes else f"got {found}, not {set(member.outcomes)}"

        yield Attack(each.name, run, settle_s=EMBEDDING_SETTLE_S if "embed" in each.name else SETTLE_S)


def worker_work() -> Iterator[Attack]:
    """Yield the kinds of work that a client makes for the worker, each one step beyond its bound."""
    for each in bounded.MEMBERS:

        def run(daemon: Daemon, member: bounded.Member = each) -> str:
            worker = daemon.worker_pid()
            fields = {"model": "builtin", "messages": bounded.ASKED, "max_tokens": 4, **member.fields}
            body = {name: value for name, value in fields.items() if value is not None}
            reply = httpx.post(daemon.url + member.path, json=body, timeout=PATIENCE_S)
            if reply.status_code not in (400, 413) or member.words not in reply.text:
                return f"got {reply.status_code} {reply.text[:100]}"
            return "" if daemon.worker_pid() == worker else "the worker was replaced"

        yield Attack(f"worker: {each.name}", run)


def quarantine(daemon: Daemon) -> str:
    """Send different grammars that each take too much CPU time; a plain request must still be answered."""
    worker = daemon.worker_pid()
    for number in range(4):
        patterns = [{"pattern": f".*{index + 100 * number}x.*"} for index in range(24)]
        schema = {"allOf": [{"properties": {"a": {"type": "string", **each}}} for each in patterns]}
        fields = bounded._format({"type": "object", **schema})
        body = {"model": "builtin", "messages": bounded.ASKED, "max_tokens": 4, **fields}
        httpx.post(f"{daemon.url}{work.CHAT}", json=body, timeout=PATIENCE_S)
    reply = httpx.post(f"{daemon.url}{work.CHAT}", json=work.chat(), timeout=PATIENCE_S)
    return (
        "" if (reply.status_code, daemon.worker_pid()) == (200, worker) else f"{reply.status_code} {reply.text[:100]}"
    )


def ping_flood(daemon: Daemon) -> str:
    """Send pings as fast as they are taken, on four sockets at once."""
    with ExitStack() as held:
        for _ in range(4):
            opened = held.enter_context(closing(work.Socket.open(daemon).opened))
            pings = frame(FIN | PING, b"x" * 125) * 50_000
            threading.Thread(target=work.quietly, args=(opened, pings), daemon=True).start()
        time.sleep(HOLD_S)
    return ""


def wyoming_flood(daemon: Daemon) -> str:
    """Send events of Wyoming as fast as they are taken: pings, questions, long headers."""
    question = {"type": "transcript", "data": {"text": "Count to a hundred.", "language": "en"}}
    floods = [json.dumps(event).encode() + b"\n" for event in ({"type": "ping"}, question, {"type": "x" * 60_000})]
    with ExitStack() as held:
        for flood in floods * 8:
            opened = held.enter_context(closing(socket.create_connection(("127.0.0.1", daemon.wyoming_port))))
            opened.settimeout(HOLD_S)
            threading.Thread(target=work.quietly, args=(opened, flood * ((8 << 20) // len(flood))), daemon=True).start()
        time.sleep(HOLD_S)
    return ""


def slow_readers(daemon: Daemon) -> str:
    """Ask for long answers on twenty connections and twenty sockets, and read none of them."""
    body = json.dumps({"prompt": "x", "max_tokens": 400, "stream": True, "logit_bias": {"2041": -100}}).encode()
    head = work.head(
        daemon, f"POST {work.COMPLETIONS}", "Content-Type: application/json", f"Content-Length: {len(body)}"
    )
    with ExitStack() as held:
        for number in range(40):
            opened = socket.socket()
            held.enter_context(closing(opened))
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            opened.connect(("127.0.0.1", daemon.port))
            if number % 2:
                opened.sendall(head + body)
            else:
                opened.sendall(
                    f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\n{work.HANDSHAKE}".encode()
                )
                opened.recv(1024)
                work.quietly(opened, work.created(max_output_tokens=400, logit_bias={"2041": -100}) * 20)
        time.sleep(HOLD_S)
    return ""


def half_open(daemon: Daemon) -> str:
    """Leave a hundred sockets open and silent for a while, then reset them in the middle of an answer."""
    held = [work.Socket.open(daemon).opened for _ in range(100)]
    for opened in held[:20]:
        opened.sendall(work.created(max_output_tokens=200))
    time.sleep(HOLD_S)
    for opened in held:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        opened.close()
    return ""


def wrong_tokens(daemon: Daemon) -> str:
    with httpx.Client(base_url=daemon.url) as client:
        found = {
            client.get("/v1/models", headers={"Authorization": f"Bearer edge_{n:043}"}).status_code for n in range(300)
        }
    return "" if found == {401} else f"got {found}"


def lost_runtime_file(daemon: Daemon) -> str:
    """Delete daemon.json; the daemon must write it again."""
    (daemon.state_dir / "daemon.json").unlink()
    deadline_s = time.monotonic() + PATIENCE_S
    while find_daemon(daemon.state_dir) is None:
        if time.monotonic() > deadline_s:
            return "it does not come back"
        time.sleep(0.05)
    return ""


@contextmanager
def limited(pids: list[int], kind: int, most: int) -> Iterator[None]:
    before = {pid: resource.prlimit(pid, kind) for pid in pids}
    for pid in pids:
        resource.prlimit(pid, kind, (most, before[pid][1]))
    try:
        yield
    finally:
        for pid in pids:
            resource.prlimit(pid, kind, before[pid])


def few_descriptors(daemon: Daemon) -> str:
    """Leave the daemon eight descriptors, and open a hundred connections."""
    with limited([daemon.process.pid], resource.RLIMIT_NOFILE, psutil.Process(daemon.process.pid).num_fds() + 8):
        held = [work.connected(daemon) for _ in range(100)]
        time.sleep(HOLD_S)
        for opened in held:
            opened.close()
    return ""


def full_disk(daemon: Daemon) -> str:
    """Let no file of the daemon and its worker grow, while responses are stored and prompts cached."""
    with limited([daemon.process.pid, daemon.worker_pid()], resource.RLIMIT_FSIZE, 0):
        found = set()
        for number in range(20):
            body = {"input": f"{number} is a number. " * 100, "max_output_tokens": 2}
            found.add(httpx.post(f"{daemon.url}{work.RESPONSES}", json=body, timeout=PATIENCE_S).status_code)
        time.sleep(HOLD_S)
    return "" if max(found) < 500 else f"got {found}"


def damaged_cache(daemon: Daemon) -> str:
    """Overwrite every file of cached prompts with another one's beginning, and ask for the same prompts."""
    files = [path for path in (daemon.state_dir / "cache").rglob("*") if path.is_file() and path.stat().st_size]
    for path, other in zip(files, [*files[1:], *files[:1]], strict=True):
        path.write_bytes(other.read_bytes()[:4096] + b"\0" * 4096)
    return full_of_prompts(daemon)


def full_of_prompts(daemon: Daemon) -> str:
    bodies = [{"input": f"{number} is a number. " * 100, "max_output_tokens": 2} for number in range(20)]
    found = {httpx.post(f"{daemon.url}{work.RESPONSES}", json=body, timeout=PATIENCE_S).status_code for body in bodies}
    return "" if found == {200} else f"got {found}"


def mixed_requests(daemon: Daemon, count: int = NUM_MIXED) -> str:
    """Send requests of all kinds, a third of which are refused, from several clients at once."""

    async def client(numbers: range) -> None:
        for number in numbers:
            await mixed.request(daemon, number)

    async def run() -> None:
        await asyncio.gather(*(client(range(first, count, NUM_CLIENTS)) for first in range(NUM_CLIENTS)))

    try:
        asyncio.run(run())
    except (AssertionError, httpx.HTTPError) as error:
        return repr(error)[:200]
    return ""


def killed(part: str) -> Callable[[Daemon], str]:
    def run(daemon: Daemon) -> str:
        for victim in victims(daemon, part)[:1]:
            victim.kill()
        schema = {"type": "object", "properties": {f"{part}{time.time_ns()}": {"type": "integer"}}}
        body = work.chat(**bounded._format(schema))
        reply = httpx.post(f"{daemon.url}{work.CHAT}", json=body, timeout=PATIENCE_S)
        return "" if reply.status_code == 200 else f"got {reply.status_code} {reply.text[:100]}"

    return run


def stopped(part: str) -> Callable[[Daemon], str]:
    def run(daemon: Daemon) -> str:
        found = victims(daemon, part)
        for victim in found:
            victim.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        for victim in found:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGCONT)
        return ""

    return run


def attacks() -> list[Attack]:
    """Return every attack. Those that replace the worker come last, since the next one begins with empty caches."""
    return [
        *client_work(),
        *worker_work(),
        Attack("grammars that quarantine a model", quarantine),
        Attack("a flood of pings", ping_flood),
        Attack("a flood of Wyoming events", wyoming_flood),
        Attack("readers that do not read", slow_readers),
        Attack("silent sockets, reset", half_open),
        Attack("wrong tokens", wrong_tokens),
        Attack("daemon.json deleted", lost_runtime_file),
        Attack("few descriptors", few_descriptors),
        Attack("a full disk", full_disk),
        Attack("cached prompts damaged and swapped", damaged_cache),
        Attack(
            f"{NUM_MIXED} mixed requests",
            mixed_requests,
            settle_s=EMBEDDING_SETTLE_S,
            fill=partial(mixed_requests, count=NUM_FILLING),
        ),
        Attack("renderer stopped", stopped("renderer")),
        Attack("renderer killed", killed("renderer")),
        Attack("worker stopped", stopped("worker"), stops_worker=True),
        Attack("worker killed", killed("worker"), stops_worker=True),
    ]


def memory_mib(daemon: Daemon) -> tuple[float, float]:
    """Return the memory of the daemon and of its worker."""
    return tuple(psutil.Process(pid).memory_info().rss / MIB for pid in (daemon.process.pid, daemon.worker_pid()))


def kept_mib(daemon: Daemon, before: tuple[float, float], settle_s: float) -> tuple[float, float]:
    """Return how much more memory both hold than before, once it is little or after a while, with the cache purged."""
    deadline_s = time.monotonic() + settle_s
    while True:
        daemon_mib, worker_mib = (now - then for now, then in zip(memory_mib(daemon), before, strict=True))
        if max(daemon_mib, worker_mib) <= MAX_KEPT_MIB or time.monotonic() > deadline_s:
            return daemon_mib, worker_mib
        if worker_mib > MAX_KEPT_MIB:
            daemon.run("cache", "purge")
        time.sleep(0.2)


def run(daemon: Daemon, chosen: list[Attack]) -> list[dict[str, Any]]:
    """Run attacks beside a stream, print a line for each, and return the lines."""
    rows = []
    canary = Canary(daemon.port)
    try:
        canary.largest_gap_s()
        for attack in chosen:
            if attack.fill is not None:
                attack.fill(daemon)
                daemon.run("cache", "purge")
            before = memory_mib(daemon)
            canary.largest_gap_s()
            began_s = time.monotonic()
            wrong = attack.run(daemon)
            gap_s, took_s = canary.largest_gap_s(), time.monotonic() - began_s
            kept = (
                kept_mib(daemon, before, attack.settle_s)
                if not attack.stops_worker
                else (memory_mib(daemon)[0] - before[0], 0.0)
            )
            faults = [wrong] if wrong else []
            faults += ["GAP"] if gap_s > (PATIENCE_S if attack.stops_worker else MAX_GAP_S) else []
            faults += ["MEMORY"] if max(kept) > MAX_KEPT_MIB else []
            faults += [f"THE STREAM ENDED: {canary.errors[0][:100]}"] if canary.errors else []
            print(
                f"{attack.name:44.44} {took_s:6.1f} s  gap {1000 * gap_s:5.0f} ms{'*' if attack.stops_worker else ' '}"
                f"  daemon {kept[0]:+6.1f}  worker {kept[1]:+6.1f} MiB  {'; '.join(faults)}",
                flush=True,
            )
            rows.append({"name": attack.name, "gap_s": gap_s, "kept_mib": kept, "faults": faults})
            if canary.errors:
                break
    finally:
        canary.stop()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only attacks whose name has one of these words")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--canary", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.canary is not None:
        report_gaps(options.canary)
    chosen = [each for each in attacks() if not options.names or any(name in each.name for name in options.names)]
    with tempfile.TemporaryDirectory() as folder:
        daemon = start_daemon(Path(folder) / "state", "builtin", "--wyoming", "0")
        try:
            for attack in attacks():  # what is loaded lazily is not what an attack keeps
                if attack.name in work.WARM_UP:
                    attack.run(daemon)
            began_s = time.monotonic()
            rows = run(daemon, chosen)
        finally:
            stop_daemon(daemon)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    bad = [row["name"] for row in rows if row["faults"]]
    largest = max((row["gap_s"] for row, each in zip(rows, chosen, strict=False) if not each.stops_worker), default=0.0)
    print(f"{len(rows)} attacks in {time.monotonic() - began_s:.0f} s; largest gap {1000 * largest:.0f} ms")
    print(f"not as it should be: {', '.join(bad)}" if bad else "all as it should be")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
