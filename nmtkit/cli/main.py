"""The command `nmtkit`: registers the commands and turns a user's mistake into one line and an exit code."""

import errno
import io
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from nmtkit.cli import (
    ablate,
    attention,
    average,
    compare,
    corpora,
    cost,
    export,
    inspect,
    prepare,
    recipes,
    report,
    rerank,
    run,
    score,
    train,
    translate,
)
from nmtkit.console import visible
from nmtkit.errors import NmtkitError, PeerLostError

app = typer.Typer(
    name="nmtkit",
    help='From parallel text to a trained translation system, exactly as "Attention Is All You Need" describes it.',
    epilog="Start with `nmtkit run quickstart`, or `nmtkit recipes`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for module, summary in (
    (prepare, "Corpora to training data."),
    (train, "Training data to checkpoints; goes on where it was."),
    (average, "Checkpoints to one model."),
    (translate, "Text to its translation."),
    (export, "A model to the form of another library, CTranslate2 or transformers."),
    (score, "Translations to scores and cost; with a model, to log-probabilities."),
    (cost, "What a training will take, or what it took."),
    (compare, "Runs side by side: settings, scores, cost, sentences."),
    (rerank, "N-best lists to their best hypotheses by a model."),
    (report, "Runs to one page of their settings, curves, scores and cost."),
    (attention, "What a model attends to, as a page, a figure or in the terminal."),
    (run, "All five steps in order; finished ones are skipped."),
    (ablate, "The paper's Table 3: variations on one model, compared."),
    (recipes, "The built-in recipes, to see or to copy."),
    (corpora, "The public corpora by name, with sizes and licences."),
    (inspect, "A prepared pair as text, pieces and ids."),
):
    app.command(module.__name__.rsplit(".", 1)[-1], short_help=summary)(module.command)

_WAYS_OUT = {
    errno.ENOSPC: "; make room and run the same command again",
    errno.EDQUOT: "; make room and run the same command again",
    errno.EFBIG: "; raise the limit and run the same command again",
    errno.EMFILE: "; raise the limit (`ulimit -n`) and run the same command again",
    errno.EAGAIN: "; end other processes, or raise the limit (`ulimit -u`)",
}
"""What to do about some errors of the operating system."""


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"nmtkit {version('nmtkit')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool | None, typer.Option("--version", callback=_print_version, is_eager=True, help="Prints the version.")
    ] = None,
) -> None:
    pass


def _stop(number: int, _frame: object) -> NoReturn:
    """Ends the process from wherever it is, cleaning up on the way: 130 for SIGINT, 143 for SIGTERM."""
    raise SystemExit(128 + number)


def main() -> None:
    """The entry point: exit code 0, or 1 for a user's mistake, 2 for wrong usage, 130 and 143 when stopped."""
    _open_what_is_closed()
    try:
        import fcntl  # noqa: F401
    except ModuleNotFoundError:
        _fail("nmtkit needs the file locks of Linux or macOS; on Windows, run it in the Windows Subsystem for Linux")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file need not be text
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except PeerLostError as error:
        from nmtkit.workers import PEER_LOST, is_launched

        if is_launched():
            _leave(PEER_LOST)  # `launch` tells it
        _fail(str(error))
    except NmtkitError as error:
        _fail(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}{_WAYS_OUT.get(error.errno or 0, '')}")
    except ValueError as error:
        if "embedded null" not in str(error):
            raise
        _fail("the name of a file holds a NUL character; take it out of the recipe or file that states the name")
    except (MemoryError, RuntimeError) as error:
        from nmtkit.workers import is_out_of_memory

        if "can't start new thread" in str(error):
            _fail(f"no more threads can be started{_WAYS_OUT[errno.EAGAIN]}")
        if "Symlink loop" in str(error):  # by Path.resolve
            _fail(f"{error}; name a file or folder that is there")
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            raise
        _fail("out of memory; take smaller batches, a smaller beam or fewer processes, or make room")


def _open_what_is_closed() -> None:
    """Gives closed standard streams to nothing: another file would get their numbers, and what is printed with them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115


def _fail(message: str) -> NoReturn:
    rank = os.environ.get("RANK", "0")
    place = f"process {rank}: " if rank != "0" else ""
    with suppress(OSError):
        print(f"error: {place}{visible(' '.join(message.split()))}", file=sys.stderr, flush=True)
    _leave(1)


def _leave(code: int) -> NoReturn:
    """Ends the process. One of several ends without the interpreter's own clean-up, which aborts now and then where
    threads of the process group are still at work."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(code)  # the interpreter would try it once more, and end with 120
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        os._exit(code)
    sys.exit(code)
