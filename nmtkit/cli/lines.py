"""Reading and writing text line by line: windows of lines in, a file or stdout out."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from nmtkit import console
from nmtkit.errors import DataError
from nmtkit.files import LineReader, write_atomically

T = TypeVar("T")


def windows(items: Iterable[T], size: int, weight: Callable[[T], int] = lambda item: 1) -> Iterator[list[T]]:
    """Cut items into lists that weigh ``size`` or little more, so that not all are held in memory at once."""
    window: list[T] = []
    weighs = 0
    for item in items:
        window.append(item)
        weighs += weight(item)
        if weighs >= size:
            yield window
            window, weighs = [], 0
    if window:
        yield window


@contextmanager
def result_lines(output: Path | None) -> Iterator[Callable[[Iterable[str]], None]]:
    """Yield a function that writes lines to a file, which appears whole at the end, or at once to stdout.

    Enter it before a progress bar, which may replace stdout.
    """
    if output is not None:
        with write_atomically(output) as file:
            yield lambda lines: file.writelines(f"{line}\n" for line in lines)
        return
    write_stdout_as_text()
    stdout = sys.stdout
    shown = console.visible if stdout.isatty() else str

    def write(lines: Iterable[str]) -> None:
        stdout.writelines(f"{shown(line)}\n" for line in lines)
        stdout.flush()

    yield write


def own_stdin() -> Iterable[bytes]:
    """Return the lines of stdin through a stream of their own: a thread that waits on ``sys.stdin`` holds its lock
    when the interpreter ends, which then aborts."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except OSError:  # it was replaced by one without a file
        return sys.stdin.buffer


def write_stdout_as_text() -> None:
    """Let stdout take UTF-8 with ``\\n`` line ends; raise DataError if it is closed."""
    if None in (sys.stdout, sys.__stdout__):
        raise DataError("stdout is closed; give a file with --output")
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]


def warn_of_invalid_lines(reader: LineReader) -> None:
    """Name the lines that were not UTF-8 and were read all the same."""
    if reader.invalid_lines:
        console.log.warning(
            "%s: invalid UTF-8 was replaced by U+FFFD in %s", reader.name, console.listed(reader.invalid_lines)
        )


def warn_of_cut_lines(numbers: list[int], max_tokens: int) -> None:
    """Name the lines of which only the first tokens were scored."""
    if numbers:
        console.log.warning(
            "only the first tokens were scored (the model's limit, or --max-tokens %d) in %s",
            max_tokens,
            console.listed(numbers),
        )
