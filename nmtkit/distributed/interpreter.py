"""The Python process of a command: the signals that stop it, and the import path of its child processes."""

import os
import signal
import sys

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that stop a command: Ctrl-C, the system, a terminal that is closed (which Windows does not have)."""


def stop_signals() -> list[signal.Signals]:
    """Return the STOP_SIGNALS that this process does not ignore: under nohup it outlives its terminal."""
    return [number for number in STOP_SIGNALS if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]


def same_imports() -> dict[str, str]:
    """Return environment variables with which another Python process imports the same modules as this one.

    Started with -c or -m, Python searches the working folder first, where the user's files may have names of modules of
    the standard library.
    """
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
