"""L5: a client whose machine or network is gone, and that therefore sends no FIN, is noticed, and its work stops."""

from __future__ import annotations

import pytest

from tests.robust.test_F15_networks import VETH, run_alone

# The client is at the other end of a cable, in its own namespace. The cable is pulled while it waits for answers.
CABLE = """
import asyncio, json, socket, subprocess, sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.robust.frames import FIN, TEXT, frame
from tests.robust.raw import KEY_HEADERS

WAYS = ("waits", "streams", "socket", "idle")
TOKEN = "x" * 43


def opened(way, port):
    body = {"input": "begin" if way == "waits" else "stream", "stream": way == "streams", "store": False}
    head = f"Host: 10.9.9.1:{port}\\r\\nAuthorization: Bearer {TOKEN}\\r\\n"
    if way == "idle":
        sent = f"GET /health HTTP/1.1\\r\\n{head}\\r\\n".encode()
    elif way == "socket":
        head += f"Upgrade: websocket\\r\\nConnection: Upgrade\\r\\n{KEY_HEADERS}\\r\\n"
        sent = f"GET /v1/responses HTTP/1.1\\r\\n{head}\\r\\n".encode()
    else:
        content = json.dumps(body)
        head += f"Content-Type: application/json\\r\\nContent-Length: {len(content)}\\r\\n"
        sent = f"POST /v1/responses HTTP/1.1\\r\\n{head}\\r\\n{content}".encode()
    connection = socket.create_connection(("10.9.9.1", port))
    connection.sendall(sent)
    if way == "socket":
        assert connection.recv(4096).startswith(b"HTTP/1.1 101")
        connection.sendall(frame(FIN | TEXT, json.dumps({"type": "response.create", **body}).encode()))
    return connection


def be_client():
    print("here", flush=True)
    port = int(sys.stdin.readline())
    held = [opened(way, port) for way in WAYS]
    sys.stdin.readline()


async def main(child):
    def ip(*arguments, there=False):
        away = ["nsenter", "-t", str(child.pid), "-n"] if there else []
        subprocess.run([*away, "ip", *arguments], check=True)

    child.stdout.readline()
    ip("link", "set", "lo", "up")
    ip("link", "add", "near", "type", "veth", "peer", "name", "far")
    ip("link", "set", "far", "netns", str(child.pid))
    for address, end in (("10.9.9.1/24", "near"), ("10.9.9.2/24", "far")):
        ip("address", "add", address, "dev", end, there=end == "far")
        ip("link", "set", end, "up", there=end == "far")

    from edgeagent.config import Config, ServerConfig
    from edgeagent.daemon import listeners, server
    from tests.daemon.running import running
    from tests.robust.stub_service import stub_service
    from tests.robust.test_L5_leaving import num_running
    from tests.worker.support import eventually

    listeners.VANISHED_S, listeners.NUM_PROBES, server.PING_S = 2, 1, 1.0
    config = Config(server=ServerConfig(host="10.9.9.1", plaintext=True))
    with TemporaryDirectory() as folder:
        async with stub_service(Path(folder) / "lives", parallel=4) as service, running(service, config) as daemon:
            child.stdin.write(f"{daemon.port}\\n")
            child.stdin.flush()
            connections = daemon.server.server_state.connections
            await eventually(lambda: num_running(daemon) == 3 and len(connections) == 4, 20)
            ip("link", "set", "far", "down", there=True)
            await eventually(lambda: num_running(daemon) == 0 and not connections, 20)
    print("shown")


if sys.argv[1:] == ["client"]:
    be_client()
else:
    command = ["unshare", "-n", sys.executable, "-c", sys.argv[1], "client"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            asyncio.run(main(child))
        finally:
            child.kill()
"""


def test_a_client_whose_cable_is_pulled_is_given_up() -> None:
    if run_alone(VETH) != "made\n":
        pytest.skip("no pairs of links here")
    assert run_alone(CABLE) == "shown\n"
