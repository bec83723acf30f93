"""Counts the target tokens of each update, inside of a toolkit's own training command."""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = "NMTKIT_PROBE_FILE"
SECONDS = "NMTKIT_PROBE_SECONDS"
"""The environment variables that name the file to write and the seconds after which training ends."""

_first: float | None = None


def record(target_tokens: int) -> None:
    """Append the time and the tokens of an update; ends the process after the given seconds.

    Args:
        target_tokens: those without padding, end symbols counted.
    """
    global _first
    if FILE not in os.environ:  # training only makes a model
        return
    now = time.perf_counter()
    _first = now if _first is None else _first
    with Path(os.environ[FILE]).open("a") as file:
        file.write(f"{now} {int(target_tokens)}\n")
    if now - _first >= float(os.environ[SECONDS]):
        os._exit(0)  # toolkits catch SystemExit


def watch(owner: Any, method: str, target_tokens: Callable[..., int]) -> None:
    """Record an update after each call of a method; ``target_tokens`` takes the arguments of the method."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def watched(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        record(target_tokens(*arguments, **options))
        return result

    setattr(owner, method, watched)
