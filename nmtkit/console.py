"""Messages and progress on stderr, tables on stdout.

The library logs to the logger "nmtkit" and never prints; the command line calls `set_up` once. Only rank 0 writes.
"""

import contextlib
import logging
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

from nmtkit.errors import NmtkitError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import TaskID

log = logging.getLogger("nmtkit")

LAUNCHED = "NMTKIT_LAUNCHED"
"""Environment variable of the processes of `launch`: the id of the process that started them."""
SECONDS_BETWEEN_LINES = 10.0
"""Interval of progress lines without a terminal."""

_REFRESHES_PER_SECOND = 2
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SIGNS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if code != 0x0A},
    **{code: f"<U+{code:04X}>" for code in (*range(0x7F, 0xA0), *_DIRECTIONS)},
}
"""Visible signs for control characters and direction marks, which would control the terminal or reorder a line."""
_COMMAND = re.compile(r"`[^`]*`|(?:(?<=run: )|(?<=next: )|(?<=write it: )|(?<=this export: ))nmtkit .*")
"""A command in a message: between backquotes, or to the end of its line."""
_UNITS = ("", "k", "M", "G", "T", "P", "E", "Z")


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = "\n".join(map(visible, super().format(record).split("\n")))
        shown = message if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {message}"
        return fill(shown, shutil.get_terminal_size().columns) if sys.stderr.isatty() else shown


def set_up(*, quiet: bool = False, rank: int = 0) -> None:
    """Send messages to stderr: all, with ``quiet`` only warnings and errors, on ranks other than 0 only errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(message)s"))
    log.handlers = [handler]
    # Handlers of the root logger, such as those of another library, would print each message again.
    log.propagate = False
    log.setLevel(logging.INFO if not quiet and rank == 0 else logging.WARNING if rank == 0 else logging.ERROR)


def visible(text: str) -> str:
    """Replace characters that would control a terminal by visible signs, except line ends."""
    return text.translate(_SIGNS)


def say(text: str) -> None:
    """Print a line of text to stdout, with control characters made visible."""
    print(visible(text))


def environment_number(name: str, default: int | None = None) -> int:
    """Return a number that a launcher of several processes has set in the environment.

    Raises:
        NmtkitError: it is not a whole number from 0, or it is missing and has no default.
    """
    value = os.environ.get(name, None if default is None else str(default))
    if value is None or not re.fullmatch("[0-9]{1,9}", value):
        what = "missing" if value is None else ascii(value)
        raise NmtkitError(f"the environment variable {name} is {what}; a launcher sets a whole number, else unset it")
    return int(value)


def own_rank() -> int:
    """Return the number of this process among those of a launcher, 0 if there is only one."""
    rank = environment_number("RANK", 0)
    return rank if environment_number("WORLD_SIZE", 1) > 1 else 0


def is_launched() -> bool:
    """Return whether this is a process of `launch`."""
    return LAUNCHED in os.environ


def duration(seconds: float | int) -> str:
    """Format seconds: 8s, 3m05s, 2h17m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def amount(value: float | int) -> str:
    """Format a large number with three digits or more and a letter: 912, 45.2 G, 1.21 P."""
    power = 0
    # From 999.5 on, three digits would be rounded to 1e+03.
    while abs(value) >= 999.5 and power < len(_UNITS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.0f}" if not power else f"{value:.3g} {_UNITS[power]}"


def with_decimals(value: float, decimals: int) -> str:
    """Return a number with so many decimals; from a million on, with three digits in all."""
    # The perplexity of a training that diverged may have hundreds of digits.
    return f"{value:.3g}" if abs(value) >= 1e6 else f"{value:.{decimals}f}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: 1 checkpoint, 3,126 pairs, 2 processes."""
    plural = "" if number == 1 else "es" if noun.endswith(("s", "x", "tch")) else "s"
    return f"{number:,} {noun}{plural}"


def fill(text: str, width: int) -> str:
    """Wrap lines between words at ``width``; continuation lines have the indentation of their line.

    Commands are not wrapped, so that they can be copied.
    """
    filled = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), line)
        filled.append(
            textwrap.fill(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        )
    return "\n".join(filled).replace("\0", " ")


def listed(numbers: Sequence[int]) -> str:
    """Format line numbers; of more than ten, their number and the first ten."""
    shown = ", ".join(str(number) for number in numbers[:10])
    if len(numbers) == 1:
        return f"line {shown}"
    return f"{counted(len(numbers), 'line')}: {shown}{', ...' if len(numbers) > 10 else ''}"


def is_telling() -> bool:
    """Return whether progress is shown: only without --quiet, and only by the first process."""
    return log.isEnabledFor(logging.INFO)


def is_live() -> bool:
    """Return whether progress is updated in place, which needs a terminal that can move its cursor."""
    stderr: Any = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # that of a display is none for rich < 15
    return is_telling() and stderr.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


@contextmanager
def live(display: "RenderableType") -> Iterator[None]:
    """Show a display at the bottom of the terminal for the duration of a `with` block, redrawn twice per second.

    Messages appear above it. At the end, also after an error, it is removed and the cursor restored.
    """
    from rich.live import Live

    with _shown(Live, display, refresh_per_second=_REFRESHES_PER_SECOND, vertical_overflow="crop"):
        yield


@contextmanager
def _shown(kind: Any, *content: Any, **options: Any) -> Iterator[Any]:
    """Show a display of rich, with messages above it, for the duration of a `with` block."""
    from rich.console import Console

    console, handlers = Console(file=cast(IO[str], _LastingStderr())), log.handlers
    # Without redirect_stdout=False, rich would send what is printed to stdout, the results, to stderr.
    with kind(*content, console=console, transient=True, redirect_stdout=False, **options) as display:
        log.handlers = [_ConsoleHandler(console)]
        try:
            yield display
        finally:
            log.handlers = handlers


Advance = Callable[..., None]
"""advance(done, note=""): update a progress display with the total done so far and a note."""


@contextmanager
def progress(description: str, total: float | int | None, *, start: float | int = 0) -> Iterator[Advance]:
    """Show progress with the time left: a live bar on a terminal, a line every ten seconds elsewhere.

    Args:
        total: final value of `done`; None if unknown.
        start: amount done before this session, excluded from the rate.
    """
    if not is_telling():
        yield lambda done, note="": None
        return
    if not is_live():
        yield _plain_lines(description, total, start)
        return
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TextColumn("left:"),
        rich.TimeRemainingColumn(),
        rich.TextColumn("{task.fields[note]}", markup=False),
    )
    with _shown(rich.Progress, *columns, speed_estimate_period=120) as bar:
        task = bar.add_task(visible(description), total=total, note="")
        bar.update(task, completed=start)
        yield lambda done, note="": bar.update(task, completed=done, note=visible(note))


class _ConsoleHandler(logging.Handler):
    """Handler that prints messages above a live display."""

    def __init__(self, console: "Console") -> None:
        super().__init__()
        self._console = console
        self.setFormatter(_Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        # soft_wrap: the formatter has wrapped the message between words; rich would break long paths, too.
        self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


class _LastingStderr:
    """stderr for rich, without errors when the terminal is gone, as after a logout, so that a training goes on."""

    def __init__(self) -> None:
        # Within another display, rich has replaced stderr by a file that writes to that display.
        self._file = getattr(sys.stderr, "rich_proxied_file", sys.stderr)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _plain_lines(description: str, total: float | int | None, start: float | int) -> Advance:
    begun = last = time.monotonic()

    def advance(done: float | int, note: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        rate = (done - start) / (now - begun)
        if total is None or rate <= 0:
            log.info("%s: %s", description, note or f"{done:,}")
        else:
            left = duration(max(0.0, total - done) / rate)
            share = 100 * done / total
            log.info("%s: %.0f %%, %s left%s", description, share, left, f", {note}" if note else "")

    return advance


@contextmanager
def transfers() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show concurrent downloads with speed and time left: a bar for each on a terminal, else one line every 10 seconds.

    Yields report(url, bytes done, total bytes or None), which any thread may call.
    """
    if not is_telling():
        yield lambda url, done, total: None
        return
    if not is_live():
        yield _transfer_lines()
        return
    from rich import progress as rich

    columns = (
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TextColumn("left:"),
        rich.TimeRemainingColumn(),
    )
    with _shown(rich.Progress, *columns) as bars:
        tasks: dict[str, TaskID] = {}

        def report(url: str, done: int, total: int | None) -> None:
            if url not in tasks:
                tasks[url] = bars.add_task(visible(url.rsplit("/", 1)[-1]), total=total)
                bars.update(tasks[url], completed=done)
            bars.update(tasks[url], completed=done, total=total, visible=done != total)

        yield report


def _transfer_lines() -> Callable[[str, int, int | None], None]:
    begun = last = time.monotonic()
    sizes: dict[str, tuple[int, int | None]] = {}
    present: dict[str, int] = {}
    lock = threading.Lock()

    def report(url: str, done: int, total: int | None) -> None:
        nonlocal last
        with lock:
            sizes[url] = (done, total)
            present.setdefault(url, done)  # a resumed download begins with the bytes it has
            now = time.monotonic()
            if now - last < SECONDS_BETWEEN_LINES:
                return
            last = now
            all_done = sum(done for done, _ in sizes.values())
            totals = [total for _, total in sizes.values()]
            rate = max(all_done - sum(present.values()), 0) / (now - begun)
            text = f"downloading: {amount(all_done)}B"
            if None not in totals:
                whole = sum(total or 0 for total in totals)
                text += f" of {amount(whole)}B"
                text += f", {duration((whole - all_done) / rate)} left" if rate > 0 else ""
            going_on = [url.rsplit("/", 1)[-1] for url, (done, total) in sizes.items() if done != total]
            log.info("%s, %sB/s: %s", text, amount(rate), ", ".join(going_on))

    return report


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, notes: Sequence[str] = ()
) -> None:
    """Print a table to stdout that fits the terminal: cells wrap between words only, and numbers are right-aligned.

    If it does not fit, each row is printed as a block of lines. Files and pipes have 160 columns.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    title, columns = visible(title), [visible(column) for column in columns]
    rows = [[visible(cell) for cell in row] for row in rows]
    width = shutil.get_terminal_size((160, 24)).columns
    for padding in (1, 0):  # blanks around each cell, if there is room
        room = width - (1 + 2 * padding) * len(columns) - 1
        widths = _column_widths(columns, rows, room)
        if sum(widths) <= room:
            break
    console = Console(width=width, color_system="auto" if sys.stdout.isatty() else None)
    table = Table(box=box.SIMPLE, padding=(0, padding), show_header=any(columns))
    for index, column in enumerate(columns):
        numeric = all(re.fullmatch(r"[-+]?[\d,.]*(e[-+]?\d+)?( %)?", row[index]) for row in rows)
        table.add_column(Text(column), justify="right" if rows and numeric else "left", width=widths[index])
    for row in rows:
        table.add_row(*map(Text, row))
    sys.stdout.flush()  # else rich does, and ends the process with exit code 1 if the reader of a pipe has ended
    # Captured, as rich fills lines with blanks up to the width of the table.
    with console.capture() as capture:
        console.print(Text(title, style="bold"))
        if rows and sum(widths) <= room:
            console.print(table)
    lines = capture.get().rstrip().split("\n")
    if sum(widths) > room:
        named = [zip(columns, row, strict=True) for row in rows]
        blocks = [["", *(f"  {column}: {cell}" if column else f"  {cell}" for column, cell in row)] for row in named]
        lines += [fill(line, width) for block in blocks for line in block]
    if notes:
        lines += ["", *("\n".join(fill(visible(line), width) for line in note.split("\n")) for note in notes)]
    print("\n".join(line.rstrip() for line in [*lines, ""]))


def _column_widths(columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the column widths of a table: those of the cells, reduced to ``room`` as far as no word has to break."""
    from rich.cells import cell_len

    cells = [[column, *(row[index] for row in rows)] for index, column in enumerate(columns)]
    widths = [max(map(cell_len, column)) for column in cells]
    longest = [max(cell_len(word) for cell in column for word in ["", *cell.split()]) for column in cells]
    while sum(widths) > room and widths != longest:
        # A column at the width of its longest word cannot shrink: its key begins with False, which is less than True.
        widest = max(range(len(widths)), key=lambda index: (widths[index] > longest[index], widths[index]))
        widths[widest] -= 1
    return widths


def print_heat_map(
    title: str, columns: Sequence[str], rows: Sequence[tuple[str, Sequence[float], str]], *, notes: Sequence[str] = ()
) -> None:
    """Print shares of 1 as percent to stdout; on a terminal, larger shares have stronger colours.

    Args:
        columns: short headings of the shares.
        rows: heading, shares, and a note after them.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True) if sys.stdout.isatty() else Console(soft_wrap=True, color_system=None)
    # Captured and flushed before, as rich ends the process with exit code 1 if the reader of a pipe has ended.
    sys.stdout.flush()
    console.begin_capture()
    width = max((cell_len(heading) for heading, _, _ in rows), default=0)
    console.print(Text(visible(title), style="bold"))
    console.print(Text(" " * width + "".join(f"{column:>4}" for column in columns)))
    for heading, shares, note in rows:
        line = Text(" " * (width - cell_len(heading)) + visible(heading))
        for share in shares:
            strength = round(255 * (1 - 0.75 * share))
            colour = f"black on rgb({strength},{strength},255)"
            line.append(f"{100 * share:4.0f}" if share >= 0.005 else "   .", style=colour)
        line.append(f"  {visible(note)}")
        console.print(line)
    for note in notes:
        console.print(Text(visible(note)))
    print(console.end_capture(), end="")
