"""Divides a model between two devices in software: `python -m tests.peer.two_devices LIBGGML_RPC.so MODEL.gguf`.

The devices are two processes of llama.cpp's RPC back end on this machine's CPU (built with `-DGGML_RPC=ON
-DGGML_BACKEND_DL=ON`). llama.cpp takes each for a GPU. For each way to divide the model, the script prints what the
plan expects on each device, what llama.cpp allocated there, and whether the greedy tokens are those of the CPU.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import _ggml, devices, lib
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.errors import ModelLoadFailed
from edgeagent.fit.placement import FreeMemory, gpus_of
from edgeagent.fit.plan import make_plan
from edgeagent.store.gguf.header import read_header
from tests.peer.servers import free_port

BASE = EngineConfig(ctx=512, threads=1, parallel=2, batch=64, flash_attention="on", kv_type_k="f16", kv_type_v="f16")
WAYS: dict[str, dict[str, object]] = {
    "--split-mode layer": {},
    "--tensor-split 3,1": {"tensor_split": (3.0, 1.0)},
    "--main-gpu 0": {"main_gpu": 0},
    "--split-mode none --main-gpu 1": {"split_mode": "none", "main_gpu": 1},
    "--split-mode row": {"split_mode": "row"},
}
MIB = 1 << 20
_CPU = 0  # ggml_backend_dev_type
_NUM_TOKENS, _START_S = 16, 60.0


def serve(library: str, endpoint: str) -> None:
    """Offer this machine's CPU as a device, until this process is killed."""
    ggml = _ggml("ggml")
    ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    device = (ctypes.c_void_p * 1)(ggml.ggml_backend_dev_by_type(_CPU))
    size = ctypes.c_size_t
    ctypes.CDLL(library).ggml_backend_rpc_start_server(endpoint.encode(), None, size(1), size(1), device)


def add_devices(library: str, endpoints: list[str]) -> None:
    """Make the devices at the endpoints known to llama.cpp."""
    ggml, rpc = _ggml("ggml"), ctypes.CDLL(library)
    ggml.ggml_backend_load(library.encode())
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    for endpoint in endpoints:
        host, port = endpoint.split(":")
        until_s = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection((host, int(port)), 1.0).close()
                break
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.1)
        ggml.ggml_backend_register(ctypes.c_void_p(rpc.ggml_backend_rpc_add_server(endpoint.encode())))


def greedy(path: Path, config: EngineConfig) -> list[int]:
    """Return the model's likeliest tokens behind a few others."""
    model = Model(path, config)
    runner = LlamaRunner(model, config)
    tokens = [5, 6, 7, 8]
    runner.decode([Slice(0, 0, tokens, 1)])
    for _ in range(_NUM_TOKENS):
        tokens.append(int(runner.logits(0).argmax()))
        runner.decode([Slice(0, len(tokens) - 1, tokens[-1:], 1)])
    runner.close()
    model.close()
    return tokens


def main() -> None:
    """Start the devices, and divide the model in each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path, help="libggml-rpc.so")
    parser.add_argument("model", help="a model file")
    parser.add_argument("--serve", action="store_true", help="be a device; MODEL is its address")
    options = parser.parse_args()
    library = str(options.library.resolve())
    if options.serve:
        serve(library, options.model)
        return
    endpoints = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    command = [sys.executable, "-m", "tests.peer.two_devices", library]
    quiet = subprocess.DEVNULL
    processes = [subprocess.Popen([*command, each, "--serve"], stdout=quiet, stderr=quiet) for each in endpoints]
    try:
        expected = greedy(Path(options.model), replace(BASE, gpu_layers=0))
        add_devices(library, endpoints)
        for name, way in WAYS.items():
            divide(name, replace(BASE, **way), Path(options.model), endpoints, expected)
    finally:
        for process in processes:
            process.kill()


def divide(name: str, config: EngineConfig, path: Path, endpoints: list[str], expected: list[int]) -> None:
    """Plan a load with these options, load the model, and print what is where."""
    found = FreeMemory(1 << 34, gpus_of(devices(), config.only_gpu))
    plan = make_plan([read_header(path).shape], config, found)
    planned = ", ".join(
        f"{gpu.name} {num / MIB:.0f}" for gpu, num in zip(found.gpus, plan.memory_use.gpu_bytes, strict=True)
    )
    lines: list[str] = []
    log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
        lambda _level, text, _data: lines.append(text.decode(errors="replace"))
    )
    lib.llama_log_set(log, None)
    try:
        is_same = greedy(path, plan.config) == expected
    except ModelLoadFailed:
        print(f"{name}: refused: {' '.join(line.strip() for line in lines if 'error' in line)}")
        return
    text = "".join(lines)
    sizes = [sum(map(float, re.findall(rf"{each}\]\s+\w+ buffer size =\s*([\d.]+)", text))) for each in endpoints]
    print(f"{name}: planned MiB {planned}; allocated {sizes[0]:.0f}, {sizes[1]:.0f}; same tokens {is_same}", flush=True)


if __name__ == "__main__":
    main()
