"""The first pass of `prepare`: all training text is read once, examined, cleaned, and spooled as plain text.

    corpora -> blocks of lines (cut at \\n) -> examined and cleaned, by several processes (examination.py)
            -> counted and spooled in order   -> error | what is kept
            -> what repeats, from keys on disk -> error | left out | kept

Memory does not grow with the text but for one byte a pair.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from nmtkit.config.schema import Recipe
from nmtkit.console import Advance, counted, log, progress
from nmtkit.corpora.corpus import Corpus
from nmtkit.data.divergence import likely_first_divergent_line
from nmtkit.data.examination import (
    COMPARABLE,
    LEFT_OUT,
    MAX_WORDS_SHOWN,
    SPOOLED,
    BlockExaminer,
    ExaminedBlock,
    RawBlock,
    errors_of_reading,
)
from nmtkit.data.findings import LINES_NAMED, Findings, shown_name
from nmtkit.data.processes import in_order
from nmtkit.data.repeats import KeyFile
from nmtkit.errors import DataError
from nmtkit.files import LineReader, read_json, write_json

BLOCK_PAIRS = 10_000
"""Pairs handled at once: some megabytes of text, a tenth of a second of work."""
BLOCK_BYTES = 16_000_000
"""Text after which a block of very long lines ends."""


@dataclass(frozen=True)
class TextBlock:
    """Pairs of the spool, all of one corpus.

    Attributes:
        corpus: its number, from 0.
        first: number of the first pair, from 1 through all corpora.
        states: what is known of each pair that was read, one byte each.
        source, target: the lines that were spooled.
    """

    corpus: int
    first: int
    states: bytes
    source: bytes
    target: bytes

    def pairs(self) -> Iterator[tuple[int, str, str]]:
        """Number, source and target of each pair to train on, in order."""
        sources, targets = (iter(side.decode("utf-8").split("\n")) for side in (self.source, self.target))
        for number, state in enumerate(self.states, start=self.first):
            if state & SPOOLED:
                source, target = next(sources), next(targets)
                if not state & LEFT_OUT:
                    yield number, source, target


class TrainingText:
    """Training pairs that cleaning kept, as plain text on disk.

    Attributes:
        paths: the files of source and target.
        states: what is known of each pair that was read, one byte each.
        words: how many lines of the text as it was read have 0, 1, ... words, for each side; the last place: or more.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.paths = folder / "source.txt", folder / "target.txt"
        self.states = bytearray()
        self.words: dict[str, list[int]] = {side: [0] * (MAX_WORDS_SHOWN + 1) for side in ("source", "target")}
        self._blocks: list[tuple[int, int, int, int]] = []
        """Of each block the number of its corpus, its pairs, and the bytes of its source and target."""

    def __len__(self) -> int:
        """The pairs to train on."""
        states = np.frombuffer(self.states, np.uint8)
        return int(np.count_nonzero((states & (SPOOLED | LEFT_OUT)) == SPOOLED))

    def add(self, corpus: int, block: ExaminedBlock) -> None:
        """Notes a block whose text was spooled."""
        self.states += block.states
        self._blocks.append((corpus, len(block.states), len(block.texts[0]), len(block.texts[1])))
        for counts, words in zip(self.words.values(), block.words, strict=True):
            for length, count in words.items():
                counts[length] += count

    def blocks(self) -> Iterator[TextBlock]:
        """The text, in order."""
        begin = 0
        with self.paths[0].open("rb") as source, self.paths[1].open("rb") as target:
            for corpus, num_pairs, *sizes in self._blocks:
                states = bytes(self.states[begin : begin + num_pairs])
                yield TextBlock(corpus, begin + 1, states, source.read(sizes[0]), target.read(sizes[1]))
                begin += num_pairs

    def pairs(self) -> Iterator[tuple[int, str, str]]:
        """Line number (from 1, through all corpora in turn), source and target of each pair to train on, in order."""
        for block in self.blocks():
            yield from block.pairs()

    def leave_out(self, number: int) -> None:
        """Takes a pair, by its line number, out of training."""
        self.states[number - 1] |= LEFT_OUT

    def save(self) -> None:
        """Writes what is known of the text beside it."""
        (self._folder / "states.bin").write_bytes(self.states)
        write_json(self._folder / "spool.json", {"words": self.words, "blocks": self._blocks})

    @classmethod
    def load(cls, folder: Path) -> "TrainingText":
        """The text that was saved in a folder."""
        text = cls(folder)
        known = read_json(folder / "spool.json")
        text.states = bytearray((folder / "states.bin").read_bytes())
        text.words, text._blocks = known["words"], [tuple(block) for block in known["blocks"]]
        return text

    def remove(self) -> None:
        """Deletes the text from disk."""
        for path in self.paths:
            path.unlink()


class TrainingTextReader:
    """Reads all training text; its methods run in the order in which they stand."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        findings: Findings,
        held_apart: tuple[frozenset[bytes], frozenset[bytes]],
        *,
        check_only: bool,
        workers: int | None,
    ) -> None:
        """Args:
        folder: where spool and keys are written.
        held_apart: the keys of the pairs of all validation and of all test sets.
        check_only: nothing is spooled, and no rule ends the reading.
        workers: processes that examine text.
        """
        self._findings = findings
        self._check_only = check_only
        self._folder = folder
        self._workers = workers
        self._errors = errors_of_reading(recipe.cleaning, check_only=check_only)
        self._examiner: tuple[Any, ...] = (recipe.data, recipe.cleaning, *held_apart, check_only)

    def read(self, corpora: list[Corpus], described: Callable[[Corpus, LineReader, LineReader], None]) -> TrainingText:
        """Reads the corpora in turn.

        Args:
            described: told of each corpus when it has been read.

        Raises:
            DataError: a file cannot be read, or a rule's action is "error".
        """
        text = TrainingText(self._folder)
        keys = {name: KeyFile(self._folder / f"keys.{name}") for name in ("source", "pair")}
        try:
            with (
                text.paths[0].open("wb") as source,
                text.paths[1].open("wb") as target,
                progress("reading", None) as advance,
            ):
                for number, corpus in enumerate(corpora):
                    readers = open_sides(corpus, self._errors)
                    self._findings.begin_corpus(shown_name(corpus.name))
                    before = self._findings.count("source_equals_target")
                    self._read_corpus(number, readers, text, keys, (source, target), advance)
                    self._check_line_count(corpus, *readers)
                    num_equal = self._findings.count("source_equals_target") - before
                    self._findings.check_sides(
                        [reader.name for reader in readers], num_equal, min(reader.num_lines for reader in readers)
                    )
                    described(corpus, *readers)
            self._find_repeats(text, keys)
            # Read again up to the last of them, as a repeat is known only now.
            pairs = chain.from_iterable(zip(*open_sides(corpus, "surrogateescape"), strict=False) for corpus in corpora)
            self._findings.note_examples((line, *pair) for line, pair in enumerate(pairs, start=1))
        finally:
            for file in keys.values():
                file.close()
        return text

    def _read_corpus(
        self,
        corpus: int,
        readers: tuple[LineReader, LineReader],
        text: TrainingText,
        keys: dict[str, KeyFile],
        files: tuple[BinaryIO, BinaryIO],
        advance: Advance,
    ) -> None:
        """Has the pairs of a corpus examined and cleaned, and puts the blocks together in order."""
        findings = self._findings
        pairs = _StoredPairs(*readers)
        blocks = pairs.blocks(findings.num_pairs + 1)
        for block in in_order(BlockExaminer, self._examiner, blocks, self._workers):
            findings.num_pairs += len(block.states)
            for rule, number in block.broken:
                findings.add(rule, 1, (number,))
            if block.fault is not None:
                raise DataError(block.fault)
            findings.dropped.update(block.dropped)
            keys["source"].add(block.keys[0])
            keys["pair"].add(block.keys[1])
            for side, reader in enumerate(readers):
                files[side].write(block.texts[side])
                reader.carriage_returns += block.carriage_returns[side]
                reader.has_byte_order_mark |= block.byte_order_marks[side]
            text.add(corpus, block)
            advance(findings.num_pairs, counted(findings.num_pairs, "pair"))
        pairs.check_surplus(self._errors)

    def _check_line_count(self, corpus: Corpus, source: LineReader, target: LineReader) -> None:
        if source.num_lines == target.num_lines:
            return
        line, message = explain_line_counts(corpus, source.num_lines, target.num_lines)
        if self._findings.actions["line_count"] == "error" and not self._check_only:
            raise DataError(message)
        log.warning("%s", message)
        before = self._findings.num_pairs - min(source.num_lines, target.num_lines)
        self._findings.add("line_count", abs(source.num_lines - target.num_lines), (before + line,))

    def _find_repeats(self, text: TrainingText, keys: dict[str, KeyFile]) -> None:
        """Counts copies among all pairs as they were read, and takes them out where that is asked."""
        states = np.frombuffer(text.states, np.uint8)  # the same memory: what is written here is known there
        for rule, file in (("duplicate_pair", keys["pair"]), ("duplicate_source", keys["source"])):
            count, first = 0, np.zeros(0, np.int64)
            for places in file.repeats((states & COMPARABLE) != 0):
                count += len(places)
                first = np.sort(np.concatenate([first, places[:LINES_NAMED]]))[:LINES_NAMED]
            self._findings.add(rule, count, (first + 1).tolist())
            if self._findings.actions[rule] == "drop" and not self._check_only:
                still_kept = (states & (SPOOLED | LEFT_OUT | COMPARABLE)) == (SPOOLED | COMPARABLE)
                for places in file.repeats(still_kept):
                    states[places] |= LEFT_OUT
                    self._findings.dropped[rule] += len(places)


class _StoredPairs:
    """The lines of both sides of a corpus as they are stored, in blocks of pairs, and what the longer side has left."""

    def __init__(self, source: LineReader, target: LineReader) -> None:
        self._sides = source, target
        self._lines = source.raw_lines(), target.raw_lines()
        self._unpaired: tuple[bytes | None, bytes | None] = (None, None)
        self._num_pairs = 0

    def blocks(self, first: int) -> Iterator[RawBlock]:
        """The pairs; the first one has the number ``first`` through all corpora."""
        names = self._sides[0].name, self._sides[1].name
        source_lines, target_lines = self._lines
        while True:
            block = RawBlock(first + self._num_pairs, self._num_pairs, names, [], [])
            num_bytes = 0
            while len(block.source) < BLOCK_PAIRS and num_bytes < BLOCK_BYTES:
                source, target = next(source_lines, None), next(target_lines, None)
                if source is None or target is None:
                    self._unpaired = source, target
                    break
                block.source.append(source)
                block.target.append(target)
                num_bytes += len(source) + len(target)
            self._num_pairs += len(block.source)
            if block.source:
                yield block
            if len(block.source) < BLOCK_PAIRS and num_bytes < BLOCK_BYTES:
                return

    def check_surplus(self, errors: Literal["strict", "surrogateescape"]) -> None:
        """Reads what the longer side has left, once the pairs are through: it is counted, and its UTF-8 checked."""
        for reader, lines, unpaired in zip(self._sides, self._lines, self._unpaired, strict=True):
            if unpaired is not None:
                surplus = LineReader(
                    chain([unpaired], lines), name=reader.name, errors=errors, lines_before=self._num_pairs
                )
                for _ in surplus:
                    pass
                reader.carriage_returns += surplus.carriage_returns
                reader.has_byte_order_mark |= surplus.has_byte_order_mark


def open_sides(corpus: Corpus, errors: Literal["strict", "surrogateescape"]) -> tuple[LineReader, LineReader]:
    """New readers of both sides."""
    source, target = (
        LineReader(side.raw_lines, name=side.name, errors=errors) for side in (corpus.source, corpus.target)
    )
    return source, target


def explain_line_counts(corpus: Corpus, num_source: int, num_target: int) -> tuple[int, str]:
    """The likely first divergent line of a corpus with unequally many lines, and what to say of it."""
    sides = open_sides(corpus, "surrogateescape")
    lengths = [np.fromiter((min(len(line), 65_535) for line in side), np.uint16) for side in sides]
    line = likely_first_divergent_line(*lengths)
    where = f"by their lengths they no longer are from about line {line} on"
    if line > min(num_source, num_target):
        where = f"by their lengths they are, until the shorter one ends after line {line - 1}"
    return line, (
        f"{corpus.source.name} has {counted(num_source, 'line')} but {corpus.target.name} has {num_target}; "
        f"they must be each other's translation line by line: {where}"
    )
