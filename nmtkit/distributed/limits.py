"""The cores and the memory that the system and its control groups (containers, batch systems) leave to this process."""

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_MEMORY = (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))
"""Files of a limit and of what is in use, and prefix of statistics, in control groups of version 2 and of version 1."""


def available_cores() -> int:
    """Return the number of cores this process may use, by its affinity and the quotas of its control groups."""
    # os.cpu_count() also counts cores that `taskset` or a batch system withholds. macOS has no CPU affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _groups("cpu"):
        # Microseconds of CPU time per period, or "max" or -1 for no limit, and the microseconds of a period.
        of_version_1 = f"{_content(folder / 'cpu.cfs_quota_us')} {_content(folder / 'cpu.cfs_period_us')}"
        quota, _, period = (_content(folder / "cpu.max") or of_version_1).partition(" ")
        if quota.isdecimal() and period.isdecimal():
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def available_bytes() -> int | None:
    """Return the memory still available to this process in the system and its control groups; None if not known."""
    limits = []
    system = dict(line.split(":", 1) for line in _content(Path("/proc/meminfo")).splitlines())
    if "MemAvailable" in system:  # WSL 1 lacks it
        limits.append(int(system["MemAvailable"].split()[0]) * 1024)
    for folder in _groups("memory"):
        for limit_file, used_file, prefix in _MEMORY:
            limit, used = _content(folder / limit_file), _content(folder / used_file)
            if limit.isdecimal() and used.isdecimal():
                found = dict(line.split() for line in _content(folder / "memory.stat").splitlines())
                # Cached files count as used until the memory is needed, and a large corpus fills the cache.
                cached = sum(int(found.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
                limits.append(int(limit) - int(used) + cached)
    return max(0, min(limits)) if limits else None


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group, version 1 or 2, and of the groups that contain it."""
    for line in _content(_OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root = _GROUPS / controller if controllers else _GROUPS
            # In a container, the root is its own group, and folders of this path may not exist.
            folder = root / path.strip("/")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def _content(path: Path) -> str:
    """Return the content of a file of the system, or "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
