"""Ends a process by kill -9 at a chosen moment, for tests of what is left behind."""

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

FILE_OPERATIONS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


class Killer:
    """Kills this process instead of the n-th of the calls it counts."""

    def __init__(self, count: float) -> None:
        self._left = count

    def counting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return counted

    def count_file_operations(self) -> None:
        """Counts what changes names on a disk, or waits for it."""
        for name in FILE_OPERATIONS:
            setattr(os, name, self.counting(getattr(os, name)))


Moment = tuple[str, float]
"""What to count and when to kill: ("seconds", 0.4), ("file operations", 12) or ("validation batches", 2)."""


def kill_at_window(number: int, lines: int) -> None:
    """Has this process killed instead of writing a window of a translation, all of so many lines; the first is 0."""
    from nmtkit.decoding import file_translation
    from nmtkit.decoding.parts import Parts

    file_translation.WINDOW_LINES = lines
    Parts.write = Killer(number).counting(Parts.write)  # type: ignore[method-assign]


def kill_at(moment: Moment) -> None:
    """Has this process killed at a moment that it counts itself."""
    what, count = moment
    if what == "seconds":  # SIGALRM ends it as SIGKILL does, whether or not the process that waits for it has a core
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(count, 1e-6))
    elif what == "file operations":
        Killer(count).count_file_operations()
    elif what == "validation batches":
        from nmtkit.training import validation

        validation.batch_loss = Killer(count).counting(validation.batch_loss)
