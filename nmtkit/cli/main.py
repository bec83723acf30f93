"""The `nmtkit` command line: register the commands, and turn errors into one line and an exit code."""

import errno
import io
import os
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

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
from nmtkit.cli.options import bound_numbers
from nmtkit.console import visible
from nmtkit.distributed.interpreter import stop_signals
from nmtkit.errors import NmtkitError, PeerLostError


class _Commands(TyperGroup):
    """The commands; where the reader of stdout has gone, as `head` does, they end quietly with exit code 0."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError as error:
            reader = select.poll()
            reader.register(sys.stdout.fileno(), 0)  # a pipe that nobody reads is reported unasked
            if error.filename is None and not reader.poll(0):
                raise NmtkitError("a process that this one wrote to is gone") from None
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at its end
            raise SystemExit(0) from None
        return result


app = typer.Typer(
    name="nmtkit",
    cls=_Commands,
    help="""Train Transformer translation models from parallel text, translate with them and score the translations.

    A recipe is a TOML file with the settings of a training; a run is the folder that a training writes.
    """,
    epilog="To start, try `nmtkit run quickstart`. `nmtkit COMMAND --help` explains a command.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for module, summary in (
    (run, "Do all five steps below, from a recipe to a scored model."),
    (prepare, "1. Download and clean text, and turn it into training data."),
    (train, "2. Train a model, or resume a training."),
    (average, "3. Average checkpoints into one model."),
    (translate, "4. Translate text with a model."),
    (score, "5. Score translations with BLEU, chrF, TER and others."),
    (report, "Write a web page about one or more runs."),
    (compare, "Compare runs: settings, scores, cost, sentences."),
    (cost, "Predict what a training costs, or show what it cost."),
    (attention, "Show the attention weights of a model for a sentence."),
    (rerank, "Choose the best hypotheses from n-best lists."),
    (export, "Convert a model for CTranslate2 or Hugging Face."),
    (ablate, "Train and compare variations, as in the paper's Table 3."),
    (recipes, "List the built-in recipes, or print one."),
    (corpora, "List the public corpora that a recipe can name."),
    (inspect, "Show a training pair as text, subwords and ids."),
):
    bound_numbers(module.command)
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
        from nmtkit.files import nmtkit_version

        typer.echo(f"nmtkit {nmtkit_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = None,
) -> None:
    pass


def _stop(number: int, _frame: object) -> NoReturn:
    """End the process with clean-up: exit code 129 for SIGHUP, 130 for SIGINT, 143 for SIGTERM."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run the command line. Exit codes: 0, 1 for an error, 2 for wrong usage, 129, 130 or 143 after a signal."""
    _open_what_is_closed()
    try:
        import fcntl  # noqa: F401
    except ModuleNotFoundError:
        _fail("nmtkit needs the file locks of Linux or macOS; on Windows, run it in the Windows Subsystem for Linux")
    for number in stop_signals():
        signal.signal(number, _stop)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be valid text
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except PeerLostError as error:
        from nmtkit.distributed.workers import PEER_LOST, is_launched

        if is_launched():
            _leave(PEER_LOST)  # `launch` reports it
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
        from nmtkit.distributed.workers import is_out_of_memory

        if "can't start new thread" in str(error):
            _fail(f"no more threads can be started{_WAYS_OUT[errno.EAGAIN]}")
        if "Symlink loop" in str(error):  # by Path.resolve
            _fail(f"{error}; name a file or folder that is there")
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            raise
        _fail("out of memory; use smaller batches, a smaller beam or fewer processes, or free some memory")


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
    place = f"process {rank}: " if rank.isdecimal() and rank != "0" else ""
    with suppress(OSError):
        print(f"error: {place}{visible(' '.join(message.split()))}", file=sys.stderr, flush=True)
    _leave(1)


def _leave(code: int) -> NoReturn:
    """End the process. One of several processes skips the interpreter's clean-up, which sometimes aborts while threads
    of the process group are still running."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(code)  # the interpreter would try it once more, and end with 120
    if os.environ.get("WORLD_SIZE", "1") != "1":
        os._exit(code)
    sys.exit(code)
