"""Threads of a process, and the limits of containers and batch systems."""

import os
from pathlib import Path

import pytest

from nmtkit.distributed import limits
from nmtkit.distributed.cpu import threads_each
from nmtkit.distributed.limits import available_bytes, available_cores


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for control groups, on a machine with 64 cores; `own` has the groups of this process."""
    monkeypatch.setattr(limits, "_GROUPS", tmp_path)
    monkeypatch.setattr(limits, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)), raising=False)
    return tmp_path


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.mark.parametrize(("quota", "cores"), [("max", 64), (450_000, 4), (50_000, 1)])
def test_a_process_has_the_cores_of_its_container(groups: Path, quota: object, cores: int) -> None:
    write(groups, own="0::/", cpu__max=f"{quota} 100000")
    assert available_cores() == threads_each(1) == cores
    assert threads_each(2) == max(1, cores // 2)


def test_the_smallest_quota_of_the_groups_around_a_process_counts(groups: Path) -> None:
    write(groups, own="0::/slurm/job_1/step_0")
    write(groups / "slurm" / "job_1" / "step_0", cpu__max="max 100000")
    write(groups / "slurm" / "job_1", cpu__max="300000 100000")
    write(groups / "slurm", cpu__max="800000 100000")
    assert available_cores() == 3


@pytest.mark.parametrize(("quota", "cores"), [(-1, 64), (600_000, 6)])
def test_version_1_of_control_groups_has_quotas_too(groups: Path, quota: int, cores: int) -> None:
    # The path is that of the host, which a container does not see.
    write(groups, own="3:memory:/docker/1\n2:cpu,cpuacct:/docker/1\n0::/")
    write(groups / "cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us=100_000)
    assert available_cores() == cores


def test_without_control_groups_all_cores_count(groups: Path) -> None:
    assert available_cores() == 64


def test_what_a_container_has_cached_of_files_is_free(groups: Path) -> None:
    write(groups, own="0::/", memory__max=1000, memory__current=990, memory__stat="anon 90")
    assert available_bytes() == 10
    write(groups, memory__stat="anon 90\ninactive_file 500\nactive_file 300")
    assert available_bytes() == 810
    write(groups, memory__max="max")
    assert available_bytes() != 810


def test_the_memory_of_a_batch_job_is_that_of_the_group_around_it(groups: Path) -> None:
    write(groups, own="4:memory:/slurm/job_1/step_0\n0::/")
    used = {"memory__usage_in_bytes": 990, "memory__stat": "total_inactive_file 5\ntotal_active_file 3\nactive_file 9"}
    write(groups / "memory" / "slurm" / "job_1", memory__limit_in_bytes=1000, **used)
    write(groups / "memory" / "slurm" / "job_1" / "step_0", memory__limit_in_bytes=2**63 - 4096, **used)
    assert available_bytes() == 18


def test_the_memory_of_this_machine_is_known() -> None:
    available = available_bytes()
    assert available is None or 10**7 < available < 10**14
