"""Translation of text in windows of lines, in bounded memory: of a pipe as lines arrive, or of a file, where several
processes share the work and an interrupted translation can be resumed.

Process r of n translates the windows r, r + n, r + 2n, ...; at the end the first process joins all windows and removes
their folder (parts.py).
"""

import bisect
import dataclasses
import hashlib
import itertools
import json
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmtkit import console
from nmtkit.console import counted, log
from nmtkit.corpora.corpus import local_lines
from nmtkit.decoding.engine import Engine
from nmtkit.decoding.formats import OutputFormat, format_output, line_status
from nmtkit.decoding.parts import Begun, Parts, Written
from nmtkit.decoding.request import Batching, Translation, TranslationRequest
from nmtkit.errors import DataError
from nmtkit.evaluation.metrics import sentence_utility
from nmtkit.json_toml import json_line
from nmtkit.lines import LineReader, Snapshot

if TYPE_CHECKING:  # imports torch, which the CTranslate2 engine does not need
    from nmtkit.distributed.workers import Workers

WINDOW_LINES = 2000
"""Maximum lines per window."""
GATHERING_SECONDS = 0.02
"""Seconds that the first line of a window waits for more, so that lines in quick succession share a window."""
_DOUBTS = {
    "cut": "cut to the tokens that the model reads",
    "unknown": "at least half of the tokens are unknown to the model",
    "length_limit": (
        "the translation was ended by the maximum length (--max-length, --max-length-ratio, --max-length-offset)"
    ),
    "short": "the translation is so short that text is probably missing",
}
"""Meaning of each status with which text of a line may be lost."""
SAVE_SECONDS = 30.0
"""Interval at which translated sentences of an unfinished window are saved, so that fast translation saves none."""


@dataclass(frozen=True)
class Window:
    """Consecutive lines.

    Attributes:
        number: index of the window, from 0.
        first_line: number of the first line, from 1.
        before: the last lines before these, for models with context.
    """

    number: int
    first_line: int
    lines: list[str]
    before: list[str] = field(default_factory=list)


def windows(lines: Iterable[str], size: int, context: int = 0) -> Iterator[Window]:
    """Yield windows of ``size`` lines, and ``context`` lines before each; the last one may be shorter."""
    rest = iter(lines)
    return _numbered(iter(lambda: list(itertools.islice(rest, size)), []), context)


def _numbered(runs: Iterable[list[str]], context: int) -> Iterator[Window]:
    """Yield successive runs of lines as windows, with ``context`` lines before each."""
    first_line, before = 1, deque[str](maxlen=context)
    for number, lines in enumerate(runs):
        yield Window(number, first_line, lines, list(before))
        first_line += len(lines)
        before.extend(lines)


def as_they_come(lines: Iterable[str], size: int, context: int = 0) -> Iterator[Window]:
    """Yield non-empty windows of up to ``size`` lines as input arrives, and ``context`` lines before each."""
    return _numbered(_arriving(lines, size), context)


def _arriving(lines: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield non-empty lists of up to ``size`` lines as they arrive; raise what the reader of the lines raises."""
    # Bounded, so that input that arrives faster than it is translated is not all held in memory.
    waiting: queue.Queue[str | BaseException | None] = queue.Queue(maxsize=2 * size)

    def read() -> None:
        try:
            for line in lines:
                waiting.put(line)
            waiting.put(None)
        except BaseException as error:  # raised again by the consumer of the lines
            waiting.put(error)

    # A daemon thread, as one that waits for input cannot be stopped when the command ends.
    threading.Thread(target=read, daemon=True).start()
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
            yield window
    if item is not None:
        raise item


@dataclass(frozen=True)
class LineConstraints:
    """A file with a constraint per line of the text, given by ``option``."""

    option: str
    path: Path
    lines: list[str]

    def unequal(self, other: str) -> DataError:
        """Return the error about different numbers of lines; ``other`` states the other number."""
        lines = counted(len(self.lines), "line")
        return DataError(f"{self.path} ({self.option}) has {lines} and {other}; the numbers must be equal")


@dataclass(frozen=True)
class TranslationJob:
    """Engine, request and output format of the translation of a text.

    Attributes:
        prefixes: beginning of the translation of each line.
        required: phrases that the translation of each line must contain, separated by tabs.
        minimum_risk: metric by which the samples most similar to all others are chosen; None: keep all samples.
        kept: number of samples to choose.
        place: beginning of each warning, such as "test2016: ".
        doubtful: numbers of the lines reported so far where text may be lost, by status or `Task.source_doubt`.
        unwritten: characters of missing spans, reported so far, that are not in the vocabulary.
    """

    engine: Engine
    request: TranslationRequest = field(default_factory=TranslationRequest)
    batching: Batching = field(default_factory=Batching)
    output: OutputFormat = "text"
    prefixes: LineConstraints | None = None
    required: LineConstraints | None = None
    minimum_risk: str | None = None
    kept: int = 1
    place: str = ""
    doubtful: dict[str, list[int]] = field(default_factory=lambda: {status: [] for status in _DOUBTS})
    unwritten: set[str] = field(default_factory=set)

    def check(self) -> None:
        """Raise DataError if the request is not possible for any text."""
        if fault := self.engine.decoding.impossible_lengths:
            raise DataError(fault)
        if self.prefixes and self.required and len(self.prefixes.lines) != len(self.required.lines):
            raise self.required.unequal(f"that of --prefix {len(self.prefixes.lines)}")
        files = ("" if constraints is None else str(constraints.path) for constraints in (self.prefixes, self.required))
        self.engine.check(self._request(1, None), *files)

    def check_lines(self, num_lines: int) -> None:
        """Raise DataError if there is not one prefix or list of phrases per line of the text."""
        for constraints in (self.prefixes, self.required):
            if constraints is not None and len(constraints.lines) != num_lines:
                raise constraints.unequal(f"the text {num_lines}")

    def checked(self, reader: LineReader) -> Iterator[str]:
        """Yield the lines of a text; raise DataError at one that is not valid for the task."""
        for number, line in enumerate(reader, start=1):
            if fault := self.engine.task.source_fault(line):
                raise DataError(f"{reader.name}, line {number}: {fault}")
            yield line

    def report_unmet(self, lines: Iterable[str], statuses: Iterable[str]) -> None:
        """Log the lines that lack something required, by their status lines, and note the doubtful ones."""
        unsatisfied, missing = [], list[str]()
        for line, status in zip(lines, statuses, strict=False):  # a file may grow meanwhile
            found = json.loads(status)
            for status in self.doubtful.keys() & found["status"]:
                self.doubtful[status].append(found["line"])
            if doubt := self.engine.task.source_doubt(line):
                self.doubtful.setdefault(doubt, []).append(found["line"])
            if "unmet" in found["status"] and self.engine.task.words(line):
                unsatisfied.append(found["line"])
                missing += found.get("missing", [])
        if unsatisfied:
            first = f"; the first: {missing[0]!r}" if missing else ""
            lines_named = console.listed(unsatisfied)
            log.warning("%sa required prefix, phrase, term or span is missing in %s%s", self.place, lines_named, first)
        self._report_unwritten([text for texts in missing for text in texts.split(" | ")])

    def _report_unwritten(self, texts: Sequence[str]) -> None:
        """Log the characters of texts that are not in the target vocabulary, each once."""
        if self.engine.tokenizer.settings["subwords"] == "none":  # a character is no word
            return
        found = {character for text in set(texts) for character in self.engine.tokenizer.unknown_in(text)}
        if unknown := sorted(found - self.unwritten):
            self.unwritten.update(unknown)
            log.warning(
                "%sno translation can have these characters, as the vocabulary lacks them and data.byte_fallback is "
                "off: %s", self.place, " ".join(unknown)
            )  # fmt: skip

    def report_doubtful(self) -> None:
        """Log the lines that were not read to their end, or whose translations may lack text."""
        for status, numbers in self.doubtful.items():
            if numbers:
                log.warning("%s%s: %s", self.place, _DOUBTS.get(status, status), console.listed(numbers))

    def _request(self, first_line: int, last_line: int | None) -> TranslationRequest:
        prefixes, required = (
            () if constraints is None else tuple(constraints.lines[first_line - 1 : last_line])
            for constraints in (self.prefixes, self.required)
        )
        phrases = tuple([phrase for phrase in line.split("\t") if phrase.strip()] for line in required)
        return dataclasses.replace(self.request, prefixes=prefixes, required=phrases, first_line=first_line)

    def description(self) -> dict[str, Any]:
        """Return all settings, apart from weights and text, that affect the output, as JSON values."""
        glossary = self.request.glossary
        request = dataclasses.asdict(dataclasses.replace(self.request, glossary=None))
        request.pop("before")  # of each window
        request["glossary"] = None if glossary is None else hashlib.sha256(repr(glossary.pairs).encode()).hexdigest()
        for key, constraints in (("prefixes", self.prefixes), ("required", self.required)):
            text = None if constraints is None else "\n".join(constraints.lines).encode("utf-8", "surrogatepass")
            request[key] = text if text is None else hashlib.sha256(text).hexdigest()  # the lines may be many
        return {
            **self.engine.description(),
            # With lists for tuples, as in the manifest that it is compared with.
            "asked": json.loads(json.dumps(request)),
            "output": self.output,
            "minimum_risk": self.minimum_risk,
            "kept": self.kept,
        }

    def translate(
        self,
        window: Window,
        invalid_lines: Sequence[int],
        advance: Callable[[float], None],
        begun: Begun | None = None,
    ) -> Written:
        """Translate a window.

        Args:
            invalid_lines: numbers of lines whose invalid UTF-8 was replaced, in order.
            advance: called repeatedly with the finished share of the window.
            begun: what an earlier session found, to which this one adds.

        Raises:
            DataError: there are fewer prefixes or lists of phrases than lines.
        """
        last_line = window.first_line - 1 + len(window.lines)
        for constraints in (self.prefixes, self.required):
            if constraints is not None and len(constraints.lines) < last_line:
                raise constraints.unequal("the text more")  # the number of lines of a pipe is not known in advance
        # Minimum risk has two steps, sampling and comparison, of unknown duration; each counts as one half.
        steps = 1 if self.minimum_risk is None else 2
        # Not `begun or Begun()`: without translations a `Begun` is false, but it has a file to save them to.
        begun = Begun() if begun is None else begun
        request = dataclasses.replace(self._request(window.first_line, last_line), before=window.before)

        def save_and_advance(share: float) -> None:
            begun.save(interval=SAVE_SECONDS)
            advance(share / steps)

        results = self.engine.translations(
            window.lines, request, batching=self.batching, advance=save_and_advance, found=begun
        )
        if self.minimum_risk is not None:
            from nmtkit.decoding.sampling import by_expected_utility  # imports torch

            begun.save()  # the comparison may take long, and a kill may end it
            tokenizer = self.engine.tokenizer.in_direction(self.request.target_language, self.request.source_language)
            utility = sentence_utility(self.minimum_risk, tokenizer.languages[1])
            for index, samples in enumerate(results):
                order = by_expected_utility([sample.text for sample in samples], utility)[: self.kept]
                results[index] = [samples[number] for number in order]
                advance(0.5 + 0.5 * (index + 1) / len(results))
        written = Written([], [])
        invalid = set(invalid_lines[bisect.bisect_left(invalid_lines, window.first_line) :])
        is_number = self.engine.tokenizer.label_type == "number"
        for number, (source, translations) in enumerate(zip(window.lines, results, strict=True), window.first_line):
            written.output.extend(format_output(self.output, number, source, translations, is_number=is_number))
            status = line_status(source, translations[0], invalid_utf8=number in invalid)
            missing = _missing(translations[0], request, number - window.first_line)
            fields = {"line": number, "status": status, **({"missing": missing} if missing else {})}
            written.status.append(json_line(fields))
        return written


def _missing(best: Translation, request: TranslationRequest, index: int) -> list[str]:
    """Return the terms, spans, phrases and the prefix that the translation of a line lacks."""
    if not best.is_unsatisfied:
        return []
    stated = [*request.prefixes[index : index + 1], *(request.required[index] if request.required else ())]
    stated = [text for text in stated if text.strip()]
    return [*best.missing, *(text for text in stated if text.strip() not in best.text)] or stated  # within other words


def most_lines(request: TranslationRequest) -> int:
    """Return the maximum lines per window, fewer than ``WINDOW_LINES`` with many translations per line."""
    return max(1, 8 * WINDOW_LINES // max(8, request.n_best))


def equal_windows(num_lines: int, num_processes: int, most: int) -> int:
    """Return the lines per window, at most ``most``, that give all processes equal shares."""
    rounds = max(1, math.ceil(num_lines / (most * num_processes)))
    return max(1, math.ceil(num_lines / (rounds * num_processes)))


def translate_windows(
    lines: Iterable[str],
    translate: Callable[[Window, Callable[[float], None], Begun], Written],
    parts: Parts,
    *,
    rank: int = 0,
    num_processes: int = 1,
    context: int = 0,
    advance: Callable[[int], None] = lambda done: None,
) -> int:
    """Translate the unfinished windows of this process, and return the number of windows of all processes.

    Args:
        translate: function that translates a window; it may call its second argument with the finished share, and adds
            what it finds to the third.
        context: number of lines before a window that the model needs.
        advance: called with the number of lines translated or passed over so far.
    """

    def advance_within(share: float) -> None:
        advance(done + int(share * len(window.lines)))

    count = done = 0
    for window in windows(lines, parts.window_lines, context):
        count += 1
        if window.number % num_processes == rank and not parts.has(window.number):
            begun = parts.begun(window.number)
            try:
                parts.write(window.number, translate(window, advance_within, begun))
            except SystemExit:  # by a signal; it may also come while the window is written
                if not parts.has(window.number):
                    begun.save()
                raise
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
    title: str | None = None,
    record: Callable[[], None] = lambda: None,
) -> LineReader:
    """Translate a file, possibly together with other processes; windows that are already finished are kept.

    Args:
        status: file to write the status of each line to.
        strict: raise at invalid UTF-8 instead of replacing it.
        window_lines: by default see `equal_windows`.
        title: of the progress; by default the activity of the task.
        record: called by the first process when the output is written, before the finished windows are removed.

    Returns:
        The reader of the source, with its invalid lines.
    """
    job.check()
    snapshot = Snapshot(source)
    # All lines are checked before the first is translated.
    total = sum(1 for _ in job.checked(local_lines(source, "strict" if strict else "replace")))
    job.check_lines(total)
    reader = local_lines(source, "replace")
    lines = iter(reader)
    rank, num_processes = (workers.rank, workers.num_processes) if workers else (0, 1)
    made_of = {"models": list(job.engine.weights_sha256), "input": snapshot.sha256, "lines": total, **job.description()}
    parts = Parts(output, made_of, window_lines or equal_windows(total, num_processes, most_lines(job.request)))
    with ExitStack() as stack:
        finished = 0
        if rank == 0:
            stack.enter_context(parts.locked(job.engine.task.command))
            finished = min(parts.begin() * parts.window_lines, total)
            begun = parts.num_begun()
            done = [counted(finished, "line")] * bool(finished) + [counted(begun, "sentence")] * bool(begun)
            if done:
                log.info("resuming after %s", " and ".join(done))
        if workers:
            workers.wait()
            parts.check()
        with console.progress(title or job.engine.task.activity, total, start=finished) as advance:
            count = translate_windows(
                itertools.islice(lines, total),  # as it may grow, and all processes have to see the same lines
                lambda window, advance_within, begun: job.translate(
                    window, reader.invalid_lines, advance_within, begun
                ),
                parts,
                rank=rank,
                num_processes=num_processes,
                context=job.engine.tokenizer.context,
                advance=lambda done: advance(done, note=counted(done, "line")),
            )
            if snapshot.is_changed():
                parts.disown()
                raise snapshot.changed()
            if rank == 0 and next(lines, None) is not None:
                log.warning("%s has grown meanwhile; only its first %s are translated", source, counted(total, "line"))
            parts.wait_for(count)  # without a time limit, which the exchange below has
        if workers:
            workers.wait()
        if rank == 0:
            # Before `join`, which removes the status lines with the folder.
            job.report_unmet(local_lines(source, "replace"), parts.statuses(count))
            parts.join(count, [("output", output), *([("status", status)] if status is not None else [])], record)
            job.report_doubtful()
    return reader
