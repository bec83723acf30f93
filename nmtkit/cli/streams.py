"""Reading text in windows of lines, and writing lines to a file or stdout."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from nmtkit import console
from nmtkit.corpora.corpus import local_lines
from nmtkit.errors import DataError
from nmtkit.files import write_atomically
from nmtkit.lines import LineReader

if TYPE_CHECKING:  # it imports torch, for which `--help` should not wait
    from nmtkit.decoding.forced import ForcedDecoder

T = TypeVar("T")


def grouped(items: Iterable[T], size: int, weight: Callable[[T], int] = lambda item: 1) -> Iterator[list[T]]:
    """Cut items into lists of a total weight of ``size`` or little more, so that not all are in memory at once."""
    window: list[T] = []
    total = 0
    for item in items:
        window.append(item)
        total += weight(item)
        if total >= size:
            yield window
            window, total = [], 0
    if window:
        yield window


@contextmanager
def result_lines(output: Path | None) -> Iterator[Callable[[Iterable[str]], None]]:
    """Yield a function that writes lines: to a file that appears complete at the end, or immediately to stdout.

    Enter this context before that of a progress bar, which may replace stdout.
    """
    with ExitStack() as stack:
        if output is not None:
            file = stack.enter_context(write_atomically(output))
        else:
            write_stdout_as_text()
            file = sys.stdout
        shown = console.visible if output is None and file.isatty() else str

        def write(lines: Iterable[str]) -> None:
            file.writelines(f"{shown(line)}\n" for line in lines)
            file.flush()  # so that a full disk is found before another file of the same command appears

        yield write


def input_lines(
    path: Path | None, content: str, errors: Literal["strict", "replace"], prompted: Iterable[bytes] | None = None
) -> LineReader:
    """Return a reader of a file, or of stdin.

    Args:
        content: what to pipe into stdin, for the message if it is closed.
        prompted: lines that replace those of stdin.
    """
    if path is not None:
        return local_lines(path, errors)
    if sys.stdin is None:
        raise DataError(f"stdin is closed; pipe {content} into it, or give a file with --input")
    return LineReader(_own_stdin() if prompted is None else prompted, name="stdin", errors=errors)


def _own_stdin() -> Iterable[bytes]:
    """Return the lines of stdin through a new stream. A thread that waits on ``sys.stdin`` would hold the lock of that
    stream when the interpreter ends, which would then abort."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except OSError:  # stdin was replaced by a stream without a file
        return sys.stdin.buffer


def write_stdout_as_text() -> None:
    """Set stdout to UTF-8 with ``\\n`` line ends; raise DataError if it is closed."""
    if None in (sys.stdout, sys.__stdout__):
        raise DataError("stdout is closed; give a file with --output")
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]


def warn_of_invalid_lines(reader: LineReader) -> None:
    """Log a warning with the lines in which invalid UTF-8 was replaced."""
    if reader.invalid_lines:
        console.log.warning(
            "%s: invalid UTF-8 was replaced by U+FFFD in %s", reader.name, console.listed(reader.invalid_lines)
        )


def warn_of_whole_lines(numbers: list[int]) -> None:
    """Log a warning with the lines that `translate` would split into sentences."""
    if numbers:
        console.log.warning(
            "sources of several sentences were scored as a whole, although `translate` splits them for this model: %s",
            console.listed(numbers),
        )


def warn_of_other_direction(
    decoder: "ForcedDecoder",
    pairs: Iterable[tuple[str, str]],
    model: Path,
    remedy: str,
    batch_tokens: int,
    max_tokens: int,
) -> None:
    """Log a warning if a model of the other direction seems to score pairs of source and hypothesis."""
    if decoder.prefers_exchanged(pairs, batch_tokens=batch_tokens, max_tokens=max_tokens):
        source, target = decoder.tokenizer.languages
        if len(decoder.tokenizer.target_languages) > 1:
            remedy += ", or exchange --from and --to"
        console.log.warning(
            "%s translates from %s to %s, but the texts are far more probable in the other direction; if they are, %s",
            model,
            source,
            target,
            remedy,
        )


def warn_of_cut_lines(side: str, numbers: list[int], max_tokens: int) -> None:
    """Log a warning with the lines whose source or hypothesis was cut."""
    if numbers:
        lines = console.listed(numbers)
        console.log.warning("the %s was cut (the model's limit, or --max-tokens %d) in %s", side, max_tokens, lines)
