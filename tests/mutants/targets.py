"""The modules to change, and the tests that should notice: quick ones first, wider ones if those find nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Target:
    """Modules by pattern, and pytest's arguments for a change in one of them, relative to the repository's root."""

    modules: str
    quick: tuple[str, ...]
    wider: tuple[str, ...] = ()

    def paths(self, root: Path = ROOT) -> list[Path]:
        """Return the modules, without `__init__.py` files."""
        return [path for path in sorted(root.glob(self.modules)) if path.name != "__init__.py"]


_ACCESS = (
    "tests/api/gate/test_security.py",
    "tests/robust/test_A1_access_table.py",
    "tests/robust/test_A2_token_compare.py",
)
_AT_THE_DOOR = (
    "tests/robust/test_A1_every_route.py",
    "tests/robust/test_A3_origin_host.py",
    "tests/robust/test_A5_unix_socket.py",
    "tests/robust/test_A6_secrets.py",
    "tests/robust/test_A7_scopes.py",
    "tests/robust/test_A6_files.py",
)
_REMOVED = ("tests/robust/test_A6_removed_tokens.py", "tests/robust/test_A7_other_users.py")
_STORE = ("tests/engine/cache/disk",)
_CACHE = (
    "tests/engine/cache/test_block.py",
    "tests/engine/test_instructions.py",
    "tests/engine/cache/test_large_blocks.py",
    "tests/engine/cache/test_block_lives.py",
    "tests/engine/cache/test_tiers.py",
    "tests/engine/cache/test_block_table.py",
)
_ENGINE = (
    "tests/engine/test_engine.py",
    "tests/engine/test_fairness.py",
    "tests/engine/test_cancel.py",
    "tests/engine/test_replay.py",
    "tests/engine/test_random_schedules.py",
)
_DISK = (*_CACHE, "tests/robust/test_F8_cache_files.py", "tests/robust/test_F7_cache_disk.py")
_SUPERVISOR = (
    "tests/worker/parent/supervision/test_supervisor.py",
    "tests/worker/parent/supervision/test_crashes.py",
    "tests/worker/parent/supervision/test_hangs.py",
    "tests/worker/parent/supervision/test_loads.py",
    "tests/worker/parent/supervision/test_stops.py",
    "tests/worker/parent/supervision/test_queries.py",
    "tests/worker/test_trial.py",
)
_WORKER = ("tests/worker/parent/pool/test_pool.py", "tests/backends", "tests/robust/test_F2_causes.py")
_DEATHS = ("tests/robust/test_F1_worker_killed.py", "tests/robust/test_F3_quarantine.py")
_HANGS = ("tests/robust/test_F21_hostile_worker.py",)

TARGETS = (
    Target(
        "edgeagent/credentials/keys.py",
        ("tests/credentials/test_keys.py",),
        (*_ACCESS, "tests/robust/test_A6_files.py", "tests/robust/test_A7_scopes.py"),
    ),
    Target(
        "edgeagent/state_files.py",
        ("tests/credentials/test_keys.py", "tests/remotes"),
        ("tests/robust/test_A6_files.py",),
    ),
    Target(
        "edgeagent/credentials/decision.py",
        _ACCESS,
        (*_AT_THE_DOOR, *_REMOVED),
    ),
    Target(
        "edgeagent/api/gate/access.py",
        _ACCESS,
        (*_AT_THE_DOOR, *_REMOVED, "tests/daemon", "tests/robust/test_A4_bind.py"),
    ),
    Target(
        "edgeagent/api/gate/security.py",
        _ACCESS,
        (*_AT_THE_DOOR, "tests/api/test_app.py", "tests/api/gate/test_refusal_log.py", *_REMOVED),
    ),
    Target(
        "edgeagent/engine/scheduler.py",
        ("tests/engine/test_scheduler.py",),
        _ENGINE,
    ),
    Target("edgeagent/engine/cache/slots.py", ("tests/engine/cache/test_slots.py",), ("tests/engine",)),
    Target(
        "edgeagent/engine/cache/radix_tree.py",
        ("tests/engine/cache/test_radix_tree.py",),
        ("tests/engine",),
    ),
    Target("edgeagent/engine/cache/disk/*.py", _STORE, _DISK),
    Target("edgeagent/cache_retention.py", ("tests/test_cache_retention.py",), _STORE),
    Target("edgeagent/engine/cache/block.py", _CACHE, ("tests/engine",)),
    Target(
        "edgeagent/engine/cache/block_table.py",
        ("tests/engine/cache/test_lookup.py", *_CACHE),
        ("tests/engine", *_DISK),
    ),
    Target("edgeagent/engine/cache/cached_prefix.py", ("tests/engine/cache/test_chain.py",), ("tests/engine",)),
    Target("edgeagent/machine_policy.py", ("tests/machine_policy",), ("tests/router/test_machine_policy.py",)),
    Target("edgeagent/router/*.py", ("tests/router",), ("tests/cli/test_checkup.py",)),
    Target("edgeagent/worker/parent/supervision/supervisor.py", _SUPERVISOR, (*_WORKER, *_DEATHS, *_HANGS)),
    Target(
        "edgeagent/worker/protocol.py",
        ("tests/worker/test_protocol.py",),
        ("tests/worker/parent/supervision/test_channel.py", *_HANGS),
    ),
)
