"""F15: the network disappears and returns with other addresses, here and at the remote, which is found again."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.patience import patient

# A network of one machine in its own namespace: the remote's address is added and removed.
ALONE = """
import asyncio, subprocess, sys
from edgeagent.backends.remote import network
from tests.backends.remote.fault_server import Act, faults, half, stream
from tests.backends.remote.streams import answer, chunk
from tests.backends.remote.support import Clock, LIMITS, REQUEST, ask, backend, until


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True)


async def main():
    clock = Clock()
    told = ["10.9.9.1"]
    network.socket.getaddrinfo = lambda host, port, **_: [(2, 1, 6, "", (told[0], port))]
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


# A remote at the other end of a cable, in its own namespace. Our address stays when the cable is pulled.
CABLE = """
import asyncio, subprocess, sys
from edgeagent.remotes import Limits
from tests.backends.remote.fault_server import Act, faults, half, stream
from tests.backends.remote.streams import answer, chunk
from tests.backends.remote.support import ask, backend, until


async def serve():
    script = half(chunk({"content": "One"}), Act.STALL)
    async with faults(script, stream(answer("after")), host="0.0.0.0") as server:
        print(server.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def main(child, port):
    def ip(*arguments, there=False):
        away = ["nsenter", "-t", str(child.pid), "-n"] if there else []
        subprocess.run([*away, "ip", *arguments], check=True)

    ip("link", "add", "near", "type", "veth", "peer", "name", "far")
    ip("link", "set", "far", "netns", str(child.pid))
    for address, end in (("10.9.9.1/24", "near"), ("10.9.9.2/24", "far")):
        ip("address", "add", address, "dev", end, there=end == "far")
        ip("link", "set", end, "up", there=end == "far")
    limits = Limits(connect_s=1.0, first_token_s=60.0, idle_s=60.0, total_s=60.0)
    async with backend(f"http://10.9.9.2:{port}/v1", plaintext=True, limits=limits) as remote:
        running = asyncio.create_task(ask(remote))
        await until(lambda: remote.status().endpoints[0].first_token_s is not None)
        ip("link", "set", "far", "down", there=True)
        got = await running
        assert "the connection broke" in str(got.error), got
        ip("link", "set", "far", "up", there=True)
        await until_found(remote)
    print("shown")


async def until_found(remote):
    for number in range(40):
        if (await ask(remote, id=f"back{number}")).text == "after":
            return
        await asyncio.sleep(0.25)
    raise AssertionError("it was not found again")


if sys.argv[1:] == ["serve"]:
    asyncio.run(serve())
else:
    command = ["unshare", "-n", sys.executable, "-c", sys.argv[1], "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            asyncio.run(main(child, int(child.stdout.readline())))
        finally:
            child.kill()
"""


def test_a_network_that_goes_and_comes_back_with_other_addresses() -> None:
    assert run_alone(ALONE) == "shown\n"


def test_an_answer_whose_cable_is_pulled_is_given_up_and_the_remote_is_found_again() -> None:
    if shutil.which("nsenter") is None or run_alone(VETH) != "made\n":
        pytest.skip("no pairs of links here")
    assert run_alone(CABLE) == "shown\n"


VETH = """
import subprocess

pair = ["ip", "link", "add", "near", "type", "veth", "peer", "name", "far"]
print("refused" if subprocess.run(pair, capture_output=True).returncode else "made")
"""


def run_alone(program: str) -> str:
    """Run a Python program in a new network namespace; return its output."""
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("ip") is None:
        pytest.skip("no unshare and ip")
    if subprocess.run([unshare, "-rn", "ip", "link", "set", "lo", "up"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    command = [unshare, "-rn", sys.executable, "-c", program, program]
    inside = subprocess.run(command, capture_output=True, text=True, timeout=patient(90))
    assert not inside.returncode, inside.stderr
    return inside.stdout
