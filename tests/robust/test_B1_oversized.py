"""B1: a message over the cap is refused at once and not kept; the cap is api.md's 16 MiB (§8.4)."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from edgeagent.config import ServerConfig
from tests.robust.fake_serve import Process, serving
from tests.robust.frames import CLOSE, CONTINUATION, FIN, PING, RSV1, TEXT, frame
from tests.robust.test_L1_idle_sockets import open_socket

MIB = 1 << 20
CAP = ServerConfig().max_frame_bytes
MAX_GROWN_BYTES = 4 * MIB
CLOSE_S = 0.1
NUM_TRIES = 4
NO_MASK = bytes(4)

Send = Callable[[socket.socket], None]


def by_its_head(opened: socket.socket) -> None:
    """Announce one byte too many, and try to send them all."""
    opened.sendall(bytes([FIN | TEXT, 0xFF]) + struct.pack("!Q", CAP + 1) + NO_MASK)
    with opened.dup() as rest:
        try:
            for _ in range(CAP // MIB):
                rest.sendall(b" " * MIB)
        except OSError:  # closed while sending
            pass


def compressed(opened: socket.socket) -> None:
    """Send a compression bomb, although compression was not negotiated."""
    opened.sendall(frame(FIN | RSV1 | TEXT, b"\x00" * 1000))


def long_ping(opened: socket.socket) -> None:
    opened.sendall(frame(FIN | PING, b"x" * 126))


def piled_up(opened: socket.socket) -> None:
    """Send fragments up to the cap, which are kept, and one more."""
    opened.sendall(frame(TEXT, b""))
    piece = bytes([CONTINUATION, 0xFF]) + struct.pack("!Q", MIB) + NO_MASK + b" " * MIB
    for _ in range(CAP // MIB):
        opened.sendall(piece)
    opened.sendall(frame(CONTINUATION, b" "))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    with serving(tmp_path_factory.mktemp("b1") / "state") as process:
        yield process


@pytest.mark.alone
@pytest.mark.parametrize(
    ("send", "code", "held_bytes"),
    [(by_its_head, 1009, 0), (compressed, 1002, 0), (long_ping, 1002, 0), (piled_up, 1009, CAP)],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_it_is_closed_at_once_and_nothing_is_held(daemon: Process, send: Send, code: int, held_bytes: int) -> None:
    process = psutil.Process(daemon.process.pid)
    attempt(daemon, send)  # the first attempt pays for lazy loading
    took_s: list[float] = []
    while not took_s or (min(took_s) > CLOSE_S and len(took_s) < NUM_TRIES):
        before, peak, over = process.memory_info().rss, [0], threading.Event()

        def watch(peak: list[int] = peak, over: threading.Event = over) -> None:
            while not over.wait(0.002):
                peak[0] = max(peak[0], process.memory_info().rss)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            said, waited_s = attempt(daemon, send)
        finally:
            over.set()
            watching.join()
        took_s.append(waited_s)
        assert said == code
        assert peak[0] - before <= held_bytes + MAX_GROWN_BYTES
    assert min(took_s) <= CLOSE_S


def attempt(daemon: Process, send: Send) -> tuple[int, float]:
    """Return the code of the close frame, and how many seconds after the last byte it came."""
    with open_socket(daemon.runtime.port) as opened:
        opened.settimeout(30)
        sender = threading.Thread(target=send, args=(opened,))
        sender.start()
        if send is not by_its_head:
            sender.join()
        began_s = time.monotonic()
        try:
            while (answer := opened.recv(2)) and answer[0] != FIN | CLOSE:
                opened.recv(answer[1])
            waited_s = time.monotonic() - began_s
            return int.from_bytes(opened.recv(2), "big"), waited_s
        finally:
            opened.shutdown(socket.SHUT_RDWR)
            sender.join()
