"""Measures what the daemon adds to a remote stream: `python -m tests.peer.remote_cost [--caddy PATH] [--pairs N]`.

Requests go to remotes that answer at once, alternately directly and through a real daemon. Each token's text is the
time at which it was sent, so its delay can be measured. Run it on a quiet machine. The exit status is 1 if a median
exceeds its bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from edgeagent.remotes import EndpointConfig, Remote, Tls
from edgeagent.remotes.file import add_remote
from tests.backends.remote.certificates import Authority, Certificate
from tests.peer.servers import Child, free_port

MAX_FIRST_MS = 3.0
MAX_TOKEN_MS = 0.5
CADDYFILE = Path(__file__).resolve().parents[2] / "packaging/cluster/proxy/Caddyfile"
PROMPT = "Say when this was sent. " * 20


@dataclass(frozen=True, slots=True)
class Target:
    """A remote: its name, its base URL, and the certificate that it uses; None without TLS."""

    name: str
    url: str
    certificate: Path | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The timing of one answer, in milliseconds: until the first token, and the median delay of the later tokens.

    A token's delay is the time from its sending to its arrival.
    """

    first_ms: float
    token_ms: float


async def ask(client: httpx.AsyncClient, url: str, model: str) -> Answer:
    """Stream one answer, and return its timing."""
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "stream": True}
    began_s, first_s, ways_s = time.perf_counter(), 0.0, []
    async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now_s = time.perf_counter()
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                for stamp in (choice["delta"].get("content") or "").split():
                    first_s = first_s or now_s
                    ways_s.append(now_s - float(stamp))
    return Answer((first_s - began_s) * 1000, median(ways_s[1:]) * 1000)


async def measure(daemon: str, target: Target, num_pairs: int) -> bool:
    """Measure requests directly and through the daemon, alternately, and print the medians.

    Return whether the time that the daemon adds is within its bounds.
    """
    direct, through = [], []
    verify = ssl.create_default_context(cafile=str(target.certificate)) if target.certificate else True
    options: dict[str, Any] = {"trust_env": False, "timeout": 30.0}
    async with httpx.AsyncClient(verify=verify, **options) as there, httpx.AsyncClient(**options) as here:
        for number in range(num_pairs + 5):
            a = await ask(there, target.url, "stamps")
            b = await ask(here, f"{daemon}/v1", target.name)
            if number >= 5:  # the connections are open by now
                direct.append(a)
                through.append(b)
    first = [median(answer.first_ms for answer in answers) for answers in (direct, through)]
    token = [median(answer.token_ms for answer in answers) for answers in (direct, through)]
    most = max(answer.first_ms for answer in through)
    print(
        f"{target.name:8} first token {first[0]:6.2f} -> {first[1]:6.2f} ms ({first[1] - first[0]:+.2f}, most "
        f"{most:.1f}); a token's way {token[0]:5.2f} -> {token[1]:5.2f} ms ({token[1] - token[0]:+.2f})",
        flush=True,
    )
    return first[1] - first[0] <= MAX_FIRST_MS and token[1] - token[0] <= MAX_TOKEN_MS


@contextmanager
def stamp_server(certificate: Certificate | None = None) -> Iterator[int]:
    """Run a remote in a separate process; yield its port."""
    command = [sys.executable, "-m", "tests.peer.stamp_server"]
    if certificate is not None:
        command += ["--certificate", str(certificate.path), "--key", str(certificate.key)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def caddy(program: Path, certificate: Certificate, behind: int, folder: Path) -> Iterator[int]:
    """Run the cluster's proxy in front of a server; yield its port."""
    port = free_port()
    settings = {"CLUSTER_SITE": f"https://127.0.0.1:{port}", "ROUTER": f"127.0.0.1:{behind}", "HOME": str(folder)}
    settings |= {"CLUSTER_CERT": str(certificate.path), "CLUSTER_KEY": str(certificate.key)}
    log = (folder / "caddy.log").open("wb")
    command = [str(program), "run", "--config", str(CADDYFILE)]
    process = subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=log)
    verify = ssl.create_default_context(cafile=str(certificate.path))
    for _ in range(100):
        try:
            httpx.get(f"https://127.0.0.1:{port}/v1/models", verify=verify, trust_env=False)
            break
        except httpx.TransportError:
            time.sleep(0.05)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    """Measure each kind of remote."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--caddy", type=Path, help="Caddy's program: measure behind the cluster's proxy as well")
    parser.add_argument("--pairs", type=int, default=100)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate = Authority(folder).own
        plain = stack.enter_context(stamp_server())
        secure = stack.enter_context(stamp_server(certificate))
        targets = [Target("plain", f"http://127.0.0.1:{plain}/v1")]
        targets.append(Target("tls", f"https://127.0.0.1:{secure}/v1", certificate.path))
        if given.caddy is not None:
            port = stack.enter_context(caddy(given.caddy, certificate, plain, folder))
            targets.append(Target("caddy", f"https://127.0.0.1:{port}/v1", certificate.path))
        for target in targets:
            tls = Tls(ca_file=str(target.certificate)) if target.certificate else Tls()
            remote = Remote(target.name, (EndpointConfig(target.url),), models={target.name: "stamps"}, tls=tls)
            (folder / "state").mkdir(mode=0o700, exist_ok=True)
            add_remote(folder / "state", remote)
        port = free_port()
        command = [sys.executable, "-m", "edgeagent", "serve", "none", "--route", "prefer_remote"]
        command += ["--port", str(port), "--state-dir", str(folder / "state")]
        daemon = Child(command, folder / "daemon.log", f"http://127.0.0.1:{port}/health")
        try:
            within = [asyncio.run(measure(f"http://127.0.0.1:{port}", target, given.pairs)) for target in targets]
        finally:
            daemon.stop()
    return 0 if all(within) else 1


if __name__ == "__main__":
    raise SystemExit(main())
