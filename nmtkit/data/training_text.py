"""The first pass of `prepare`: all training text is read once, examined, cleaned, and spooled as plain text.

    corpora -> lines (cut at \\n) -> rules each pair breaks -> error | left out | corrected | kept -> spool
            -> what repeats, from keys on disk              -> error | left out | kept

Memory does not grow with the text but for one byte a pair.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Literal, TextIO

import numpy as np

from nmtkit.config import DataConfig, Recipe
from nmtkit.console import Advance, log, progress
from nmtkit.data.findings import LINES_NAMED, Findings, shown_name
from nmtkit.data.repeats import KeyFile, key_of
from nmtkit.errors import DataError
from nmtkit.files import LineReader
from nmtkit.text.cleaning import BLANK_RULES, REPORTED_RATIO, PairExaminer, repaired, rule_against_text
from nmtkit.text.corpora import Corpus
from nmtkit.text.divergence import likely_first_divergent_line
from nmtkit.text.normalization import normalize, without_moses

SPOOLED, LEFT_OUT, COMPARABLE = 1, 2, 4
"""What is known of a pair: it is in the spool; it is left out all the same; it has text on both sides."""
MAX_WORDS_SHOWN = 150
"""Longer lines share the last place of the histogram."""
_PAIRS_BETWEEN_NOTES = 10_000


class TrainingText:
    """Training pairs that cleaning kept, as plain text on disk.

    Attributes:
        paths: the files of source and target.
        states: what is known of each pair that was read, one byte each.
        words: how many lines of the text as it was read have 0, 1, ... words, for each side; the last place: or more.
    """

    def __init__(self, folder: Path) -> None:
        self.paths = folder / "spool.source", folder / "spool.target"
        self.states = bytearray()
        self.words: dict[str, list[int]] = {side: [0] * (MAX_WORDS_SHOWN + 1) for side in ("source", "target")}

    def __len__(self) -> int:
        """The pairs to train on."""
        states = np.frombuffer(self.states, np.uint8)
        return int(np.count_nonzero((states & (SPOOLED | LEFT_OUT)) == SPOOLED))

    def pairs(self) -> Iterator[tuple[int, str, str]]:
        """Line number (from 1, through all corpora in turn), source and target of each pair to train on, in order."""
        with (
            self.paths[0].open(newline="\n", encoding="utf-8") as source,
            self.paths[1].open(newline="\n", encoding="utf-8") as target,
        ):
            for number, state in enumerate(self.states, start=1):
                if state & SPOOLED:
                    one, other = next(source), next(target)
                    if not state & LEFT_OUT:
                        yield number, one[:-1], other[:-1]

    def leave_out(self, number: int) -> None:
        """Takes a pair, by its line number, out of training."""
        self.states[number - 1] |= LEFT_OUT

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
        held_apart: Mapping[str, set[int]],
        *,
        check_only: bool,
    ) -> None:
        """Args:
        folder: where spool and keys are written.
        held_apart: the keys of the pairs of all validation and of all test sets.
        check_only: nothing is spooled, and no rule ends the reading.
        """
        self._data: DataConfig = recipe.data
        self._cleaning = recipe.cleaning
        self._findings = findings
        self._check_only = check_only
        self._folder = folder
        self._valid, self._test = held_apart["valid"], held_apart["test"]
        is_strict = findings.actions["invalid_utf8"] == "error" and not check_only
        self._errors: Literal["strict", "surrogateescape"] = "strict" if is_strict else "surrogateescape"
        ratio = recipe.cleaning.max_ratio
        # With a ratio of tokens it is decided after subwords are cut, which a check does not come to.
        by_characters = ratio or REPORTED_RATIO if check_only or not ratio else float("inf")
        self._examiner = PairExaminer(recipe.data, recipe.cleaning, by_characters)

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
            with ExitStack() as stack:
                files = [stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in text.paths]
                advance = stack.enter_context(progress("reading", None))
                for corpus in corpora:
                    readers = self._read_corpus(corpus, text, keys, (files[0], files[1]), advance)
                    self._check_line_count(corpus, *readers)
                    described(corpus, *readers)
            self._find_repeats(text, keys)
        finally:
            for file in keys.values():
                file.close()
        return text

    def _read_corpus(
        self,
        corpus: Corpus,
        text: TrainingText,
        keys: dict[str, KeyFile],
        files: tuple[TextIO, TextIO],
        advance: Advance,
    ) -> tuple[LineReader, LineReader]:
        """Examines, cleans and spools the pairs of a corpus."""
        findings, broken_rules = self._findings, self._examiner.broken_rules
        source, target = open_sides(corpus, self._errors)
        source_words, target_words = text.words["source"], text.words["target"]
        findings.begin_corpus(shown_name(corpus.name))
        first = number = findings.num_pairs + 1
        source_lines, target_lines = iter(source), iter(target)
        for number, (one, other) in enumerate(zip(source_lines, target_lines, strict=False), start=first):
            findings.num_pairs = number
            source_words[min(one.count(" ") + 1, MAX_WORDS_SHOWN) if one else 0] += 1
            target_words[min(other.count(" ") + 1, MAX_WORDS_SHOWN) if other else 0] += 1
            rules = broken_rules(one, other)
            if number == first and (source.has_byte_order_mark or target.has_byte_order_mark) and "bom" not in rules:
                rules.append("bom")
            state = COMPARABLE if not rules or not BLANK_RULES.intersection(rules) else 0
            key = key_of((one, other))
            keys["source"].add(key_of(one))
            keys["pair"].add(key)
            if state and key in self._valid:
                rules.append("overlap_valid")
            if state and key in self._test:
                rules.append("overlap_test")
            kept: tuple[str, str] | None = (one, other)
            if rules:
                kept = self._treated(one, other, rules, number)
            if kept is not None and not self._check_only:
                state |= SPOOLED
                files[0].write(f"{kept[0]}\n")
                files[1].write(f"{kept[1]}\n")
            text.states.append(state)
            if number % _PAIRS_BETWEEN_NOTES == 0:
                advance(number, "pairs")
        for _ in chain(source_lines, target_lines):
            pass  # the surplus is counted, and its UTF-8 checked
        return source, target

    def _treated(self, source: str, target: str, rules: list[str], number: int) -> tuple[str, str] | None:
        """The text of a pair after the actions of the rules it breaks; None when it is left out."""
        actions = self._findings.actions
        for rule in rules:
            self._findings.add(rule, number)
        if self._check_only:
            return None
        for rule in rules:
            # Of too many words it is left out after subwords are learned, as pairs of too many tokens are.
            if actions[rule] == "drop" and rule != "too_long":
                self._findings.dropped[rule] += 1
                return None
        fixes = [rule for rule in rules if actions[rule] == "fix"]
        source, target = repaired(source, fixes), repaired(target, fixes)
        if "swapped_sides" in fixes:
            source, target = target, source
        steps = without_moses(self._data.normalize)
        unusable = rule_against_text(normalize(source, steps), normalize(target, steps), self._cleaning)
        if unusable is not None:
            self._findings.dropped[unusable] += 1
            return None
        return source, target

    def _check_line_count(self, corpus: Corpus, source: LineReader, target: LineReader) -> None:
        if source.num_lines == target.num_lines:
            return
        line, message = explain_line_counts(corpus, source.num_lines, target.num_lines)
        if self._findings.actions["line_count"] == "error" and not self._check_only:
            raise DataError(message)
        log.warning("%s", message)
        before = self._findings.num_pairs - min(source.num_lines, target.num_lines)
        self._findings.add_all("line_count", abs(source.num_lines - target.num_lines), (before + line,))

    def _find_repeats(self, text: TrainingText, keys: dict[str, KeyFile]) -> None:
        """Counts copies among all pairs as they were read, and takes them out where that is asked."""
        states = np.frombuffer(text.states, np.uint8)  # the same memory: what is written here is known there
        for rule, file in (("duplicate_pair", keys["pair"]), ("duplicate_source", keys["source"])):
            count, first = 0, np.zeros(0, np.int64)
            for places in file.repeats((states & COMPARABLE) != 0):
                count += len(places)
                first = np.sort(np.concatenate([first, places[:LINES_NAMED]]))[:LINES_NAMED]
            self._findings.add_all(rule, count, (first + 1).tolist())
            if self._findings.actions[rule] == "drop" and not self._check_only:
                still_kept = (states & (SPOOLED | LEFT_OUT | COMPARABLE)) == (SPOOLED | COMPARABLE)
                for places in file.repeats(still_kept):
                    states[places] |= LEFT_OUT
                    self._findings.dropped[rule] += len(places)


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
        f"{corpus.source.name} has {num_source} lines but {corpus.target.name} has {num_target}; "
        f"they must be each other's translation line by line: {where}"
    )
