"""F15: the network goes and comes back with other addresses, here and at the remote, which is found again."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

# A network of one machine, in a namespace of its own: the remote is at an address that comes and goes.
ALONE = """
import asyncio, subprocess, sys
from edgeagent.backends.remote import names
from tests.backends.remote.fault_server import Act, faults, half, stream
from tests.backends.remote.streams import answer, chunk
from tests.backends.remote.support import Clock, LIMITS, REQUEST, ask, backend, until


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


async def main():
    clock = Clock()
    told = ["10.9.9.1"]
    names.socket.getaddrinfo = lambda host, port, **_: [(2, 1, 6, "", (told[0], port))]
    ip("link", "set", "lo", "up")
    ip("address", "add", "10.9.9.1/24", "dev", "lo")
    script = half(chunk({"content": "One"}), Act.STALL)
    async with faults(stream(answer("before")), script, stream(answer("after")), host="0.0.0.0") as server:
        url = f"http://box.example:{server.port}/v1"
        async with backend(url, plaintext=True, clock=clock) as remote:
            assert (await ask(remote)).text == "before"
            running = asyncio.create_task(ask(remote, id="running"))
            await until(lambda: len(server.asked) == 2)
            remote.estimate(REQUEST)
            ip("address", "del", "10.9.9.1/24", "dev", "lo")
            for number in range(6):
                clock.now_s += 2
                got = await ask(remote, id=f"away{number}")
                assert got.error is not None and not got.num_tokens, got
            assert (await running).error is not None
            assert remote.estimate(REQUEST).obstacle == "unreachable"
            ip("address", "add", "10.9.9.2/24", "dev", "lo")
            told[0] = "10.9.9.2"
            clock.now_s += 2
            assert remote.estimate(REQUEST).obstacle == ""
            assert (await ask(remote, id="back")).text == "after"
    print("shown")


asyncio.run(main())
"""


def test_a_network_that_goes_and_comes_back_with_other_addresses() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("ip") is None:
        pytest.skip("no unshare and ip")
    if subprocess.run([unshare, "-rn", "ip", "link", "set", "lo", "up"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    inside = subprocess.run([unshare, "-rn", sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60)
    assert inside.stdout == "shown\n", inside.stderr
