"""Text translated window by window: in bounded memory, as lines come from a pipe; from file to file so that several
processes share the work and a killed translation is resumed.

    .OUTPUT.lock                             held by the first process: no other command translates to this output
    OUTPUT.parts/manifest.json               models, text and options (with any others it starts over), window size
    OUTPUT.parts/00000000-MADE_OF.output     the output for the first window of lines, written atomically
    OUTPUT.parts/00000000-MADE_OF.status     its lines for --status

MADE_OF is a sum over the manifest, so that windows of different translations never mix, even where a file system has no
locks. Window n belongs to process n modulo their number. At the end the first process joins all and removes the folder.
Windows rather than one growing file, as the processes write side by side, and a resumed run may have more or fewer.
"""

import bisect
import dataclasses
import hashlib
import itertools
import json
import math
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmtkit import console
from nmtkit.console import counted, log
from nmtkit.decoding.engine import Batching, Engine, TranslationRequest
from nmtkit.decoding.formats import OutputFormat, format_output, line_status
from nmtkit.errors import DataError
from nmtkit.evaluation.metrics import sentence_utility
from nmtkit.files import (
    TEMPORARY_MARK,
    LineReader,
    json_line,
    read_json,
    remove_folder,
    remove_leftovers,
    sha256_of,
    write_atomically,
    write_json,
)
from nmtkit.locks import locked

if TYPE_CHECKING:  # imports torch, which the engine of CTranslate2 does without
    from nmtkit.distributed.workers import Workers

WINDOW_LINES = 2000
"""Maximum lines per window."""
GATHERING_SECONDS = 0.02
"""How long the first line of a window waits for others, so that what a pipe brings quickly is translated together."""
POLL_SECONDS = 0.2
"""Interval at which the windows of other processes are looked for."""
_MANIFEST = "manifest.json"
_KIND = "parts of a translation by nmtkit"


@dataclass(frozen=True)
class Window:
    """Consecutive lines.

    Attributes:
        number: from 0.
        first_line: number of the first line, from 1.
    """

    number: int
    first_line: int
    lines: list[str]


@dataclass(frozen=True)
class Written:
    """The result for a window: lines of output and of status, without line ends."""

    output: list[str]
    status: list[str]


def windows(lines: Iterable[str], size: int) -> Iterator[Window]:
    """Yield windows of ``size`` lines."""
    rest = iter(lines)
    for number in itertools.count():
        window = list(itertools.islice(rest, size))
        if not window:
            return
        yield Window(number, number * size + 1, window)


def as_they_come(lines: Iterable[str], size: int) -> Iterator[Window]:
    """Yield non-empty windows of up to ``size`` lines as input arrives."""
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=2 * size)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:  # raised again where the lines are used
            waiting.put(error)

    threading.Thread(target=read, daemon=True).start()
    number, first_line = 0, 1
    item: str | BaseException | None = ""
    while isinstance(item, str):
        window: list[str] = []
        until = math.inf
        while len(window) < size:
            try:
                item = waiting.get(timeout=max(0.0, until - time.monotonic()) if window else None)
            except queue.Empty:
                break
            if not isinstance(item, str):
                break
            if not window:
                until = time.monotonic() + GATHERING_SECONDS
            window.append(item)
        if window:
            yield Window(number, first_line, window)
        number, first_line = number + 1, first_line + len(window)
    if item is not None:
        raise item


@dataclass(frozen=True)
class LineConstraints:
    """A file with a constraint on the translation of each line of the whole text; ``option`` named it."""

    option: str
    path: Path
    lines: list[str]

    def unequal(self, other: str) -> DataError:
        """Return the error for another number of lines than ``other`` states."""
        lines = counted(len(self.lines), "line")
        return DataError(f"{self.path} ({self.option}) has {lines} and {other}; the numbers must be equal")


@dataclass(frozen=True)
class TranslationJob:
    """How the lines of a text are translated, and what is written for each.

    Attributes:
        prefixes: the beginning of each line's translation.
        required: the phrases that the translation of each line holds, separated by tabs.
        minimum_risk: metric by which the samples most similar to all others are chosen; None: all are kept.
        kept: number of samples chosen.
    """

    engine: Engine
    request: TranslationRequest = field(default_factory=TranslationRequest)
    batching: Batching = field(default_factory=Batching)
    output: OutputFormat = "text"
    prefixes: LineConstraints | None = None
    required: LineConstraints | None = None
    minimum_risk: str | None = None
    kept: int = 1

    def check(self) -> None:
        """Raise DataError where the request is not possible, whatever the text."""
        if self.prefixes and self.required and len(self.prefixes.lines) != len(self.required.lines):
            raise self.required.unequal(f"that of --prefix {len(self.prefixes.lines)}")
        files = ("" if constraints is None else str(constraints.path) for constraints in (self.prefixes, self.required))
        self.engine.check(self._request(1, None), *files)

    def check_lines(self, num_lines: int) -> None:
        """Raise DataError where there is not one prefix or list of phrases for each line of the text."""
        for constraints in (self.prefixes, self.required):
            if constraints is not None and len(constraints.lines) != num_lines:
                raise constraints.unequal(f"the text {num_lines}")

    def _request(self, first_line: int, last_line: int | None) -> TranslationRequest:
        prefixes, required = (
            () if constraints is None else tuple(constraints.lines[first_line - 1 : last_line])
            for constraints in (self.prefixes, self.required)
        )
        phrases = tuple([phrase for phrase in line.split("\t") if phrase.strip()] for line in required)
        return dataclasses.replace(self.request, prefixes=prefixes, required=phrases, first_line=first_line)

    def description(self) -> dict[str, Any]:
        """Return everything but weights and text that decides what is written, as JSON."""
        request = dataclasses.asdict(self.request)
        for key, constraints in (("prefixes", self.prefixes), ("required", self.required)):
            text = None if constraints is None else "\n".join(constraints.lines).encode("utf-8", "surrogatepass")
            request[key] = text if text is None else hashlib.sha256(text).hexdigest()  # the lines may be many
        return {
            **self.engine.description(),
            "asked": json.loads(json.dumps(request)),
            "output": self.output,
            "minimum_risk": self.minimum_risk,
            "kept": self.kept,
        }

    def translate(self, window: Window, invalid_lines: Sequence[int], advance: Callable[[float], None]) -> Written:
        """Translate a window.

        Args:
            invalid_lines: numbers of lines whose invalid UTF-8 was replaced, in order.
            advance: called on the way with the share of the window that is done.

        Raises:
            DataError: prefixes or phrases end before the text.
        """
        last_line = window.first_line - 1 + len(window.lines)
        for constraints in (self.prefixes, self.required):
            if constraints is not None and len(constraints.lines) < last_line:
                raise constraints.unequal("the text more")  # a pipe: the number of lines is not known before
        # Minimum risk has two steps, to sample and to compare; which takes longer is not known before.
        steps = 1 if self.minimum_risk is None else 2
        found = self.engine.translations(
            window.lines,
            self._request(window.first_line, last_line),
            batching=self.batching,
            advance=lambda share: advance(share / steps),
        )
        if self.minimum_risk is not None:
            from nmtkit.decoding.sampling import by_expected_utility  # imports torch

            utility = sentence_utility(self.minimum_risk, self.engine.tokenizer.settings["target_language"])
            for index, samples in enumerate(found):
                order = by_expected_utility([sample.text for sample in samples], utility)[: self.kept]
                found[index] = [samples[number] for number in order]
                advance(0.5 + 0.5 * (index + 1) / len(found))
        written = Written([], [])
        invalid = set(invalid_lines[bisect.bisect_left(invalid_lines, window.first_line) :])
        unsatisfied = []
        for number, (source, translations) in enumerate(zip(window.lines, found, strict=True), window.first_line):
            written.output.extend(format_output(self.output, number, source, translations))
            status = line_status(source, translations[0], invalid_utf8=number in invalid)
            written.status.append(json_line({"line": number, "status": status}).rstrip("\n"))
            if translations[0].is_unsatisfied and self.engine.task.words(source):
                unsatisfied.append(number)
        if unsatisfied:
            log.warning(
                "prefix or required phrases left out, as they contradict other constraints: %s",
                console.listed(unsatisfied),
            )
        return written


def equal_windows(num_lines: int, num_processes: int) -> int:
    """Return the lines per window, at most ``WINDOW_LINES``, with which all processes have equal shares."""
    rounds = max(1, math.ceil(num_lines / (WINDOW_LINES * num_processes)))
    return max(1, math.ceil(num_lines / (rounds * num_processes)))


class Parts:
    """The folder of finished windows.

    Attributes:
        window_lines: lines per window; where windows exist already, those that they have.
    """

    def __init__(self, output: Path, made_of: dict[str, Any], window_lines: int) -> None:
        """Name the folder; nothing is read or written yet. ``made_of``: what decides the output, as JSON."""
        self.folder = output.parent / f"{output.name}.parts"
        self.window_lines = window_lines
        self._output = output
        self._made_of = made_of

    def locked(self) -> AbstractContextManager[None]:
        """Reserve the output for this process, and those that it works with, while a block runs.

        Raises NmtkitError where another translation is writing it, DataError where its folder cannot be made.
        """
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise DataError(f"{self._output.parent}: Not a directory; take another --output") from None
        return locked(self._output.with_name(f".{self._output.name}.lock"), self._output, "translate", "--output")

    def begin(self) -> int:
        """Prepare the folder, by one process before all others; return the number of finished windows.

        Windows of another translation are removed; DataError is raised for anything else, which is left as it is.
        """
        self._check_own_folder()
        wanted = self.window_lines
        if self.folder.exists() and not self._resume():
            if any(TEMPORARY_MARK not in entry.name for entry in self.folder.iterdir()):
                made_of = (self._manifest() or {}).get("made_of")
                old = made_of if isinstance(made_of, dict) else self._made_of
                keys = ", ".join(key for key, value in self._made_of.items() if old.get(key) != value)
                differs = f" ({keys})" if keys else ""
                log.info("%s belongs to a different translation%s; starting over", self.folder, differs)
            remove_folder(self.folder)
        if not self._count():
            self.window_lines = wanted
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder, is_ours=True)
        manifest = {"kind": _KIND, "made_of": self._made_of, "window_lines": self.window_lines}
        write_json(self.folder / _MANIFEST, manifest)
        return self._count()

    def check(self) -> None:
        """Raise DataError where the folder that another process has prepared is for a different translation."""
        if not self._resume():
            raise DataError(
                f"{self.folder}: the processes found different models, text or devices; do not change them while "
                "they are in use, and run the same command again"
            )

    def _count(self) -> int:
        return sum(1 for _ in self.folder.glob(f"*-{self._mark}.output"))

    def _check_own_folder(self) -> None:
        """Raise DataError where the folder's name is that of anything else, which would be removed."""
        other = None
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            other = "it is not a folder"
        elif self.folder.exists():
            own = re.compile(rf"\d{{8}}-[0-9a-f]{{12}}\.(output|status)|{re.escape(_MANIFEST)}")
            names = [entry.name for entry in self.folder.iterdir()]
            other = next((f"{x} in it" for x in names if not own.fullmatch(x) and TEMPORARY_MARK not in x), None)
            if other is None and _MANIFEST in names and self._manifest() is None:
                other = f"{_MANIFEST} in it"
        if other is not None:
            raise DataError(
                f"{self.folder}: needed for finished parts, but used for something else ({other}); rename it, or "
                "take another --output"
            )

    def _manifest(self) -> dict[str, Any] | None:
        try:
            manifest = read_json(self.folder / _MANIFEST)
        except DataError:
            return None
        return manifest if isinstance(manifest, dict) and manifest.get("kind") == _KIND else None

    def _resume(self) -> bool:
        """Return whether the finished windows belong to this translation; if so, take over their window size."""
        manifest = self._manifest() or {}
        window_lines = manifest.get("window_lines")
        if manifest.get("made_of") != self._made_of or not isinstance(window_lines, int) or window_lines < 1:
            return False
        self.window_lines = window_lines
        return True

    @property
    def _mark(self) -> str:
        made_of = json.dumps(self._made_of, sort_keys=True)
        return hashlib.sha256(f"[{made_of}, {self.window_lines}]".encode()).hexdigest()[:12]

    def _file(self, number: int, kind: str) -> Path:
        return self.folder / f"{number:08d}-{self._mark}.{kind}"

    def has(self, number: int) -> bool:
        """Return whether a window is finished."""
        return self._file(number, "output").is_file()

    def wait_for(self, count: int) -> None:
        """Wait for all windows; the heartbeat ends this process where one that owes some is gone."""
        for number in range(count):
            while not self.has(number):
                time.sleep(POLL_SECONDS)

    def write(self, number: int, written: Written) -> None:
        """Write a window; of its two files the output comes last."""
        for kind, lines in (("status", written.status), ("output", written.output)):
            with write_atomically(self._file(number, kind)) as file:
                file.writelines(f"{line}\n" for line in lines)

    def join(self, count: int, outputs: Sequence[tuple[str, Path]]) -> None:
        """Write all windows in order to each output, a kind ("output", "status") and its file; remove the folder."""
        for kind, path in outputs:
            with write_atomically(path) as file:
                for number in range(count):
                    file.write(self._file(number, kind).read_bytes().decode("utf-8"))
        remove_folder(self.folder)


def translate_windows(
    lines: Iterable[str],
    translate: Callable[[Window, Callable[[float], None]], Written],
    parts: Parts,
    *,
    rank: int = 0,
    num_processes: int = 1,
    advance: Callable[[int], None] = lambda done: None,
) -> int:
    """Translate the unfinished windows of one process; return the number of windows of all.

    Args:
        translate: translates a window, and may call its argument with the share of it that is done.
        advance: called with the lines that are done, of this process' windows and of those passed over.
    """

    def advance_within(share: float) -> None:
        advance(done + int(share * len(window.lines)))

    count = done = 0
    for window in windows(lines, parts.window_lines):
        count += 1
        if window.number % num_processes == rank and not parts.has(window.number):
            parts.write(window.number, translate(window, advance_within))
        done += len(window.lines)
        advance(done)
    return count


def translate_file(
    job: TranslationJob,
    source: Path,
    output: Path,
    *,
    status: Path | None = None,
    strict: bool = False,
    window_lines: int | None = None,
    workers: "Workers | None" = None,
    title: str = "translating",
) -> tuple[LineReader, str]:
    """Translate a file, together with other processes if there are any; windows finished before are kept.

    Args:
        status: file for the status of each line.
        strict: raise at invalid UTF-8 instead of replacing it.
        window_lines: by default see `equal_windows`.

    Returns:
        The reader of the source, which knows its invalid lines; the sha256 sum of the source as it was read.
    """
    job.check()
    total = sum(1 for _ in LineReader(source, errors="strict" if strict else "replace"))
    job.check_lines(total)
    reader = LineReader(source, errors="replace")
    rank, num_processes = (workers.rank, workers.num_processes) if workers else (0, 1)
    source_sha256 = sha256_of(source)
    made_of = {"models": list(job.engine.weights_sha256), "input": source_sha256, **job.description()}
    parts = Parts(output, made_of, window_lines or equal_windows(total, num_processes))
    with ExitStack() as stack:
        finished = 0
        if rank == 0:
            stack.enter_context(parts.locked())
            finished = min(parts.begin() * parts.window_lines, total)
        if finished:
            log.info("resuming after %s", counted(finished, "line"))
        if workers:
            workers.wait()
            parts.check()
        with console.progress(title, total, start=finished) as advance:
            count = translate_windows(
                reader,
                lambda window, tell: job.translate(window, reader.invalid_lines, tell),
                parts,
                rank=rank,
                num_processes=num_processes,
                advance=lambda done: advance(done, note=counted(done, "line")),
            )
            parts.wait_for(count)  # however long that takes, while an exchange has a time limit
        if workers:
            workers.wait()
        if rank == 0:
            parts.join(count, [("output", output), *([("status", status)] if status is not None else [])])
    return reader, source_sha256
