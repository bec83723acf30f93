"""A block of training pairs, examined and cleaned: what each process of the first pass of `prepare` does.

    lines as they are stored -> text -> rules each pair breaks -> left out | corrected | kept

A pure function of the block: counting through all blocks, and stopping where a rule says "error", is for whoever puts
the blocks together (training_text.py).
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from nmtkit.config.schema import CleaningConfig, DataConfig
from nmtkit.data.cleaning import BLANK_RULES, REPORTED_RATIO, RULES, PairExaminer, repaired, rule_against_text
from nmtkit.data.repeats import key_of
from nmtkit.errors import DataError
from nmtkit.files import LineReader
from nmtkit.text.normalization import normalize, without_moses

SPOOLED, LEFT_OUT, COMPARABLE, TOO_LONG = 1, 2, 4, 8
"""What is known of a pair: it is in the spool; it is left out all the same; it has text on both sides; it was counted
as too long."""
MAX_WORDS_SHOWN = 150
"""Longer lines share the last place of the histogram."""


@dataclass(frozen=True)
class RawBlock:
    """Pairs of one corpus as they are stored.

    Attributes:
        first: number of the first pair, from 1 through all corpora.
        lines_before: lines of the corpus before it.
        names: how messages call the sides.
        source, target: lines with their ends, equally many.
    """

    first: int
    lines_before: int
    names: tuple[str, str]
    source: list[bytes]
    target: list[bytes]


@dataclass
class ExaminedBlock:
    """What became of a block.

    Attributes:
        states: what is known of each pair, a byte each.
        broken: the rules that pairs break, with the numbers of the pairs, in order.
        dropped: pairs left out, by the rule that did it.
        words: how many lines have 0, 1, ... words, for each side.
        keys: of the sources and of the pairs, one after the other.
        texts: source and target of the pairs kept, a line each.
        carriage_returns: removed at the ends of lines, for each side.
        byte_order_marks: whether the side began with one.
        fault: why the pairs after the last one here could not be read.
    """

    states: bytearray = field(default_factory=bytearray)
    broken: list[tuple[str, int]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    words: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))
    keys: tuple[bytes, bytes] = (b"", b"")
    texts: tuple[bytes, bytes] = (b"", b"")
    carriage_returns: tuple[int, int] = (0, 0)
    byte_order_marks: tuple[bool, bool] = (False, False)
    fault: str | None = None


class BlockExaminer:
    """Examines and cleans blocks of pairs."""

    def __init__(
        self,
        data: DataConfig,
        cleaning: CleaningConfig,
        valid_keys: frozenset[bytes],
        test_keys: frozenset[bytes],
        check_only: bool,
    ) -> None:
        """Args:
        valid_keys, test_keys: the keys of the pairs of all validation and of all test sets.
        check_only: no rule acts, and nothing is kept.
        """
        self._steps = without_moses(data.normalize)
        self._cleaning = cleaning
        self._actions = {rule: cleaning.action(rule) for rule in RULES}
        self._valid, self._test = valid_keys, test_keys
        self._check_only = check_only
        self._errors = errors_of_reading(cleaning, check_only=check_only)
        ratio = cleaning.max_ratio
        # With a ratio of tokens it is decided after subwords are cut, which a check does not come to.
        by_characters = ratio or REPORTED_RATIO if check_only or not ratio else float("inf")
        self._examiner = PairExaminer(data, cleaning, by_characters)

    def __call__(self, block: RawBlock) -> ExaminedBlock:
        """Examines and cleans a block."""
        found = ExaminedBlock()
        source, target = (
            LineReader(lines, name=name, errors=self._errors, lines_before=block.lines_before)
            for lines, name in zip((block.source, block.target), block.names, strict=True)
        )
        broken_rules, checks_overlap = self._examiner.broken_rules, bool(self._valid or self._test)
        source_words, target_words = [], []
        source_keys, pair_keys = [], []
        kept_source, kept_target = [], []
        number = block.first - 1
        try:
            for one, other in zip(source, target, strict=True):
                number += 1
                source_words.append(one.count(" ") + 1 if one else 0)
                target_words.append(other.count(" ") + 1 if other else 0)
                rules = broken_rules(one, other)
                if source.num_lines == 1 and (source.has_byte_order_mark or target.has_byte_order_mark):
                    rules += [] if "bom" in rules else ["bom"]
                state = COMPARABLE if not rules or not BLANK_RULES.intersection(rules) else 0
                key = key_of(one, other)
                source_keys.append(key_of(one))
                pair_keys.append(key)
                if state and checks_overlap:
                    rules += ["overlap_valid"] if key in self._valid else []
                    rules += ["overlap_test"] if key in self._test else []
                kept: tuple[str, str] | None = (one, other)
                if rules:
                    found.broken += [(rule, number) for rule in rules]
                    state |= TOO_LONG if "too_long" in rules else 0
                    kept = self._treated(one, other, rules, found)
                if kept is not None and not self._check_only:
                    state |= SPOOLED
                    kept_source.append(kept[0])
                    kept_target.append(kept[1])
                found.states.append(state)
        except DataError as error:
            found.fault = str(error)
        found.words = _histogram(source_words), _histogram(target_words)
        found.keys = b"".join(source_keys), b"".join(pair_keys)
        found.texts = _joined(kept_source), _joined(kept_target)
        found.carriage_returns = source.carriage_returns, target.carriage_returns
        found.byte_order_marks = source.has_byte_order_mark, target.has_byte_order_mark
        return found

    def _treated(self, source: str, target: str, rules: list[str], found: ExaminedBlock) -> tuple[str, str] | None:
        """The text of a pair after the actions of the rules it breaks; None when it is left out."""
        if self._check_only:
            return None
        for rule in rules:
            # Of too many words it is left out after subwords are learned, as pairs of too many tokens are.
            if self._actions[rule] == "drop" and rule != "too_long":
                found.dropped[rule] += 1
                return None
        fixes = [rule for rule in rules if self._actions[rule] == "fix"]
        source, target = repaired(source, fixes), repaired(target, fixes)
        if "swapped_sides" in fixes:
            source, target = target, source
        unusable = rule_against_text(normalize(source, self._steps), normalize(target, self._steps), self._cleaning)
        if unusable is not None:
            found.dropped[unusable] += 1
            return None
        return source, target


def errors_of_reading(cleaning: CleaningConfig, *, check_only: bool) -> Literal["strict", "surrogateescape"]:
    """How training text is decoded: bytes that are not UTF-8 end the reading, or stay in the line to be treated."""
    return "strict" if cleaning.action("invalid_utf8") == "error" and not check_only else "surrogateescape"


def _histogram(words: list[int]) -> Counter[int]:
    return Counter(min(count, MAX_WORDS_SHOWN) for count in words)


def _joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8")
