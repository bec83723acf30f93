"""Signals as a wish to stop, which training grants at its next safe place."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nmtkit.distributed.interpreter import stop_signals

_SECONDS_OF_ONE_WISH = 1.0
"""A terminal and a launcher both send the signal to every process: what comes within a second is the same wish."""


class StopRequest:
    """Whether this process, or another one of the run, was asked to stop.

    Attributes:
        number: of the signal; None as long as nobody asked.
    """

    def __init__(self) -> None:
        self.number: int | None = None

    @property
    def name(self) -> str:
        """Of the signal, such as SIGTERM."""
        return signal.Signals(self.number or signal.SIGTERM).name

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A signal asks for a stop while the block runs; a second one does what it did before the block."""
        asked_at = 0.0

        def ask(number: int, frame: Any) -> None:
            nonlocal asked_at
            if self.number is None:
                self.number, asked_at = number, time.monotonic()
            elif time.monotonic() - asked_at >= _SECONDS_OF_ONE_WISH:
                for each, handler in previous.items():
                    signal.signal(each, handler)
                signal.raise_signal(number)

        previous: dict[int, Any] = {number: signal.signal(number, ask) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
