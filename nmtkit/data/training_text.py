"""The first pass of `prepare`: read all training text once, examine and clean it, and spool it as plain text.

    corpora -> blocks of lines (cut at \\n) -> examined and cleaned, by several processes (cleaning.py)
            -> counted and spooled in order   -> error | kept
            -> copies, found by their keys (repeats.py)    -> error | left out | kept
            -> pairs held out for validation and test, and those that share a side with one, left out

Memory grows with the text by one byte per pair only.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from nmtkit.config.data_schema import DataConfig
from nmtkit.config.schema import Recipe
from nmtkit.console import Advance, counted, log, progress
from nmtkit.corpora.corpus import Corpus
from nmtkit.data.cleaning import (
    ALIGNED_PAIRS,
    COMPARABLE,
    EXAMPLES_WITHIN,
    HELD_OUT_COPY,
    LEFT_OUT,
    MAX_WORDS_SHOWN,
    SPOOLED,
    TOO_MANY_WORDS,
    BlockExaminer,
    ExaminedBlock,
    RawBlock,
    comparable_source,
    excerpt,
    held_out_sides,
    utf8_errors,
)
from nmtkit.data.divergence import likely_first_divergent_line
from nmtkit.data.processes import in_order
from nmtkit.data.quality_report import LINES_NAMED, Findings, shown_name
from nmtkit.data.repeats import KeyFile, PairFile, key_of
from nmtkit.data.set_checks import warn_of_first_pair
from nmtkit.errors import DataError
from nmtkit.json_toml import read_json, write_json
from nmtkit.lines import LineReader
from nmtkit.tasks.known import task_of
from nmtkit.text.normalization import without_moses

Pair = tuple[str, str]
HeldOut = tuple[str, str, str, str]
"""A pair that is held out of training: source, target, index of its direction, and its file and line, for messages."""

BLOCK_PAIRS = 10_000
"""Pairs per block: some megabytes of text, a tenth of a second of work."""
BLOCK_BYTES = 16_000_000
"""Size of the text at which a block of very long lines ends."""


@dataclass(frozen=True)
class TextBlock:
    """Pairs of the spool, all of one corpus."""

    corpus: int  # its index
    first: int  # number of the first pair, from 1 through all corpora
    num_before: int  # pairs to train on before these
    states: bytes  # of each pair that was read, one byte each
    source: bytes  # the spooled lines
    target: bytes
    before: tuple[tuple[int, str, str], ...] = ()  # the last lines of the corpus before these, as in `lines`

    def pairs(self) -> Iterator[tuple[int, str, str]]:
        """Yield number, source and target of each pair to train on, in order."""
        return compress(self.lines(), _is_kept(self.states).tolist())

    def lines(self) -> Iterator[tuple[int, str, str]]:
        """Yield number, source and target of each line, "" where its text is not in the spool, in order."""
        sources, targets = (iter(side.decode("utf-8").split("\n")) for side in (self.source, self.target))
        for number, state in enumerate(self.states, start=self.first):
            yield (number, next(sources), next(targets)) if state & SPOOLED else (number, "", "")


class TrainingText:
    """The training pairs that cleaning kept, as plain text on disk.

    Attributes:
        paths: the files of source and target.
        states: of each pair that was read, one byte each.
        words: for each side, the numbers of lines with 0, 1, ... words in the text as it was read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.paths = folder / "source.txt", folder / "target.txt"
        self.states = bytearray()
        self.words: dict[str, list[int]] = {side: [0] * (MAX_WORDS_SHOWN + 1) for side in ("source", "target")}
        self._blocks: list[tuple[int, int, int, int]] = []
        """Index of the corpus, number of pairs, and bytes of source and target of each block."""
        self._sums = hashlib.sha256(), hashlib.sha256()

    def __len__(self) -> int:
        """Return the number of pairs to train on."""
        return int(np.count_nonzero(_is_kept(self.states)))

    def append(self, corpus: int, block: ExaminedBlock, files: tuple[BinaryIO, BinaryIO]) -> None:
        """Write the next block to the open files of source and target."""
        for side in range(2):
            files[side].write(block.texts[side])
            self._sums[side].update(block.texts[side])
        self.states += block.states
        self._blocks.append((corpus, len(block.states), len(block.texts[0]), len(block.texts[1])))
        for counts, words in zip(self.words.values(), block.words, strict=True):
            for length, count in words.items():
                counts[min(length, MAX_WORDS_SHOWN)] += count

    def blocks(self, context: int = 0) -> Iterator[TextBlock]:
        """Yield the text in blocks, in order; each with the ``context`` lines of its corpus before it."""
        begin = num_before = 0
        last: tuple[int, tuple[tuple[int, str, str], ...]] = (0, ())  # corpus and end of the block before
        with self.paths[0].open("rb") as source, self.paths[1].open("rb") as target:
            for corpus, num_pairs, *sizes in self._blocks:
                states = bytes(self.states[begin : begin + num_pairs])
                before = last[1] if last[0] == corpus else ()
                texts = source.read(sizes[0]), target.read(sizes[1])
                block = TextBlock(corpus, begin + 1, num_before, states, *texts, before)
                yield block
                if context:
                    last = corpus, (*before, *block.lines())[-context:]
                begin += num_pairs
                num_before += int(np.count_nonzero(_is_kept(states)))

    def save(self) -> dict[str, str]:
        """Write the states and block sizes beside the text, and return the sha256 sums of the text by file name."""
        (self._folder / "states.bin").write_bytes(self.states)
        write_json(self._folder / "spool.json", {"words": self.words, "blocks": self._blocks})
        return {path.name: total.hexdigest() for path, total in zip(self.paths, self._sums, strict=True)}

    @classmethod
    def load(cls, folder: Path) -> "TrainingText":
        """Load the text that was saved in a folder."""
        text = cls(folder)
        known = read_json(folder / "spool.json")
        text.states = bytearray((folder / "states.bin").read_bytes())
        text.words, text._blocks = known["words"], [tuple(block) for block in known["blocks"]]
        return text


def _is_kept(states: bytes | bytearray) -> npt.NDArray[np.bool_]:
    """Return which pairs are left to train on."""
    return (np.frombuffer(states, np.uint8) & (SPOOLED | LEFT_OUT)) == SPOOLED


class TrainingTextReader:
    """Reader of all training text, in one pass."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        findings: Findings,
        sets: Sequence[list[Pair]],
        *,
        check_only: bool,
        workers: int | None,
    ) -> None:
        """Args:
        folder: where spool and keys are written.
        sets: the pairs of all validation and of all test sets, in the form of training text.
        check_only: spool nothing, and let no rule end the reading.
        workers: processes that examine text.
        """
        self._data = recipe.data
        self._findings = findings
        self._check_only = check_only
        self._folder = folder
        self._workers = workers
        self._errors = utf8_errors(recipe.cleaning, check_only=check_only)
        keys = (
            frozenset(key_of(comparable_source(recipe.data, source), target) for source, target in pairs)
            for pairs in sets
        )
        self._examiner: tuple[Any, ...] = (recipe.cleaning, *keys, check_only)
        self._valid = sets[0]

    def read(self, corpora: list[Corpus]) -> tuple[TrainingText, list[dict[str, Any]], dict[str, list[HeldOut]]]:
        """Read the corpora in turn.

        Returns:
            The text, the counts of each corpus, and the pairs that are held out of the text, by key: valid, test.

        Raises:
            DataError: a file cannot be read, a rule's action is "error", or there are too few pairs to hold out.
        """
        text = TrainingText(self._folder)
        counts = []
        with TemporaryDirectory(dir=self._folder) as keys:
            self._keys = {
                rule: KeyFile(Path(keys) / rule, EXAMPLES_WITHIN) for rule in ("duplicate_pair", "duplicate_source")
            }
            self._pairs = PairFile(Path(keys) / "pairs")
            sources, targets = text.paths
            with sources.open("wb") as source, targets.open("wb") as target, progress("reading", None) as advance:
                names = [shown_name(corpus.name) for corpus in corpora]
                for number, (corpus, name) in enumerate(zip(corpora, names, strict=True)):
                    readers = open_sides(corpus, self._errors)
                    self._findings.begin_corpus(f"{name} (corpus {number + 1})" if names.count(name) > 1 else name)
                    before = self._findings.counts.copy()
                    self._read_corpus(number, readers, text, (source, target), advance)
                    self._check_line_count(corpus, *readers)
                    counts.append(counts_of(*readers))
                    broken = self._findings.counts - before
                    self._findings.check_sides([reader.name for reader in readers], broken, counts[-1]["pairs"])
            self._find_repeats(text)
            self._findings.sort_examples()
            held_out = {} if self._check_only else self._hold_out(text)
        return text, counts, held_out

    def _read_corpus(
        self,
        corpus: int,
        readers: tuple[LineReader, LineReader],
        text: TrainingText,
        files: tuple[BinaryIO, BinaryIO],
        advance: Advance,
    ) -> None:
        """Examine and clean the pairs of a corpus, and append the blocks to the text in order."""
        findings = self._findings
        pending: deque[RawBlock] = deque()  # for excerpts of copies, which are recognised only here
        data = self._data
        direction = data.direction(data.train[corpus])
        group = -1 if corpus in data.ineligible else data.held_out_directions.index(direction)
        examiner = (data.in_direction(direction), *self._examiner, "-".join(direction) if data.has_directions else "")
        blocks = _blocks(*readers, self._errors, findings.num_pairs + 1, pending)
        unrelated = list[int]()
        for block in in_order(BlockExaminer, examiner, blocks, self._workers):
            raw = pending.popleft()
            if not raw.lines_before:
                for pair in islice(zip(*raw.readers("surrogateescape"), strict=False), 1):
                    warn_of_first_pair(raw.names[0], pair, examiner[0])
            unrelated += block.unrelated
            findings.num_pairs += len(block.states)
            findings.add_block(block)
            if block.fault is not None:
                raise DataError(block.fault)
            comparable = (np.frombuffer(block.states, np.uint8) & COMPARABLE) != 0
            for rule, keys in zip(self._keys, (block.keys[1], block.keys[0]), strict=True):
                first = self._keys[rule].add(keys, comparable)
                if first is not None:
                    source, target = next(islice(zip(*raw.readers("surrogateescape"), strict=True), first, None))
                    findings.add_example(rule, raw.first + first, excerpt(source), excerpt(target))
            if block.rows is not None:
                states = np.frombuffer(block.states, np.uint8)[block.rows["number"] - raw.first]
                # Pairs that will be left out for their length are not held out.
                groups = np.where(states & TOO_MANY_WORDS, -1, group)
                # Called before the text is appended, so that the lines begin where the files end now.
                self._pairs.add(block.rows, (files[0].tell(), files[1].tell()), groups)
            text.append(corpus, block, files)
            for side, reader in enumerate(readers):
                reader.carriage_returns += block.carriage_returns[side]
                reader.has_byte_order_mark |= block.byte_order_marks[side]
            advance(findings.num_pairs, counted(findings.num_pairs, task_of(self._data).example))
        if unrelated:
            name, line = findings.place(unrelated[0])
            log.warning(
                "%s: the lengths of the two sides are unrelated from about line %d on, in %s of up to %d pairs; they "
                "may not be each other's translation: see that no line is missing or added on one side",
                name, line, counted(len(unrelated), "stretch"), ALIGNED_PAIRS,
            )  # fmt: skip

    def _check_line_count(self, corpus: Corpus, source: LineReader, target: LineReader) -> None:
        if source.num_lines == target.num_lines:
            return
        numbers = source.num_lines, target.num_lines
        line, message = explain_line_counts(corpus, self._data, *numbers)
        if self._findings.actions["line_count"] == "error" and not self._check_only:
            raise DataError(message)
        log.warning("%s", message)
        self._findings.uneven.append((self._findings.corpora[-1][0], line))
        last = min(line, *numbers)  # the last pair, if the sides diverge after it
        number = self._findings.num_pairs - min(numbers) + last
        self._findings.add("line_count", max(numbers) - min(numbers), (number,) if last else ())
        pairs = zip_longest(*open_sides(corpus, "surrogateescape"), fillvalue="")
        for pair in islice(pairs, line - 1, line):
            self._findings.add_example("line_count", number, *map(excerpt, pair))

    def _find_repeats(self, text: TrainingText) -> None:
        """Count copies among all pairs as they were read; leave them out if the action is "drop"."""
        states = np.frombuffer(text.states, np.uint8)  # shares its memory with text.states, which is changed through it
        for rule, file in self._keys.items():
            count, first = 0, np.zeros(0, np.int64)
            for indices in file.repeats((states & COMPARABLE) != 0):
                count += len(indices)
                first = np.sort(np.concatenate([first, indices[:LINES_NAMED]]))[:LINES_NAMED]
            self._findings.add(rule, count, (first + 1).tolist())
            if self._findings.actions[rule] == "drop" and not self._check_only:
                # The first copy that is still kept stays; an earlier one may be left out by another rule, also later,
                # for its length.
                bits = SPOOLED | LEFT_OUT | COMPARABLE | TOO_MANY_WORDS
                for length in (0, TOO_MANY_WORDS):
                    for indices in file.repeats((states & bits) == (SPOOLED | COMPARABLE | length)):
                        states[indices] |= LEFT_OUT
                        self._findings.dropped[rule] += len(indices)

    def _hold_out(self, text: TrainingText) -> dict[str, list[HeldOut]]:
        """Take distinct pairs out of training for validation and test, and all pairs that share a side with one.

        Every direction gives an equal number of pairs; where that is not possible, the first ones give one more.
        Validation comes first, so its pairs do not depend on data.test.
        """
        states, directions = np.frombuffer(text.states, np.uint8), self._data.held_out_directions
        if not len(text):
            return {}  # the caller reports that nothing is left
        # Pairs that are held out for validation are left out by then; those of validation corpora may be in the text.
        pairs = [(0, *held_out_sides(self._data, source, target)) for source, target in self._valid]
        taken = PairFile.rows(pairs, without_moses(self._data.normalize), ([b""] * len(pairs), [b""] * len(pairs)))
        held_out = {}
        for key, total in self._data.held_out.items():
            share, num_larger = divmod(total, len(directions))
            wanted = [share + (number < num_larger) for number in range(len(directions))]
            found, sharing = self._pairs.hold_out(
                wanted, _is_kept(text.states), taken, across=self._data.has_directions
            )
            for rows, number, direction in zip(found, wanted, directions, strict=True):
                if len(rows) < number:
                    noun, has_valid = task_of(self._data).example, key == "test" and self._data.valid
                    of_direction = f" for {'-'.join(direction)}, whose share is {number}" if len(directions) > 1 else ""
                    raise DataError(
                        f"data.{key} = {total}: the training corpora hold only {len(rows)} different {noun}s "
                        f"{'outside of tagged and generated corpora ' if self._data.ineligible else ''}after cleaning"
                        f"{f' that share no side with a validation {noun}' if has_valid else ''}"
                        f"{of_direction}"
                    )
            chosen = np.concatenate(found)
            states[sharing - 1] |= LEFT_OUT
            self._findings.dropped[HELD_OUT_COPY] += len(sharing) - len(chosen)
            held_out[key] = self._pairs_at(chosen, text)
        return held_out

    def _pairs_at(self, chosen: npt.NDArray, text: TrainingText) -> list[HeldOut]:
        """Return the pairs of rows of a `PairFile`."""
        lines: list[list[str]] = []
        for side, path in enumerate(text.paths):
            with path.open("rb") as file:
                lines.append([])
                for begin in chosen["begins"][:, side].tolist():
                    file.seek(begin)
                    lines[-1].append(file.readline().decode("utf-8").removesuffix("\n"))
        places = [self._findings.place(number) for number in chosen["number"].tolist()]
        groups = [str(number) for number in chosen["group"].tolist()]
        return list(zip(*lines, groups, [f"{name}, line {line}" for name, line in places], strict=True))


def _blocks(
    source: LineReader,
    target: LineReader,
    errors: Literal["strict", "surrogateescape"],
    first: int,
    pending: deque[RawBlock],
) -> Iterator[RawBlock]:
    """Yield the pairs of a corpus in blocks of stored lines; then count the extra lines of the longer side.

    Args:
        errors: how the UTF-8 of these extra lines is checked.
        first: number of the first pair.
        pending: each block is appended to it before it is yielded.
    """
    lines, num_pairs = zip_longest(source.raw_lines(), target.raw_lines()), 0
    surplus: tuple[bytes | None, bytes | None] | None = None
    while surplus is None:
        block, num_bytes = RawBlock(first + num_pairs, num_pairs, (source.name, target.name), [], []), 0
        for pair in lines:
            if pair[0] is None or pair[1] is None:
                surplus = pair
                break
            block.source.append(pair[0])
            block.target.append(pair[1])
            num_bytes += len(pair[0]) + len(pair[1])
            if len(block.source) == BLOCK_PAIRS or num_bytes >= BLOCK_BYTES:
                break
        if not block.source:
            break
        num_pairs += len(block.source)
        pending.append(block)
        yield block
    if surplus is not None:
        side = 0 if surplus[1] is None else 1
        longer, rest = (source, target)[side], (pair[side] or b"" for pair in chain([surplus], lines))
        extra = LineReader(rest, name=longer.name, errors=errors, lines_before=num_pairs)
        deque(extra, maxlen=0)  # reads all
        longer.carriage_returns += extra.carriage_returns
        longer.has_byte_order_mark |= extra.has_byte_order_mark


def open_sides(corpus: Corpus, errors: Literal["strict", "surrogateescape"]) -> tuple[LineReader, LineReader]:
    """Return new readers of both sides."""
    return corpus.source.open(errors=errors), corpus.target.open(errors=errors)


def counts_of(source: LineReader, target: LineReader) -> dict[str, Any]:
    """Return the counts of the readers of a corpus, for the manifest."""
    return {
        "pairs": min(source.num_lines, target.num_lines),
        "byte_order_mark_removed": {"source": source.has_byte_order_mark, "target": target.has_byte_order_mark},
        "carriage_returns_removed": {"source": source.carriage_returns, "target": target.carriage_returns},
    }


def explain_line_counts(corpus: Corpus, data: DataConfig, num_source: int, num_target: int) -> tuple[int, str]:
    """Return the line from which the sides of a corpus probably are not aligned, and the message about it."""
    counts = f"{corpus.source.name} has {counted(num_source, 'line')} but {corpus.target.name} has {num_target}"
    if noun := task_of(data).unrelated_target:
        return min(num_source, num_target) + 1, f"{counts}; each line needs a {noun} on the same line: correct one file"
    sides = open_sides(corpus, "surrogateescape")
    # uint16 is enough for a comparison of lengths, and takes a quarter of the memory of int64.
    lengths = [np.fromiter((min(len(line), 65_535) for line in side), np.uint16) for side in sides]
    line = likely_first_divergent_line(*lengths)
    where = f"by their lengths they no longer are from about line {line} on"
    if line > min(num_source, num_target):
        where = f"by their lengths they are, until the shorter one ends after line {line - 1}"
    return line, f"{counts}; they must be each other's translation line by line: {where}"
