"""The way to "listening": what runs while the web framework is imported, and what is never imported for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.patience import patient

# What the worker must not wait for: the web framework is imported while it starts.
LATER = ("edgeagent.api.app", "fastapi", "pydantic", "starlette", "uvicorn")
# What a worker never needs.
FOREIGN = ("asyncio", "fastapi", "httpcore", "importlib.metadata", "jinja2", "pydantic", "rich", "starlette", "typer")
# What a daemon without remotes, downloads, traces and documents never needs.
HEAVY = (
    "edgeagent.api.documents",
    "edgeagent.bench",
    "edgeagent.doctor",
    "httpcore",
    "huggingface_hub",
    "jinja2",
    "llama_cpp",
    "llguidance",
    "numpy",
    "opentelemetry.sdk",
    "prompt_toolkit",
    "pydantic.v1.main",
    "rich",
    "sqlite3",
    "wyoming",
)
# It does not start a worker, but it is the real router, with all that it imports.
SCRIPT = """
import asyncio, importlib.metadata, json, os, signal, sys
importlib.metadata.entry_points = None  # pydantic would look for its plugins in all packages
from pathlib import Path
from edgeagent.config import Config, ServerConfig
from edgeagent.daemon import ConsoleReporter, build_router, serve

class Stopping(ConsoleReporter):
    def listening(self, *args):
        print(json.dumps(list(sys.modules)))
        print(sys.getswitchinterval())
        print(json.dumps(sys.modules["fastapi.openapi.models"].OpenAPI.__pydantic_complete__))
        os.kill(os.getpid(), signal.SIGTERM)

def build(config):
    router = build_router(config)
    async def look():
        print(json.dumps("edgeagent.api.routers" in sys.modules))
    async def start():
        print(json.dumps(list(sys.modules)))
        router.looking = asyncio.create_task(look())
    router.start = start
    return router

config = Config(state_dir=Path(sys.argv[1]), server=ServerConfig(port=0))
sys.exit(serve(config, reporter=Stopping(), build=build))
"""


def test_a_daemon_starts_its_worker_first_and_imports_nothing_that_it_does_not_need(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=patient(100))
    before, was_imported, modules, interval_s, is_built = map(json.loads, done.stdout.splitlines())
    assert set(before) & {*LATER, *HEAVY} == set()
    assert not was_imported, "what the service has begun waits until the web framework is imported"
    assert set(modules) & set(HEAVY) == set()
    assert interval_s <= 0.0005, "the event loop waits for no thread that computes"
    assert not is_built, "the checks of FastAPI's own models are built at their first use"


def test_a_worker_imports_nothing_of_the_daemon() -> None:
    code = (
        "import json, sys\nfrom edgeagent.worker.child import process\n"
        "process.main()  # it ends, since no Load comes\n"
        "print(json.dumps([sys.getswitchinterval(), list(sys.modules)]), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patient(100))
    interval_s, modules = json.loads(done.stderr.splitlines()[-1])
    assert set(modules) & set(FOREIGN) == set()
    assert interval_s <= 0.0005, "a step waits for no thread that reads a request"
