"""The `nmtkit` command line: the commands, and errors as one line and an exit code."""

import errno
import getpass
import importlib
import io
import math
import os
import re
import select
import signal
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from nmtkit.cli.options import MANY, complete_options, quiet_option
from nmtkit.console import is_launched, set_up, visible
from nmtkit.distributed.interpreter import SECONDS_OF_ONE_REQUEST, collect_rarely, stop_signals, wait_briefly
from nmtkit.errors import NmtkitError, PeerLostError

COMMANDS = {
    "run": "Do all five steps below, from a recipe to a scored model.",
    "prepare": "1. Download and clean text, and turn it into training data.",
    "train": "2. Train a model, or resume a training.",
    "average": "3. Average checkpoints into one model.",
    "translate": "4. Translate text with a model.",
    "score": "5. Score translations with BLEU, chrF, TER and others.",
    "classify": "Label text with a model trained for it.",
    "generate": "Continue a text with a language model.",
    "play": "Play episodes with a Decision Transformer.",
    "report": "Write a web page about one or more runs.",
    "compare": "Compare runs: settings, scores, cost, sentences.",
    "cost": "Predict the cost of training, or show what a run took.",
    "attention": "Show the attention weights of a model for a sentence.",
    "serve": "Serve models over HTTP, with a page to translate on.",
    "extract": "Extract relevant paragraphs of long inputs.",
    "rerank": "Choose the best hypotheses from n-best lists.",
    "export": "Convert a model for CTranslate2 or Hugging Face.",
    "import": "Import OPUS-MT, M2M-100, NLLB or GPT models.",
    "ablate": "Train and compare variations, as in the paper's Table 3.",
    "recipes": "List the built-in recipes, or print one.",
    "corpora": "List the public corpora that a recipe can name.",
    "inspect": "Show a training pair as text, subwords and ids.",
}
"""The commands in the order of the help. Each is the function `command` of the module of the same name, which is
imported only when the command is used, as importing all of them would take seconds."""

_WITHOUT_MESSAGES = ("recipes", "corpora", "inspect")
"""The commands that have no option --quiet."""
_REMEDIES = {
    errno.ENOSPC: "; make room and run the same command again",
    errno.EDQUOT: "; make room and run the same command again",
    errno.EACCES: "; change the permissions, or name another file or folder",
    errno.EROFS: "; name a file or folder on a file system that can be written to",
    errno.EFBIG: "; raise the limit of file sizes (`ulimit -f`) and run the same command again",
    errno.EMFILE: "; raise the limit (`ulimit -n`) and run the same command again",
    errno.EAGAIN: "; end other processes, or raise the limit (`ulimit -u`)",
}


_SECONDS_OF_AN_IMPORT = 10.0
"""A stop waits that long for an import to end; then the process ends without clean-up."""


class _Command(TyperCommand):
    """A command whose help shows the metavars of arguments, without Typer's braces and Python types."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")  # a prefix of pydantic
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        return ["[OPTIONS]", *(str(argument.metavar) for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                name = record[0] if param.param_type_name == "option" else str(param.metavar)
                records[param.param_type_name].append((name, re.sub(r"([^ \[]+)<=x<=([^\];]+)", _bounds, record[1])))
        for title, rows in (("Arguments", records["argument"]), ("Options", records["option"])):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _bounds(match: re.Match[str]) -> str:
    """Return the bounds of an option as text, without the default upper bound."""
    lowest, highest = match.groups()
    return f"at least {lowest}" if float(highest) == MANY and float(lowest) >= 0 else f"{lowest} to {highest}"


def load_command(name: str) -> TyperCommand:
    """Import a command of the table."""
    function = importlib.import_module(f"nmtkit.cli.{name}").command
    if name not in _WITHOUT_MESSAGES:
        function = quiet_option(function)
    complete_options(function)
    # Typer turns an application of one command into that command.
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=_Command)(function)
    return typer.main.get_command(single)  # type: ignore[return-value]


class _Commands(TyperGroup):
    """The group of commands; if the reader of stdout has ended (as `head` does), they end silently with exit code 0."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, entry, arguments = super().resolve_command(ctx, args)
        return name, load_command(str(name)) if entry is not None else None, arguments

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _until_the_reader_ends():  # the help and the version are printed here
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _until_the_reader_ends():
            try:
                result = super().invoke(ctx)
            except typer.BadParameter as error:
                error.message = visible(error.message)
                raise
            sys.stdout.flush()
        return result


@contextmanager
def _until_the_reader_ends() -> Iterator[None]:
    """End the process with exit code 0 where a block meets a stdout whose reader has ended."""
    try:
        yield
    except BrokenPipeError as error:
        reader = select.poll()
        # Linux always reports a pipe without a reader, macOS only where an event is waited for.
        reader.register(sys.stdout.fileno(), select.POLLOUT)
        is_gone = any(event & (select.POLLERR | select.POLLHUP) for _, event in reader.poll(0))
        if error.filename is None and not is_gone:
            raise NmtkitError("a process that this one wrote to is gone") from None
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush when Python ends
        raise SystemExit(0) from None


app = typer.Typer(
    name="nmtkit",
    cls=_Commands,
    help="""Train Transformer translation models from parallel text, translate with them and score the translations.

    A recipe is a TOML file with all settings of a run; a run is the folder that training writes. In all help
    texts, "the paper" is "Attention Is All You Need".
    """,
    epilog="To start, try `nmtkit run quickstart`. `nmtkit COMMAND --help` explains a command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _placeholder() -> None:
    """Placeholder of a command, for the help; `resolve_command` replaces it by the command."""


for _name, _summary in COMMANDS.items():
    app.command(_name, short_help=_summary)(_placeholder)


def _print_version(wanted: bool | None) -> None:
    if wanted:
        from nmtkit.versions import nmtkit_version

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


class _Stopped(SystemExit):
    """End of the process after a signal; a class of its own, as weak references to SystemExit itself are impossible."""


def _stopping() -> Callable[[int, FrameType | None], None]:
    """Return a handler of signals that ends the process with clean-up: exit code 129 for SIGHUP, 130 for SIGINT, 143
    for SIGTERM.

    The exception may be lost in C code that calls Python, such as pydantic's serializer. Soon after, another one is
    raised then, unless another handler has been installed meanwhile, such as that of a training: this one is called.
    """
    requested_at, postponed_at, requested = -math.inf, math.inf, 0
    raised: Callable[[], _Stopped | None] = lambda: None  # noqa: E731

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal requested_at, requested, raised
        # The same request once more must not interrupt the clean-up.
        if time.monotonic() - requested_at >= SECONDS_OF_ONE_REQUEST:
            requested_at, requested, raised = time.monotonic(), number, lambda: None
            signal.signal(signal.SIGALRM, end)
            end(number, frame)

    def end(_: int, frame: FrameType | None) -> None:
        nonlocal postponed_at, raised
        if raised() is None and signal.getsignal(requested) is not stop:
            signal.raise_signal(requested)
            return
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # No thread: to start one takes locks, which this one may hold.
        if raised() is not None:  # it still exists, so the clean-up is going on
            return
        if any(frame.f_code.co_filename.startswith("<frozen importlib") for frame, _ in walk_stack(frame)):
            # An exception would leave a library half imported.
            postponed_at = min(postponed_at, time.monotonic())
            if time.monotonic() - postponed_at >= _SECONDS_OF_AN_IMPORT:
                os._exit(128 + requested)
            return
        error = _Stopped(128 + requested)
        raised, postponed_at = weakref.ref(error), math.inf
        try:
            raise error
        finally:
            del error  # else this frame, which the traceback refers to, would keep a lost one alive

    return stop


def main() -> None:
    """Run the command line. Exit codes: 0, 1 for an error, 2 for wrong usage, 129, 130 or 143 after a signal."""
    collect_rarely()
    wait_briefly()
    _prepare_streams()
    set_up()
    try:
        import fcntl  # noqa: F401
    except ModuleNotFoundError:
        _fail("nmtkit needs the file locks of Linux or macOS; on Windows, run it in the Windows Subsystem for Linux")
    try:
        getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in `docker run --user 1234`: torch looks the name up
        os.environ["USER"] = str(os.getuid())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be valid text
    stop = _stopping()
    for number in stop_signals():
        signal.signal(number, stop)
    try:
        try:
            app()
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            for number in stop_signals():
                signal.signal(number, signal.SIG_DFL)  # an exception would only disturb the end of the interpreter
            # Here, as a full disk would otherwise be an error of the interpreter when it ends.
            sys.stdout.flush()
            sys.stderr.flush()
    except PeerLostError as error:
        from nmtkit.distributed.workers import PEER_LOST

        if is_launched():
            _leave(PEER_LOST)  # `launch` reports it
        _fail(str(error))
    except NmtkitError as error:
        _fail(str(error))
    except OSError as error:
        from nmtkit.files import TEMPORARY_MARK

        # Of a temporary file or folder, the one that it stands for.
        file = re.sub(rf"\.([^/]+){TEMPORARY_MARK}[^/]*", r"\1", str(error.filename or ""))
        file += ": " * bool(file)
        _fail(f"{file}{error.strerror or error}{_REMEDIES.get(error.errno or 0, '')}")
    except ValueError as error:
        # Python has no exception of its own for a NUL in a path.
        if "embedded null" not in str(error):
            raise
        _fail("the name of a file holds a NUL character; remove it where the name is written, such as in the recipe")
    except (ImportError, MemoryError, RuntimeError) as error:
        of_threads = "can't start new thread", os.strerror(errno.EAGAIN)  # of Python, and of C++
        if any(told in str(error) for told in of_threads):
            _fail(f"no more threads can be started{_REMEDIES[errno.EAGAIN]}")
        if "Symlink loop" in str(error):  # by Path.resolve
            _fail(f"{error}; give another file or folder")
        if isinstance(error, ImportError) and "failed to map segment" not in str(error):
            raise
        if isinstance(error, RuntimeError):  # with the others, an import would probably fail
            from nmtkit.distributed.workers import is_out_of_memory

            if not is_out_of_memory(error):
                raise
        _fail("out of memory; use smaller batches, a smaller beam or fewer processes, or free some memory")


def _prepare_streams() -> None:
    """Connect closed standard streams to /dev/null, and let the others block. Else the next opened file would get the
    numbers of closed ones, and all printed text would be written to it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The system gives the lowest free number, which is that of the closed stream.
            os.open(os.devnull, os.O_RDWR)
        # A non-blocking stream, left by another program, would lose text that its reader or writer is too slow for.
        with suppress(OSError):
            os.set_blocking(number, True)
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115


def _fail(message: str) -> NoReturn:
    rank = os.environ.get("RANK", "0")
    is_one_of_several = rank.isdecimal() and rank != "0" and os.environ.get("WORLD_SIZE", "1") != "1"
    process = f"process {rank}: " if is_one_of_several else ""
    with suppress(OSError):
        print(f"error: {process}{visible(' '.join(message.split()))}", file=sys.stderr, flush=True)
    _leave(1)


def _leave(code: int) -> NoReturn:
    """End the process. A process of a group skips the clean-up of the interpreter, which sometimes aborts while threads
    of the process group are still running."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(code)  # the interpreter would flush again, and exit with 120
    if os.environ.get("WORLD_SIZE", "1") != "1":
        os._exit(code)
    sys.exit(code)
