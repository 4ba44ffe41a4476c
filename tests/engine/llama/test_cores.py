"""The number of threads to compute with, on file systems copied from other machines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeagent.engine.llama.cores import num_usable_cores, parse_cpus, performance_cpus
from edgeagent.usable import UsableMemory, cpu_quota, usable_memory

Write = Callable[[str, object], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_one(name: str, text: object) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    return write_one


def make_cores(write: Write, num_cores: int, *, num_threads: int = 1) -> frozenset[int]:
    """Write a machine's cores; core n has the logical CPUs n, n + num_cores …, as Linux numbers them."""
    for core in range(num_cores):
        siblings = [core + num_cores * thread for thread in range(num_threads)]
        for cpu in siblings:
            write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", ",".join(map(str, siblings)))
    return frozenset(range(num_cores * num_threads))


def count(root: Path, allowed: frozenset[int]) -> int:
    return num_usable_cores(root, platform="linux", allowed=allowed)


def test_a_core_counts_once(tmp_path: Path, write: Write) -> None:
    cpus = make_cores(write, 4, num_threads=2)
    assert count(tmp_path, cpus) == 4
    assert count(tmp_path, frozenset({0, 4})) == 1, "two threads of one core"
    assert count(tmp_path, frozenset({0, 1})) == 2


def test_two_of_64_cores_in_a_container(tmp_path: Path, write: Write) -> None:
    cpus = make_cores(write, 64)
    write("proc/self/cgroup", "0::/")
    write("sys/fs/cgroup/cpu.max", "200000 100000")
    assert count(tmp_path, cpus) == 2
    write("sys/fs/cgroup/cpu.max", "150000 100000")
    assert count(tmp_path, cpus) == 2
    write("sys/fs/cgroup/cpu.max", "max 100000")
    assert count(tmp_path, cpus) == 64
    assert count(tmp_path, frozenset({7})) == 1


def test_the_smallest_quota_of_the_groups_above_holds(tmp_path: Path, write: Write) -> None:
    write("proc/self/cgroup", "0::/user.slice/user-1000.slice/app.scope")
    write("sys/fs/cgroup/user.slice/cpu.max", "300000 100000")
    write("sys/fs/cgroup/user.slice/user-1000.slice/app.scope/cpu.max", "max 100000")
    assert cpu_quota(tmp_path) == 3.0
    write("sys/fs/cgroup/user.slice/user-1000.slice/cpu.max", "50000 100000")
    assert cpu_quota(tmp_path) == 0.5
    assert count(tmp_path, make_cores(write, 8)) == 1


@pytest.mark.parametrize("folder", ["cpu,cpuacct", "cpu"])
def test_groups_of_the_first_version(tmp_path: Path, write: Write, folder: str) -> None:
    write("proc/self/cgroup", f"9:memory:/docker/abc\n4:{folder}:/docker/abc\n0::/system.slice")
    group = f"sys/fs/cgroup/{folder}"  # of a container, which does not see the folders above
    write(f"{group}/cpu.cfs_quota_us", -1)
    write(f"{group}/cpu.cfs_period_us", 100_000)
    assert cpu_quota(tmp_path) is None
    write(f"{group}/cpu.cfs_quota_us", 250_000)
    assert cpu_quota(tmp_path) == 2.5


def test_efficient_cores_of_intel_do_not_count(tmp_path: Path, write: Write) -> None:
    make_cores(write, 16)
    write("sys/devices/cpu_core/cpus", "0-5")
    write("sys/devices/cpu_atom/cpus", "6-15")
    assert count(tmp_path, frozenset(range(16))) == 6
    assert count(tmp_path, frozenset({4, 5, 6, 7})) == 2
    assert count(tmp_path, frozenset({8, 9})) == 2, "there are no others"


def test_efficient_cores_of_arm_do_not_count(tmp_path: Path, write: Write) -> None:
    cpus = make_cores(write, 8)
    for cpu, capacity in enumerate([280] * 4 + [820] * 3 + [1024]):
        write(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", capacity)
    assert performance_cpus(tmp_path, cpus) == {4, 5, 6, 7}
    assert performance_cpus(tmp_path, frozenset({0, 1})) == {0, 1}
    assert count(tmp_path, cpus) == 4


@pytest.mark.parametrize("broken", ["", "x", "1-", "-", "9999999999999999999999 0", "max"])
def test_what_cannot_be_read_limits_nothing(tmp_path: Path, write: Write, broken: str) -> None:
    write("proc/self/cgroup", broken)
    write("sys/devices/cpu_core/cpus", broken)
    assert count(tmp_path, frozenset({0})) == 1
    write("proc/self/cgroup", "0::/")
    write("sys/fs/cgroup/cpu.max", broken)
    assert cpu_quota(tmp_path) is None


def test_a_list_of_cpus() -> None:
    assert parse_cpus("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}


def test_macs_count_their_performance_cores(tmp_path: Path) -> None:
    assert num_usable_cores(tmp_path, platform="darwin", sysctl={"hw.perflevel0.physicalcpu": 6}.get) == 6
    assert num_usable_cores(tmp_path, platform="darwin", sysctl=lambda _: None) >= 1


def test_this_machine_has_some() -> None:
    assert 1 <= num_usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds a process to CPUs here")
def test_a_process_that_is_bound_to_one_cpu_uses_one() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from edgeagent.engine.llama.cores import num_usable_cores; print(num_usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "1\n"


def test_the_memory_of_a_container_is_its_limit(tmp_path: Path, write: Write) -> None:
    machine = usable_memory(tmp_path)
    write("proc/self/cgroup", "0::/pod/box")
    write("sys/fs/cgroup/pod/box/memory.max", "max")
    write("sys/fs/cgroup/pod/box/memory.current", 4 << 20)
    assert usable_memory(tmp_path).total == machine.total
    write("sys/fs/cgroup/pod/memory.max", 64 << 20)
    write("sys/fs/cgroup/pod/memory.current", 40 << 20)
    write("sys/fs/cgroup/pod/memory.stat", f"anon 1\ninactive_file {16 << 20}")
    assert usable_memory(tmp_path) == UsableMemory(64 << 20, 40 << 20), "cached files can be dropped"
    write("sys/fs/cgroup/pod/box/memory.max", 8 << 20)
    assert usable_memory(tmp_path) == UsableMemory(8 << 20, 4 << 20), "the smallest limit holds"


def test_the_first_version_of_control_groups_limits_memory_too(tmp_path: Path, write: Write) -> None:
    write("proc/self/cgroup", "4:cpu,cpuacct:/a\n5:memory:/a")
    write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", 32 << 20)
    write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", 40 << 20)
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    assert usable_memory(tmp_path) == UsableMemory(32 << 20, 0)
