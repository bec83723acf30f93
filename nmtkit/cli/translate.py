"""`nmtkit translate`."""

import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nmtkit.cli.options import DeviceOption, QuietOption, ThreadsOption

if TYPE_CHECKING:
    from nmtkit.files import LineReader

WINDOW_LINES = 2000


def command(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Model or run folders; several form an ensemble.", show_default=False),
    ],
    input_: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Text, plain or .gz.  [default: stdin]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Translations, plain or .gz.  [default: stdout]")
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option("--beam", metavar="N", min=1, help="Hypotheses kept; 1 is greedy.  [default: the recipe's]"),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", metavar="X", min=0, help="Length penalty's exponent.  [default: the recipe's]"),
    ] = None,
    length_penalty: Annotated[
        str | None,
        typer.Option(
            "--length-penalty",
            metavar="wu|length|none",
            help="wu: ((5+n)/6)^alpha, the paper's. length: n^alpha. none.  [default: the recipe's]",
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="SENTENCES", min=1, help="Sentences translated at once.")
    ] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option("--batch-tokens", metavar="N", min=1, help="Source tokens translated at once.  [default: 2048]"),
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Text to its translation: one line out for each line in, in order; empty for empty.

    Example: nmtkit translate runs/quickstart --input text.en --output text.de
    """
    from nmtkit import console
    from nmtkit.errors import DataError
    from nmtkit.files import LineReader, write_atomically

    if batch_size is not None and batch_tokens is not None:
        raise typer.BadParameter("give --batch-size or --batch-tokens, not both")
    console.set_up(quiet=quiet)
    if input_ is not None:
        # A pipe could not be read again after counting.
        total = sum(1 for _ in LineReader(input_, errors="replace")) if input_.is_file() else None
        reader = LineReader(input_, errors="replace")
    else:
        total = None
        if sys.stdin is None:
            raise DataError("stdin is closed; give text there or a file with --input")
        reader = LineReader(sys.stdin.buffer, name="stdin", errors="replace")

    translate = _translate_function(
        models, _overrides(beam, alpha, length_penalty), device, threads, batch_size, batch_tokens
    )
    with ExitStack() as stack:
        if output is not None:
            write = stack.enter_context(write_atomically(output)).write
        else:
            stdout = sys.stdout  # a live progress bar puts something else in its place
            stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
            write = stdout.write
        advance = stack.enter_context(console.progress("translating", total))
        done = 0
        for window in _windows(reader, WINDOW_LINES):
            for line in translate(window):
                write(f"{line}\n")
            if output is None:
                stdout.flush()
            done += len(window)
            advance(done, note=f"{done:,} lines")
    _warn_of_invalid_lines(reader)


def _overrides(beam: int | None, alpha: float | None, length_penalty: str | None) -> dict[str, object]:
    if length_penalty not in (None, "wu", "length", "none"):
        raise typer.BadParameter(f"{length_penalty!r} is not one of wu, length, none", param_hint="--length-penalty")
    stated = {"beam": beam, "alpha": alpha, "length_penalty": length_penalty}
    return {key: value for key, value in stated.items() if value is not None}


def _translate_function(
    models: list[Path],
    overrides: dict[str, object],
    device: str,
    threads: int | None,
    batch_size: int | None,
    batch_tokens: int | None,
) -> Callable[[list[str]], list[str]]:
    """Loads the models and returns what translates a list of lines."""
    from nmtkit.decoding.translator import BATCH_TOKENS, Translator
    from nmtkit.workers import choose_device, set_threads

    set_threads(threads)
    translator = Translator.load(models, choose_device(device))
    translator.decoding = translator.decoding.model_copy(update=overrides)
    return lambda lines: translator.translate(
        lines, batch_sentences=batch_size, batch_tokens=batch_tokens or BATCH_TOKENS
    )


def _windows(lines: Iterable[str], size: int) -> Iterable[list[str]]:
    window: list[str] = []
    for line in lines:
        window.append(line)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


def _warn_of_invalid_lines(reader: "LineReader") -> None:
    from nmtkit import console

    invalid = reader.invalid_lines
    if invalid:
        shown = ", ".join(str(number) for number in invalid[:10]) + (", ..." if len(invalid) > 10 else "")
        console.log.warning(
            "%s: invalid UTF-8 was replaced by U+FFFD in %d lines: %s", reader.name, len(invalid), shown
        )
