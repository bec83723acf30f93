import errno
import io
import logging
import sys
from collections.abc import Callable

import pytest
from rich.cells import cell_len

from nmtkit import console
from nmtkit.console import amount, counted, duration, log

pytestmark = pytest.mark.usefixtures("restored_process")
ERASED, SHOWN, HIDDEN = "\x1b[2K", "\x1b[?25h", "\x1b[?25l"


class Terminal(io.StringIO):
    """What a terminal is sent."""

    def isatty(self) -> bool:
        return True


def new_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Stands in for stderr; not a fixture, since pytest puts its own stderr in place between fixtures and test."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    return terminal


@pytest.fixture
def at_second(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets a clock, by which lines of progress are ten seconds apart."""
    clock = {"now": 0.0}
    monkeypatch.setattr(console.time, "monotonic", lambda: clock["now"])
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 10.0)
    return lambda second: clock.update(now=second)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (amount(0), "0"), (amount(999), "999"), (amount(1000), "1 k"), (amount(45_249_000_000), "45.2 G"),
        (amount(999_600), "1 M"), (amount(1.234e25), "1.23e+04 Z"),
        (duration(8.4), "8s"), (duration(185), "3m05s"), (duration(8220), "2h17m"),
        (counted(0, "pair"), "0 pairs"), (counted(1, "pair"), "1 pair"), (counted(3126, "pair"), "3,126 pairs"),
        (counted(1, "process"), "1 process"), (counted(2, "process"), "2 processes"),
        (counted(2, "batch"), "2 batches"), (counted(2, "whole epoch"), "2 whole epochs"),
    ],
)  # fmt: skip
def test_numbers_are_said_as_people_say_them(shown: str, text: str) -> None:
    assert shown == text


def test_markup_in_a_table_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table("from out[1].de", ["run", "base[seed=1]", "a[/x]"], [["[b]", "1", "2"]])
    out = capsys.readouterr().out
    for told in ("from out[1].de", "base[seed=1]", "a[/x]", "[b]"):
        assert told in out


WIDE_TABLES = {
    "two columns of prose": (
        ["rule", "pairs", "what it is", "first lines"],
        [["duplicates", "1,234", "the same pair as an earlier one of the corpora, blanks aside", "5, 8, 13, 21, 34"],
         ["ratio", "9", "one side is much longer than the other side, in words, and both are long", "1"]],
    ),
    "more columns than there is room": ([f"column{n}" for n in range(12)], [[f"value{n}" for n in range(12)]]),
    "a word longer than the terminal": (["file", "MB", "sha256"], [["a/path/" + 60 * "x", "1.5", 64 * "0"]]),
    "wide characters": (["", ""], [["source", "漢字 " * 60], ["translation", "かな"]]),
}  # fmt: skip


@pytest.mark.parametrize("name", WIDE_TABLES)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_keeps_to_the_terminal_and_breaks_no_word(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns, rows = WIDE_TABLES[name]
    monkeypatch.setenv("COLUMNS", str(width))
    note = "a note that is longer than such a terminal is wide, and is broken between its words as well, nowhere else"
    console.print_table("A title", columns, rows, notes=[note])
    lines = capsys.readouterr().out.split("\n")
    words = {word for row in [columns, *rows, [note]] for cell in row for word in cell.split()}
    assert words <= {word.rstrip(":") for line in lines for word in line.split()}
    longest = max(map(cell_len, words))
    assert all(cell_len(line) <= max(width, longest + 4) for line in lines)


def test_a_table_is_followed_by_one_blank_line(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table("A title", ["a"], [["1"]])
    console.print_table("A title", ["a"], [["1"]], notes=["noted"])
    first, second = capsys.readouterr().out.split("A title")[1:]
    assert first.endswith("1\n\n")
    assert second.endswith("noted\n\n")
    assert not any("\n\n\n" in one for one in (first, second))


def test_columns_stand_closer_before_a_table_turns_into_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for width, line in (("26", "  aaaaa   bbbbb   ccccc"), ("20", " aaaaa bbbbb ccccc"), ("18", "  aaaaa: 1")):
        monkeypatch.setenv("COLUMNS", width)
        console.print_table("A title", ["aaaaa", "bbbbb", "ccccc"], [["1", "2", "three"]])
        assert line in capsys.readouterr().out.split("\n")


def test_a_table_without_rows_has_no_headings(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table("Found", ["rule", "pairs"], [], notes=["No rule concerns a pair."])
    assert capsys.readouterr().out == "Found\n\nNo rule concerns a pair.\n\n"


def test_messages_break_between_words_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    message = "3,126 pairs were left out of training because one side is much longer than the other"
    terminal = new_terminal(monkeypatch)
    console.set_up()
    log.info(message)
    assert all(len(line) <= 40 for line in terminal.getvalue().split("\n"))
    assert terminal.getvalue().split() == message.split()
    monkeypatch.setattr(sys, "stderr", elsewhere := io.StringIO())
    console.set_up()
    log.info(message)
    assert elsewhere.getvalue() == f"{message}\n"


def test_commands_in_messages_are_not_broken() -> None:
    quoted, last = "`nmtkit average 'runs/my run' --best 1`", "nmtkit train mine.toml --set training.max_steps=200"
    filled = console.fill(
        f"the average is worse than that checkpoint alone; {quoted} takes it\nto resume, run: {last}", 20
    )
    assert {line for line in filled.split("\n") if len(line) > 20} == {quoted, last}


def test_a_live_display_is_drawn_and_leaves_the_terminal_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = new_terminal(monkeypatch)
    console.set_up()
    with console.live("figures of the training"):
        drawn = terminal.getvalue()
        handlers = log.handlers
    after = terminal.getvalue()[len(drawn) :]
    assert "figures of the training" in drawn
    assert drawn.count(HIDDEN) == 1
    assert after.index(SHOWN) >= 0
    assert after.rstrip().endswith(ERASED), "the display is erased at the end"
    assert log.handlers != handlers


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, ValueError])
def test_however_a_live_display_ends_the_cursor_is_back_and_the_display_gone(
    monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    terminal = new_terminal(monkeypatch)
    console.set_up()
    handlers = log.handlers
    with pytest.raises(end), console.live("figures"):
        raise end
    assert terminal.getvalue().count(HIDDEN) == terminal.getvalue().count(SHOWN) == 1
    assert terminal.getvalue().rstrip().endswith(ERASED)
    assert log.handlers == handlers
    log.info("later")
    assert terminal.getvalue().endswith("later\n")


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = new_terminal(monkeypatch)
    console.set_up()

    def gone(text: str = "") -> int:
        raise OSError(errno.EIO, "Input/output error")

    with console.live("figures"), console.progress("reading", 10) as advance:
        monkeypatch.setattr(terminal, "write", gone)
        monkeypatch.setattr(terminal, "flush", gone)
        log.info("a message")
        advance(5)
    assert "a message" not in terminal.getvalue()


def test_messages_stand_above_a_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = new_terminal(monkeypatch)
    monkeypatch.setattr(console, "_REFRESHES_PER_SECOND", 1e-3)  # only messages have it drawn again
    console.set_up()
    with console.live("figures"):
        before = len(terminal.getvalue())
        log.info("[bold]a message[/bold]")
        log.warning("another")
        drawn = terminal.getvalue()[before:]
    assert "[bold]a message[/bold]" in drawn, "a message is no markup"
    assert drawn.index(ERASED) < drawn.index("a message") < drawn.index("figures") < drawn.index("warning: another")
    assert drawn.rindex("figures") > drawn.index("warning: another")


@pytest.mark.parametrize(
    ("is_terminal", "quiet", "rank", "term", "expected"),
    [
        (True, False, 0, "xterm", (True, True)),
        (True, False, 0, "dumb", (True, False)),
        (False, False, 0, "xterm", (True, False)),
        (True, True, 0, "xterm", (False, False)),
        (True, False, 1, "xterm", (False, False)),
    ],
)
def test_progress_is_told_by_the_first_process_and_live_on_terminals_only(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, quiet: bool, rank: int, term: str, expected: tuple[bool, bool]
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal() if is_terminal else io.StringIO())
    monkeypatch.setenv("TERM", term)
    console.set_up(quiet=quiet, rank=rank)
    assert (console.is_telling(), console.is_live()) == expected


def test_a_bar_of_progress_leaves_the_terminal_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = new_terminal(monkeypatch)
    console.set_up()
    with console.progress("translating [/x]", 10) as advance:
        advance(5, note="half")
        log.info("a message")
    assert "translating [/x]" in terminal.getvalue()
    assert "a message" in terminal.getvalue()
    assert terminal.getvalue().rstrip().endswith(ERASED)
    assert terminal.getvalue().count(SHOWN) == 1


def test_elsewhere_progress_is_a_line_every_ten_seconds(
    at_second: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    console.set_up()
    with console.progress("translating", 100) as advance:
        for second in range(1, 26):
            at_second(second)
            advance(2 * second)
    with console.progress("reading", None) as advance:
        for second in (30, 40):
            at_second(second)
            advance(1000 * second, "1,000 pairs" if second < 40 else "")
    told = capsys.readouterr().err.splitlines()
    assert told == ["translating: 20 %, 40s left", "translating: 40 %, 30s left", "reading: 40,000"]


def test_with_quiet_nothing_but_warnings_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = new_terminal(monkeypatch)
    console.set_up(quiet=True)
    with console.progress("translating", 10) as advance:
        advance(5)
        log.info("a message")
        log.log(logging.WARNING, "a warning")
    assert terminal.getvalue() == "warning: a warning\n"


def test_downloads_are_bars_on_a_terminal_and_leave_it_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = new_terminal(monkeypatch)
    console.set_up()
    with console.transfers() as report:
        report("https://example.org/x/one.tgz", 1_000_000, 4_000_000)
        report("https://example.org/x/two.tgz", 500, None)
        report("https://example.org/x/one.tgz", 2_000_000, 4_000_000)
    assert "one.tgz" in terminal.getvalue()
    assert "two.tgz" in terminal.getvalue()
    assert "2.0/4.0 MB" in terminal.getvalue()
    assert terminal.getvalue().rstrip().endswith(ERASED)


def test_elsewhere_downloads_are_a_line_with_their_sum_speed_and_time_left(
    at_second: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    console.set_up()
    with console.transfers() as report:
        for second, done in ((1, 1_000_000), (11, 6_000_000), (12, 7_000_000)):
            at_second(second)
            report("https://example.org/x/one.tgz", done, 12_000_000)
        at_second(22)
        report("https://example.org/x/two.tgz", 5_000_000, None)
    assert capsys.readouterr().err == (
        "downloading: 6 MB of 12 MB, 13s left, 455 kB/s: one.tgz\ndownloading: 12 MB, 273 kB/s: one.tgz, two.tgz\n"
    )


HOSTILE = "a\x1b[2Jb\x00\x7f\x9bc\u202ed\u2067e\u200ff\rg"
SHOWN_HOSTILE = "a␛[2Jb␀<U+007F><U+009B>c<U+202E>d<U+2067>e<U+200F>f␍g"


def test_what_would_command_a_terminal_becomes_visible_wherever_text_goes(capsys: pytest.CaptureFixture[str]) -> None:
    console.say(HOSTILE)
    console.print_table(HOSTILE, [HOSTILE], [[HOSTILE]], notes=[HOSTILE])
    console.print_heat_map(HOSTILE, ["1"], [(HOSTILE, [0.5], HOSTILE)], notes=[HOSTILE])
    out = capsys.readouterr().out
    assert out.count(SHOWN_HOSTILE) == 9
    console.set_up()
    log.warning("%s is damaged", HOSTILE)
    err = capsys.readouterr().err
    assert err == f"warning: {SHOWN_HOSTILE} is damaged\n"
    assert not set("\x1b\x00\x7f\x9b\u202e\u2067\u200f\r") & set(out + err)


def test_odd_but_harmless_text_stays_as_it_is() -> None:
    text = "שלום 👩‍👩‍👧 e\u0301 a\u2028b \ufeff\ufffd"
    assert console.visible(text) == text
