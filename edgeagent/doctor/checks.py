"""All checks, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable

from edgeagent.doctor.facts import Facts
from edgeagent.doctor.findings import Finding
from edgeagent.doctor.folders import check_cache, check_models, check_state
from edgeagent.doctor.machine import check_cpu, check_gpu, check_llama, check_load, check_memory, check_sandbox
from edgeagent.doctor.service import check_daemon, check_hub, check_model, check_port

Check = Callable[[Facts], list[Finding]]

CHECKS: tuple[Check, ...] = (
    check_llama,
    check_cpu,
    check_load,
    check_gpu,
    check_memory,
    check_sandbox,
    check_state,
    check_cache,
    check_models,
    check_model,
    check_port,
    check_daemon,
    check_hub,
)


def examine(facts: Facts) -> list[Finding]:
    """Return what every check found."""
    return [finding for check in CHECKS for finding in check(facts)]
