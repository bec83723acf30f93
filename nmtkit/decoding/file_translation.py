"""Lines translated window by window: in bounded memory, as they come from a pipe; from file to file so that several
processes share the work and a killed translation goes on.

    .OUTPUT.lock                             held by the first process: nobody else translates to this output
    OUTPUT.parts/manifest.json               what is translated by what and how: with anything else it begins anew;
                                             and how many lines a window has
    OUTPUT.parts/00000000-MADE_OF.output     what was written for the first window of lines, whole or not there
    OUTPUT.parts/00000000-MADE_OF.status     and its lines for --status

MADE_OF is a sum over the manifest, so that windows of different translations never come together, even where a file
system has no locks. Window n is of process n modulo their number. When all are there, the first process joins them and
removes the folder.
"""

import bisect
import dataclasses
import functools
import hashlib
import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nmtkit.console import counted, listed, log
from nmtkit.decoding.formats import OutputFormat, oddities, written
from nmtkit.decoding.minimum_risk import by_expected_utility
from nmtkit.errors import DataError
from nmtkit.evaluation.metrics import sentence_utility
from nmtkit.files import (
    TEMPORARY_MARK,
    json_line,
    read_json,
    remove_folder,
    remove_leftovers,
    write_atomically,
    write_json,
)
from nmtkit.locks import locked

if TYPE_CHECKING:  # not when it runs: an engine without torch goes window by window, too
    from nmtkit.decoding.translator import Batching, TranslationRequest, Translator

WINDOW_LINES = 2000
"""Most lines of a window."""
GATHERING_SECONDS = 0.02
"""How long the first line of a window waits for others, so that what a pipe brings quickly is translated together."""
POLL_SECONDS = 0.2
"""After which it is looked again whether other processes have written their windows."""
_MANIFEST = "manifest.json"
_KIND = "parts of a translation by nmtkit"


@dataclass(frozen=True)
class Window:
    """Some lines in a row.

    Attributes:
        number: from 0.
        first_line: the number of the first line, from 1.
    """

    number: int
    first_line: int
    lines: list[str]


@dataclass(frozen=True)
class Written:
    """What came of a window: lines of output and of status, each without its line end."""

    output: list[str]
    status: list[str]


def windows(lines: Iterable[str], size: int) -> Iterator[Window]:
    """Cuts lines into windows of that many."""
    window: list[str] = []
    number = 0
    for line in lines:
        window.append(line)
        if len(window) == size:
            yield Window(number, number * size + 1, window)
            window = []
            number += 1
    if window:
        yield Window(number, number * size + 1, window)


def as_they_come(lines: Iterable[str], size: int) -> Iterator[Window]:
    """Windows of the lines that are there, at most that many and never none: nobody waits long for a full one."""
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=2 * size)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:  # it is raised where the lines are taken
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    number, first_line = 0, 1
    ended: BaseException | bool | None = False
    while ended is False:
        window: list[str] = []
        until = math.inf
        while len(window) < size:
            try:
                item = waiting.get(timeout=max(0.0, until - time.monotonic()) if window else None)
            except queue.Empty:
                break
            if not window:
                until = time.monotonic() + GATHERING_SECONDS
            if not isinstance(item, str):
                ended = item
                break
            window.append(item)
        if window:
            yield Window(number, first_line, window)
        number, first_line = number + 1, first_line + len(window)
    if isinstance(ended, BaseException):
        raise ended


@dataclass(frozen=True)
class Wishes:
    """A file that says something of the translation of each line of the whole text.

    Attributes:
        option: with which it was given.
    """

    option: str
    path: Path
    lines: list[str]


@dataclass(frozen=True)
class LineWork:
    """What is done with each line.

    Attributes:
        prefixes, required: None, or what the translation of each line begins with, and the phrases it holds, between
            tabs.
        minimum_risk: None, or the metric by which of the samples asked for those most like all others are chosen.
        kept: how many of these.
    """

    translator: "Translator"
    asked: "TranslationRequest"
    batching: "Batching"
    output: OutputFormat
    prefixes: Wishes | None = None
    required: Wishes | None = None
    minimum_risk: str | None = None
    kept: int = 1

    def check(self) -> None:
        """Raises DataError where what is asked for is not possible, whatever the text."""
        if self.prefixes and self.required and len(self.prefixes.lines) != len(self.required.lines):
            _refuse(self.required, f"that of --prefix {len(self.prefixes.lines)}")
        asked = dataclasses.replace(
            self.asked,
            prefixes=() if self.prefixes is None else self.prefixes.lines,
            required=() if self.required is None else [_phrases(line) for line in self.required.lines],
        )
        files = ("" if wishes is None else str(wishes.path) for wishes in (self.prefixes, self.required))
        self.translator.check(asked, *files)

    def check_lines(self, num_lines: int) -> None:
        """Raises DataError where prefixes or phrases are not one line for each line of the text."""
        for wishes in (self.prefixes, self.required):
            if wishes is not None and len(wishes.lines) != num_lines:
                _refuse(wishes, f"the text {num_lines}")

    def description(self) -> dict[str, Any]:
        """All that decides what is written for a text, as JSON."""
        asked = dataclasses.asdict(self.asked)
        asked |= {"prefixes": _sum_of(self.prefixes), "required": _sum_of(self.required)}
        return {
            "decoding": self.translator.decoding.model_dump(mode="json"),
            "device": self.translator.device,
            "precision": self.translator.precision,
            "training_lengths": self.translator.lengths and self.translator.lengths.model_dump(),
            "asked": json.loads(json.dumps(asked)),
            "output": self.output,
            "minimum_risk": self.minimum_risk,
            "kept": self.kept,
        }

    def translate(self, window: Window, invalid_lines: Sequence[int], advance: Callable[[float], None]) -> Written:
        """What is written for the lines of a window.

        Args:
            invalid_lines: numbers of lines whose invalid UTF-8 was replaced, in order.
            advance: told on the way which share of the window is done.

        Raises:
            DataError: what is asked for is not possible; prefixes or phrases end before the text.
        """
        lines = slice(window.first_line - 1, window.first_line - 1 + len(window.lines))
        for wishes in (self.prefixes, self.required):
            if wishes is not None and len(wishes.lines) < lines.stop:
                _refuse(wishes, "the text more")  # a pipe: how many lines will come is not known before
        asked = dataclasses.replace(
            self.asked,
            prefixes=() if self.prefixes is None else self.prefixes.lines[lines],
            required=() if self.required is None else [_phrases(line) for line in self.required.lines[lines]],
            first_line=window.first_line,
        )
        # Of minimum risk two steps, to sample and to compare; which takes longer is not known before.
        steps = 1 if self.minimum_risk is None else 2
        found = self.translator.translations(
            window.lines, asked, batching=self.batching, advance=lambda share: advance(share / steps)
        )
        if self.minimum_risk is not None:
            utility = sentence_utility(self.minimum_risk, self.translator.tokenizer.settings["target_language"])
            for place, of_line in enumerate(found, start=1):
                order = by_expected_utility([one.text for one in of_line], utility)[: self.kept]
                found[place - 1] = [of_line[number] for number in order]
                advance(0.5 + 0.5 * place / len(found))
        output: list[str] = []
        status: list[str] = []
        invalid = set(invalid_lines[bisect.bisect_left(invalid_lines, window.first_line) :])
        for number, (source, of_line) in enumerate(zip(window.lines, found, strict=True), window.first_line):
            output += written(self.output, number, source, of_line)
            odd = oddities(source, of_line[0], invalid_utf8=number in invalid)
            status.append(json_line({"line": number, "status": odd}).rstrip("\n"))
        unmet = [
            number
            for number, (line, of_line) in enumerate(zip(window.lines, found, strict=True), window.first_line)
            if of_line[0].is_unmet and self.translator.task.words(line)
        ]
        if unmet:
            log.warning("prefix or required phrases left out, as they contradict other constraints: %s", listed(unmet))
        return Written(output, status)


def _sum_of(wishes: Wishes | None) -> str | None:
    """sha256 of the lines, in the place of the lines themselves, which may be many."""
    return (
        None if wishes is None else hashlib.sha256("\n".join(wishes.lines).encode("utf-8", "surrogatepass")).hexdigest()
    )


def _refuse(wishes: Wishes, other: str) -> NoReturn:
    there = counted(len(wishes.lines), "line")
    raise DataError(f"{wishes.path} ({wishes.option}) has {there} and {other}; the numbers must be equal")


def _phrases(line: str) -> list[str]:
    return [phrase for phrase in line.split("\t") if phrase.strip()]


def equal_windows(num_lines: int, num_processes: int) -> int:
    """Lines of a window, at most ``WINDOW_LINES``, so that no process has more than its share."""
    rounds = max(1, math.ceil(num_lines / (WINDOW_LINES * num_processes)))
    return max(1, math.ceil(num_lines / (rounds * num_processes)))


class Parts:
    """The folder of windows that are translated already.

    Attributes:
        folder: where they are.
        window_lines: lines of a window; where some windows are there already, those that they have.
    """

    def __init__(self, output: Path, made_of: dict[str, Any], window_lines: int) -> None:
        """Names it; nothing is read or written yet.

        Args:
            made_of: what decides the output, as JSON; but batches depend on windows, and among candidates as good as
                equal the choice may depend on the batch.
            window_lines: lines of a window.
        """
        self.folder = output.parent / f"{output.name}.parts"
        self.window_lines = window_lines
        self._output = output
        self._made_of = made_of
        self._told = json.dumps(made_of, sort_keys=True)

    def locked(self) -> AbstractContextManager[None]:
        """Keeps the output for the first process, and those that it works with, while a block runs.

        Raises:
            NmtkitError: another translation is writing it.
            DataError: its folder cannot be made.
        """
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise DataError(f"{self._output.parent}: Not a directory; take another --output") from None
        return locked(self._output.with_name(f".{self._output.name}.lock"), self._output, "translate", "--output")

    def begin(self) -> int:
        """Makes the folder ready, by one process before all others; returns the windows that are there already.

        Windows of another translation are removed.

        Raises:
            DataError: something that is not ours is in the way; it is left as it is.
        """
        self._check_is_ours()
        wanted = self.window_lines
        if self.folder.exists() and not self._go_on():
            if any(TEMPORARY_MARK not in entry.name for entry in self.folder.iterdir()):
                log.info("%s belongs to a different translation%s; starting over", self.folder, self._what_differs())
            remove_folder(self.folder)
        if not self._there():
            self.window_lines = wanted
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder, is_ours=True)
        write_json(
            self.folder / _MANIFEST, {"kind": _KIND, "made_of": self._made_of, "window_lines": self.window_lines}
        )
        return self._there()

    def _there(self) -> int:
        """Windows that are there."""
        return sum(1 for _ in self.folder.glob(f"*-{self._mark}.output"))

    def check(self) -> None:
        """For the other processes, once the folder is ready: raises DataError where it is for something else."""
        if not self._go_on():
            raise DataError(
                f"{self.folder}: the processes found different models, text or devices; do not change them while "
                "they are in use, and run the same command again"
            )

    def _check_is_ours(self) -> None:
        """Raises DataError where the folder's name is that of anything else: it would be removed."""
        if not (self.folder.exists() or self.folder.is_symlink()):
            return
        if not self.folder.is_dir() or self.folder.is_symlink():
            other: str | None = "it is not a folder"
        else:
            names = [entry.name for entry in self.folder.iterdir()]
            other = next((f"{name} in it" for name in names if not _is_own_name(name)), None)
            if other is None and _MANIFEST in names and self._found() is None:
                other = f"{_MANIFEST} in it"
        if other is not None:
            raise DataError(
                f"{self.folder}: needed for finished parts, but used for something else ({other}); rename it, or "
                "take another --output"
            )

    def _found(self) -> dict[str, Any] | None:
        """What is told of the windows that are there; None where nothing is."""
        try:
            manifest = read_json(self.folder / _MANIFEST)
        except DataError:
            return None
        return manifest if isinstance(manifest, dict) and manifest.get("kind") == _KIND else None

    def _what_differs(self) -> str:
        made_of = (self._found() or {}).get("made_of")
        if not isinstance(made_of, dict):
            return ""
        keys = [key for key, value in self._made_of.items() if made_of.get(key) != value]
        return f" ({', '.join(keys)})" if keys else ""

    def _go_on(self) -> bool:
        """Whether the windows that are there are of this translation; if so, the others will have as many lines."""
        found = self._found() or {}
        window_lines = found.get("window_lines")
        if found.get("made_of") != self._made_of or not isinstance(window_lines, int) or window_lines < 1:
            return False
        self.window_lines = window_lines
        return True

    @property
    def _mark(self) -> str:
        return hashlib.sha256(f"[{self._told}, {self.window_lines}]".encode()).hexdigest()[:12]

    def has(self, number: int) -> bool:
        """Whether that window is there."""
        return self._file(number, "output").is_file()

    def wait_for(self, count: int) -> None:
        """Returns when all windows are there; the heartbeat ends this process where one that owes some is gone."""
        for number in range(count):
            while not self.has(number):
                time.sleep(POLL_SECONDS)

    def write(self, number: int, written: Written) -> None:
        """Puts a window there; of its two files the output comes last."""
        for kind, lines in (("status", written.status), ("output", written.output)):
            with write_atomically(self._file(number, kind)) as file:
                file.writelines(f"{line}\n" for line in lines)

    def join(self, count: int, outputs: Sequence[tuple[str, Path]]) -> None:
        """Writes all windows in a row, then removes the folder.

        Args:
            outputs: kind and file of what is wanted: "output", "status".
        """
        for kind, path in outputs:
            with write_atomically(path) as file:
                for number in range(count):
                    file.write(self._file(number, kind).read_bytes().decode("utf-8"))
        remove_folder(self.folder)

    def _file(self, number: int, kind: str) -> Path:
        return self.folder / f"{number:08d}-{self._mark}.{kind}"


def _is_own_name(name: str) -> bool:
    is_window = re.fullmatch(r"\d{8}-[0-9a-f]{12}\.(output|status)", name) is not None
    return is_window or name == _MANIFEST or TEMPORARY_MARK in name


def translate_windows(
    lines: Iterable[str],
    translate: Callable[[Window, Callable[[float], None]], Written],
    parts: Parts,
    *,
    rank: int = 0,
    num_processes: int = 1,
    advance: Callable[[int], None] = lambda done: None,
) -> int:
    """Translates the windows of one process that are not there yet; returns how many windows there are in all.

    Args:
        translate: translates a window, and may tell on the way which share of it is done.
        advance: told the lines that are done, of this process' windows and of those passed over.
    """
    count = done = 0
    for window in windows(lines, parts.window_lines):
        count += 1
        if window.number % num_processes == rank and not parts.has(window.number):
            parts.write(window.number, translate(window, functools.partial(_tell_share, advance, done, window)))
        done += len(window.lines)
        advance(done)
    return count


def _tell_share(advance: Callable[[int], None], done_before: int, window: Window, share: float) -> None:
    advance(done_before + int(share * len(window.lines)))
