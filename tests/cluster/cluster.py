"""The cluster: two vLLM workers on the CPU, the vLLM project's router, and Caddy as in packaging/cluster/proxy."""

from __future__ import annotations

import os
import secrets
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.cluster.processes import Program, free_ports

CADDYFILE = Path(__file__).resolve().parents[2] / "packaging/cluster/proxy/Caddyfile"
SERVED_NAME = "edgeagent-endless"
# Long enough for a slow machine that does other work too.
START_LIMIT_S = 600.0
MAX_STREAMS = 8
CONTEXT = 2048


class Cluster:
    """A cluster on loopback; each part can be killed and started again."""

    name = "cluster"
    served_name = SERVED_NAME

    def __init__(self, engines: Path, model: Path, folder: Path, max_streams: int = MAX_STREAMS) -> None:
        """Prepare it; `engines` is the environment, `model` the served model, `folder` the place for logs and caches.

        `max_streams` is how many requests each worker computes at a time, and how many may wait for it.
        """
        self._engines, self._model, self._folder = engines, model, folder
        self._router_port, self._metrics_port, self._proxy_port, *self._worker_ports = free_ports(5)
        self._programs: dict[str, Program] = {}
        self._max_streams = max_streams
        self.key = secrets.token_hex(16)
        self.url = f"https://localhost:{self._proxy_port}"
        self.certificate = folder / "cert.pem"

    @property
    def workers(self) -> list[str]:
        """The names of the workers."""
        return [f"worker-{index}" for index in range(len(self._worker_ports))]

    def start(self) -> dict[str, float]:
        """Start everything; return how many seconds each part took to answer."""
        for worker in self.workers:
            self.start_worker(worker)
        took = {worker: self.wait_for_worker(worker) for worker in self.workers}
        self._make_certificate()
        self._start_router()
        took["router"] = self._programs["router"].wait_for(f"{self._router_url}/readiness", START_LIMIT_S)
        self._start_proxy()
        ready = self._programs["proxy"].wait_for(f"{self.url}/readiness", START_LIMIT_S, verify=str(self.certificate))
        return took | {"proxy": ready}

    def restart_router(self) -> None:
        """Start the router and wait until it answers."""
        self._start_router()
        self._programs["router"].wait_for(f"{self._router_url}/readiness", START_LIMIT_S)

    def kill(self, name: str) -> None:
        """Kill a part, as a power failure would."""
        self._programs.pop(name).kill()

    def pause(self, name: str) -> None:
        """Suspend a part, so that it hangs."""
        self._programs[name].pause()

    def resume(self, name: str) -> None:
        """Resume a suspended part."""
        self._programs[name].resume()

    def running(self, worker: str) -> int:
        """Return the number of requests that a worker computes now."""
        return int(self.metric(worker, "vllm:num_requests_running"))

    def metric(self, worker: str, name: str) -> float:
        """Return the sum of a worker's metric over its labels."""
        text = httpx.get(f"{self._worker_url(worker)}/metrics", trust_env=False).text
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def continuation(self, prompt: str, begun: str, max_tokens: int) -> str:
        """Return how the cluster itself, without the daemon, continues an answer."""
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": begun}]
        body = {"model": SERVED_NAME, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        body |= {"continue_final_message": True, "add_generation_prompt": False}
        context = ssl.create_default_context(cafile=str(self.certificate))
        headers = {"Authorization": f"Bearer {self.key}"}
        async with httpx.AsyncClient(verify=context, trust_env=False, timeout=60.0, headers=headers) as client:
            answer = await client.post(f"{self.url}/v1/chat/completions", json=body)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])

    def stop(self) -> None:
        """Stop every part, the proxy first."""
        for name in ("proxy", "router", *self.workers):
            if name in self._programs:
                self._programs.pop(name).stop()

    @property
    def _router_url(self) -> str:
        return f"http://127.0.0.1:{self._router_port}"

    def _worker_url(self, worker: str) -> str:
        return f"http://127.0.0.1:{self._worker_ports[self.workers.index(worker)]}"

    def wait_for_worker(self, worker: str) -> float:
        """Wait until a worker answers; return how many seconds that took."""
        return self._programs[worker].wait_for(f"{self._worker_url(worker)}/health", START_LIMIT_S)

    def start_worker(self, worker: str) -> None:
        """Start a worker."""
        command = [str(self._engines / "bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._model), "--served-model-name", SERVED_NAME, "--host", "127.0.0.1"]
        command += ["--port", self._worker_url(worker).rpartition(":")[2], "--dtype", "float32", "--enforce-eager"]
        command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(self._max_streams)]
        command += ["--max-num-queued-reqs", str(self._max_streams), "--kv-cache-memory-bytes", str(192 << 20)]
        command += ["--block-size", "32", "--enable-prefix-caching", "--shutdown-timeout", "5"]
        self._start(worker, command, VLLM_API_KEY=self.key)

    def _start_router(self) -> None:
        command = [str(self._engines / "bin/vllm-router"), "--host", "127.0.0.1", "--port", str(self._router_port)]
        command += ["--worker-urls", *map(self._worker_url, self.workers), "--policy", "sticky_least_loaded"]
        command += ["--max-concurrent-requests", str(self._max_streams * 2), "--queue-size", "0"]
        command += ["--cb-failure-threshold", "1000", "--health-check-interval-secs", "1"]
        command += ["--health-check-timeout-secs", "2", "--health-failure-threshold", "2"]
        command += ["--health-success-threshold", "1", "--worker-startup-check-interval", "1"]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(self._metrics_port)]
        self._start("router", command)

    def _start_proxy(self) -> None:
        settings = {"CLUSTER_SITE": self.url, "ROUTER": f"127.0.0.1:{self._router_port}"}
        settings |= {"CLUSTER_CERT": str(self.certificate), "CLUSTER_KEY": str(self._folder / "key.pem")}
        self._start("proxy", [str(self._engines / "bin/caddy"), "run", "--config", str(CADDYFILE)], **settings)

    def _start(self, name: str, command: list[str], **settings: str) -> None:
        for folder in ("tmp", "cache", "home"):
            (self._folder / folder).mkdir(exist_ok=True)
        environment = {
            "PATH": f"{self._engines / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self._folder / "home"),
            "TMPDIR": str(self._folder / "tmp"),
            "XDG_DATA_HOME": str(self._folder / "home"),
            "VLLM_CACHE_ROOT": str(self._folder / "cache"),
            "VLLM_CONFIG_ROOT": str(self._folder / "home"),
            # No network requests and no telemetry.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            # One thread, on any core, and no warm-up: two workers share two cores with the daemon.
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_CI_ENV": "1",
        }
        self._programs[name] = Program(name, command, environment | settings, self._folder / f"{name}.log")

    def _make_certificate(self) -> None:
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-days", "2", "-subj", "/CN=localhost", "-addext", names]
        command += ["-keyout", str(self._folder / "key.pem"), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)


@contextmanager
def started(cluster: Cluster) -> Iterator[dict[str, float]]:
    """Start a cluster, yield each part's start time in seconds, and stop it in any case."""
    try:
        yield cluster.start()
    finally:
        cluster.stop()
