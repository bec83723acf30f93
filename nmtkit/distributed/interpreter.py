"""The Python process of a command: signals that stop it, garbage collection, waiting threads, its child processes."""

import gc
import os
import signal
import sys

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that stop a command: Ctrl-C, a request of the system, a closed terminal (SIGHUP, not on Windows)."""
SECONDS_OF_ONE_REQUEST = 1.0
"""A terminal and a launcher both send the signal to every process: signals within a second are one request."""

_THRESHOLDS = gc.get_threshold()
_RARELY = (500_000, *_THRESHOLDS[1:])


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


def wait_briefly() -> None:
    """Let threads that wait for the others of an operation sleep after 25,000 looks, unless the user has set that.

    Call it before torch is imported, whose OpenMP library (GNU's) looks 300,000 times by default. On newer Intel
    processors that takes 17 ms, for which the waiting thread may keep the core from the one it waits for, if other
    programs are busy too. docs/benchmarks.md has what this changes.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "25000")


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
