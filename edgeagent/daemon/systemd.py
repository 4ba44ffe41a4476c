"""What the daemon takes from systemd and tells it: listening sockets, and messages about its state.

The protocols are those of sd_listen_fds(3) and sd_notify(3). Without systemd, its variables are not set, and nothing
here has an effect.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

_FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START


def inherited_sockets() -> list[socket.socket]:
    """Return the listening sockets that systemd opened for this process. The caller closes them."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    # Called once: the variables must not count for a second caller, or for a child that gets this process id later.
    num = int(os.environ.pop("LISTEN_FDS", "0"))
    del os.environ["LISTEN_PID"]
    os.environ.pop("LISTEN_FDNAMES", None)
    descriptors = range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + num)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def notify(message: str) -> None:
    """Send a message to systemd, for example READY=1. A message that cannot be sent is dropped."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name without a file
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        sender.sendto(message.encode(), address)


async def keep_watchdog() -> None:
    """Tell systemd that the event loop runs, twice in each period of its watchdog, forever. Return if it has none."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    period_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6
    while period_s:
        notify("WATCHDOG=1")
        await asyncio.sleep(period_s / 2)
