"""The Python process of a command: signals that stop it, and the import path of its child processes."""

import os
import signal
import sys

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that stop a command: Ctrl-C, a request of the system, a closed terminal (SIGHUP, not on Windows)."""


def stop_signals() -> list[signal.Signals]:
    """Return the STOP_SIGNALS that this process does not ignore, as it does SIGHUP under nohup."""
    return [number for number in STOP_SIGNALS if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]


def same_imports() -> dict[str, str]:
    """Return environment variables with which another Python process imports the same modules as this one.

    Started with -c or -m, Python searches the working folder first, where files of the user may have the names of
    modules of the standard library.
    """
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
