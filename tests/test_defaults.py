"""The real values of limits that tests shorten: a test that patches a limit shows that it works, not its size.

Every constant of edgeagent that a test patches is listed here with its value, and so are the limits of the modules in
which faults are planted (tests/mutants). If you change a value, change it here too, and in docs if it is there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
MIB = 1 << 20

DEFAULTS: dict[str, object] = {
    "service.first_step.PATIENCE_S": 2.0,
    "api.responses.frontend.TASKS_S": 0.5,
    "conversation.history.MAX_BYTES": 32 * MIB,
    "engine.llama.probe._NODES_BETWEEN_LOOKS": 256,
    "service.probe.NOT_READY_CACHE_S": 1.0,
    "service.probe.PROBE_TIMEOUT_S": 10.0,
    "service.probe.READY_CACHE_S": 10.0,
    "api.gate.refusal_log.MAX_LINES": 20,
    "api.gate.refusal_log.WINDOW_S": 60.0,
    "api.openai.embeddings_body.MAX_CHARS": MIB,
    "daemon.transport.MAX_HEADERS": 100,
    "daemon.transport.MAX_HEADER_BYTES": 16384,
    "api.responses.socket.session.MAX_ACTIVE": 16,
    "api.llama_server.text_tools.TIMEOUT_S": 60.0,
    "api.gate.in_flight.TRIM_DELAY_S": 1.0,
    "daemon.transport.MAX_TURN_S": 0.004,
    "daemon.transport.FRAMES_BURST": 250,
    "daemon.transport.FRAMES_PER_S": 500.0,
    "api.socket.pump.CLOSE_S": 1.0,
    "api.socket.pump.STALL_S": 10.0,
    "backends.remote.network.NAME_S": 2.0,
    "cli.chat.conversation.QUIET_S": 1.0,
    "engine.attention._UNDISTURBED": 0.8,
    "cli.chat.line_reader.MAX_HISTORY_BYTES": MIB,
    "cli.daemon.status.STOP_MARGIN_S": 10.0,
    "client.connection.CANCEL_TIMEOUT_S": 5.0,
    "credentials.keys.MAX_CLIENTS": 1000,
    "credentials.keys._TOKEN_BYTES": 32,
    "daemon.console.CLOSE_S": 0.5,
    "daemon.console.MAX_WAITING_LINES": 1000,
    "daemon.server.PING_S": 20.0,
    "daemon.server.TLS_TIMEOUT_S": 10.0,
    "daemon.transport.HEAD_TIMEOUT_S": 10.0,
    "daemon.transport.SOCKET_STALL_TIMEOUT_S": 11.0,
    "daemon.transport.STALL_TIMEOUT_S": 10.0,
    "doctor.places.ANSWER_TIMEOUT_S": 1.0,
    "engine.cache.block_table._MAX_HEADS": 200,
    "engine.cache.block_table._MAX_HOST_BYTES": 2048 * MIB,
    "engine.cache.block_table._MIN_SWEEP": 256,
    "engine.cache.disk.folder._EVICT_PART": 0.03125,
    "engine.cache.disk.folder._PROBE_BYTES": 4096,
    "engine.cache.disk.folder._RETRY_EVERY_S": 30.0,
    "engine.cache.disk.folder._SAVE_EVERY_S": 300.0,
    "engine.cache.disk.folder._SCAN_EVERY_S": 10.0,
    "engine.cache.disk.folder._STAMP_EVERY_S": 30.0,
    "engine.cache.disk.folder._TIDY_EVERY_S": 600.0,
    "engine.cache.disk.folder._YIELD_EVERY_S": 60.0,
    "engine.cache.disk.file_format.HEADER_BYTES": 164,
    "engine.cache.disk.file_format.VERSION": 2,
    "engine.cache.disk.file_format._TOKEN_BYTES": 4,
    "engine.cache.disk.write_budget._GRANT_PART": 0.03125,
    "engine.cache.disk.write_budget._HOUR_S": 3600.0,
    "engine.cache.disk.write_budget._NO_TIME_S": 2.0**33,
    "engine.cache.disk.retention.LITTLE_LEFT": 0.25,
    "engine.cache.disk.retention.RESERVED_SHARE": 0.25,
    "engine.cache.disk.retention._RESERVED_KEPT_LONGER": 8.0,
    "engine.cache.disk.writer._MAX_STALE": 1000,
    "engine.cache.disk.writer._REST_FOR_WORK": 100.0,
    "engine.cache.disk.writer._REST_STEP_S": 0.05,
    "engine.cache.disk.writer._PARTIAL_DELAY_S": 5.0,
    "engine.cache.disk.writer._TICK_S": 1.0,
    "engine.speculation.warming._MAX_PROMPTS": 64,
    "machine_policy.file.MAX_ENTRIES": 10_000,
    "machine_policy.file.RETRY_S": 1.0,
    "machine_policy.file._MAX_BYTES": MIB,
    "router.remote_backends._TICK_S": 0.3,
    "backends.remote.endpoints.cluster._NETWORK_CHECK_S": 1.0,
    "engine.cache.block.KEY_BYTES": 32,
    "engine.cache.block.MAX_BLOCK_TOKENS": 256,
    "engine.cache.block.MIN_BLOCK_TOKENS": 32,
    "engine.cache.block.MIN_PART": 16,
    "engine.cache.block._BLOCK_BYTES": 4 * MIB,
    "engine.side_prefill.MIN_ALONE_S": 1.0,
    "engine.side_prefill.MIN_GAIN": 1.25,
    "engine.step_in_progress._LONG_S": 0.03,
    "engine.llama.fingerprint._BLOCKS_VERSION": 3,
    "engine.cache.radix_tree._MAX_VISITS": 256,
    "engine.cache.restorer._MAX_AHEAD_BYTES": 64 * MIB,
    "engine.scheduler.MAX_SCORED": 32,
    "engine.scheduler.MAX_STEP_S": 2.0,
    "engine.scheduler.MIN_CHUNK": 32,
    "engine.scheduler.MIN_SLOW_CHUNK": 4,
    "engine.scheduler.MAX_GROWTH": 16,
    "engine.scheduler._MIN_SCORED": 4,
    "router.policy._COMFORT": 0.5,
    "state_files._LOCK_TIMEOUT_S": 10.0,
    "store.gguf.byte_reader.MAX_ARRAY_STRINGS": 4 * MIB,
    "store.gguf.byte_reader.MAX_HEADER_BYTES": 256 * MIB,
    "store.hashes._SMALL_BYTES": 64 * MIB,
    "store.hub.transfer.MAX_FRUITLESS_TRIES": 5,
    "store.hub.transfer._SPACE_CHECK_BYTES": 64 * MIB,
    "text.template.budget._CPU_S": 1.0,
    "text.template.budget._MAX_TEXT_CHARS": 8 * MIB,
    "text.template.budget._MAX_TOTAL_CHARS": 128 * MIB,
    "text.long_text._LONG": 4096,
    "text.long_text._MAX_SPECIALS": 256,
    "worker.parent.supervision.channel.OUTPUT_GRACE_S": 0.5,
    "worker.parent.pool.known_names._MAX_NAMES": 4096,
    "worker.protocol.LENGTH_BYTES": 4,
    "worker.render.process.MAX_MEMORY_BYTES": 256 * MIB,
    "worker.protocol.MAX_FRAME_FROM_WORKER_BYTES": MIB,
    "worker.protocol.MAX_FRAME_TO_WORKER_BYTES": 32 * MIB,
    "worker.protocol._MAX_ERROR_CHARS": 4096,
    "worker.render.process.OPEN_CPU_S": 5.0,
    "worker.render.protocol._READ_BYTES": 1 << 20,
    "worker.render.renderer.REQUEST_CPU_S": 3.0,
}
# Parameter defaults that tests patch through `__defaults__`.
PARAMETERS: dict[str, tuple[object, ...]] = {
    "api.gate.body_limit.BodyLimit": (10.0,),
    "api.wire.sse.EventStream": (5.0,),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_is_what_it_is_said_to_be(name: str) -> None:
    module, _, constant = name.rpartition(".")
    assert getattr(importlib.import_module(f"edgeagent.{module}"), constant) == DEFAULTS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_s_default_is_what_it_is_said_to_be(name: str) -> None:
    module, _, owner = name.rpartition(".")
    init = getattr(importlib.import_module(f"edgeagent.{module}"), owner).__init__
    assert init.__defaults__ == PARAMETERS[name]


def patched(source: str) -> set[str]:
    """Return the constants of edgeagent's modules that a test's source patches."""
    if "setattr" not in source:
        return set()
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("edgeagent"):
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        if isinstance(node, ast.Import):
            modules |= {alias.asname: alias.name for alias in node.names if alias.asname}
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[ast.Name(id=target), ast.Constant(value=str(name)), *_]
            ) if name.lstrip("_").isupper() and modules.get(target, "").startswith("edgeagent."):
                found.add(f"{modules[target].removeprefix('edgeagent.')}.{name}")
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(path)), *_]) if (
                path.startswith("edgeagent.") and path.rpartition(".")[2].lstrip("_").isupper()
            ):
                found.add(path.removeprefix("edgeagent."))
    return found


def test_every_constant_that_a_test_patches_is_here() -> None:
    found = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in patched(path.read_text(encoding="utf-8"))
        if is_plain(name)
    }
    assert len(found) > 20
    assert found <= DEFAULTS.keys(), f"add their real values: {sorted(found - DEFAULTS.keys())}"


def is_plain(name: str) -> bool:
    """Return whether a constant is a number or a text that its module defines itself, rather than imports."""
    module_name, _, constant = name.rpartition(".")
    try:
        module = importlib.import_module(f"edgeagent.{module_name}")
    except ImportError:
        return False
    is_own = f"\n{constant}" in f"\n{inspect.getsource(module)}"
    return is_own and isinstance(getattr(module, constant, None), int | float | str)


def test_patches_are_found() -> None:
    source = """
from edgeagent.daemon import transport as wire
from edgeagent.api import limits
monkeypatch.setattr(wire, "STALL_TIMEOUT_S", 0.1)
monkeypatch.setattr(limits, "lower", 1)
patch.setattr("edgeagent.engine.step_in_progress._LONG_S", 0.0)
monkeypatch.setattr(other, "UPPER", 1)
"""
    assert patched(source) == {"daemon.transport.STALL_TIMEOUT_S", "engine.step_in_progress._LONG_S"}
