"""The Python process of a command: which signals stop it, and what other processes of the command import."""

import os
import signal
import sys

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that stop a command: Ctrl-C, the system, a terminal that is closed (which Windows does not have)."""


def stop_signals() -> list[signal.Signals]:
    """Those of STOP_SIGNALS that this process does not ignore: under nohup it outlives its terminal."""
    return [number for number in STOP_SIGNALS if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]


def same_imports() -> dict[str, str]:
    """Variables of the environment with which another Python imports what this one does.

    Started with -c or -m, Python looks into the working folder first, where the user's files may be called like modules
    of the standard library.
    """
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
