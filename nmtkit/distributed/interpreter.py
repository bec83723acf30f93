"""The Python process of a command: the signals that stop it, its cores, garbage collection, and the import path of its
child processes.
"""

import gc
import os
import signal
import sys
from pathlib import Path

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that stop a command: Ctrl-C, a request of the system, a closed terminal (SIGHUP, not on Windows)."""

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
"""Limit of a container: the microseconds of CPU time per period, and the microseconds of a period."""
_THRESHOLDS = gc.get_threshold()
_RARELY = (500_000, *_THRESHOLDS[1:])


def available_cores() -> int:
    """Return the number of cores this process may use, by its affinity and its container's limit."""
    # os.cpu_count() also counts cores that `taskset` or a batch system withholds. macOS has no CPU affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share, period = _CPU_MAX.read_text(encoding="ascii").split() if _CPU_MAX.is_file() else ("max", "")
    return cores if share == "max" else min(cores, max(1, int(share) // int(period)))


def collect_rarely() -> None:
    """Let hardly any garbage collection happen, until `collect_as_usual`.

    Importing torch makes some 250,000 objects that stay. Going through them again and again takes a quarter of the time
    of a short command. Garbage is still collected after every 500,000 new objects.
    """
    gc.set_threshold(*_RARELY)


def collect_as_usual() -> None:
    """End `collect_rarely`, and leave out of all collections what there is now; without it, do nothing.

    Called where long work begins: in `prepare`, and where torch or CTranslate2 has been set up for a command.
    """
    if gc.get_threshold() == _RARELY:
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)


def stop_signals() -> list[signal.Signals]:
    """Return the STOP_SIGNALS that this process does not ignore, as it does SIGHUP under nohup."""
    return [number for number in STOP_SIGNALS if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]


def same_imports() -> dict[str, str]:
    """Return environment variables with which another Python process imports the same modules as this one.

    Started with -c or -m, Python searches the working folder first, where files of the user may have the names of
    modules of the standard library.
    """
    # Not the inherited PYTHONPATH, which lacks the folder of a script, for example.
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
