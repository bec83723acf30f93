"""The rules of [cleaning]: find those that a training pair breaks, and apply their actions.

    lines as they are stored -> text -> rules that each pair breaks -> left out | corrected | kept

`BlockExaminer` does this for a block of pairs, in the processes of the first pass of `prepare`; its result depends on
the block only. training_text.py adds up the blocks, stops where an action is "error", and finds the faults that show
only over many pairs (copies, sides of unequal length). Limits on numbers of tokens are checked when subwords are cut
(encoding.py), by `rules_against_lengths`.
"""

import html
import html.entities
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from nmtkit.config.cleaning_schema import CleaningConfig
from nmtkit.config.data_schema import DataConfig
from nmtkit.config.label_kinds import LABEL_KINDS
from nmtkit.data.divergence import are_unrelated
from nmtkit.data.repeats import PairFile, key_of
from nmtkit.errors import DataError
from nmtkit.lines import LineReader
from nmtkit.tasks.known import task_of
from nmtkit.text.normalization import FIELD_MARK, INVISIBLE, NEWLINE, TAB, normalize, without_moses
from nmtkit.text.scripts import Script, language_test

MEANINGS = {
    "line_count": "lines of one side without a counterpart",
    "invalid_utf8": "bytes that are not UTF-8",
    "line_separator": "U+2028, U+2029, U+0085, VT, FF or CR inside a line",
    "bom": "byte-order marks (U+FEFF)",
    "control_character": "control characters",
    "invisible_character": "soft hyphens, zero-width spaces, direction marks",
    "not_nfc": "not in Unicode's form NFC, such as a letter with a separate accent",
    "one_sided_blank": "one side is blank",
    "both_blank": "both sides are blank",
    "html_entity": "HTML entities, such as &amp;",
    "markup": "tags, such as <b>",
    "too_long": "longer than max_characters or max_tokens",
    "length_ratio": "one side much longer than the other",
    "source_equals_target": "both sides are the same",
    "duplicate_pair": "copies of a pair before",
    "duplicate_source": "the source of a pair before",
    "wrong_script": "not in the writing system of its language",
    "swapped_sides": "source and target are exchanged",
    "wrong_language": "in another language than stated",
    "overlap_valid": "also in a validation set",
    "overlap_test": "also in a test set",
}
"""Description of each rule, for messages and reports; each rule is a key of [cleaning] whose value is an action."""
RULES = tuple(MEANINGS)
BLANK_RULES = frozenset({"one_sided_blank", "both_blank"})
HELD_OUT_COPY = "held_out_copy"
"""Reason to leave out a pair without faults: it shares a side with a pair held out for validation or test."""
ALIGNED_PAIRS = 1000
"""Pairs of which it is judged together whether they are aligned."""
SPOOLED, LEFT_OUT, COMPARABLE, TOO_LONG, TOO_MANY_WORDS = 1, 2, 4, 8, 16
"""Bits of the state of a pair: its text is in the spool; it is left out of training although it is in the spool; both
sides have text; it is counted as too long; the spooled text has too many words, so the pair will be left out."""
MAX_WORDS_SHOWN = 150
"""Last bin of the histogram of words per line, for this length and all longer ones."""
EXAMPLES_WITHIN = 1_000_000
"""Number of lines within which the first pair that breaks a rule is quoted in the report."""
_EXCERPT_CHARACTERS = 60
REPORTED_RATIO = 9.0
"""Without max_ratio, pairs are counted in which one side has more than this many times the characters of the other.
Source: the default ratio of clean-corpus-n.perl of Moses."""
_LONGEST_EXPANSION = 18
"""Maximum number of characters into which a step of data.normalize turns one character (NFKC of U+FDFA)."""

_ODD_CHARACTERS: dict[str, tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = {
    # Invalid bytes, as decoded with `surrogateescape`; such bytes nearly always are Windows-1252.
    "invalid_utf8": (
        re.compile("[\ud800-\udfff]"),
        # surrogateescape decodes the byte 0xNN as U+DCNN.
        lambda byte: bytes([ord(byte[0]) & 0xFF]).decode("cp1252", errors="replace"),
    ),
    "line_separator": (re.compile("[\v\f\r\u0085\u2028\u2029]"), " "),
    "bom": (re.compile("\ufeff"), ""),
    "control_character": (re.compile("[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"), ""),
    "invisible_character": (INVISIBLE, ""),
}
"""Characters by rule, and their replacement by the action "fix"."""
_ODD = re.compile(f"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]|{INVISIBLE.pattern}")
"""Any character of the patterns above."""
# Names have an upper limit, so that lines full of "&" take linear time; the longest of HTML has 31 letters.
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# No part reads past the next beginning of its kind, so lines of unfinished tags take linear time.
_TAG = re.compile(
    r"</?(?P<name>[A-Za-z][A-Za-z0-9:_-]*)(?:\s[^<>]*)?/?>"  # <b>, </b>, <br/>, <a href="x">
    r"|<!--(?:(?!<!--).)*?-->|<!\[CDATA\[|\]\]>|<!(?:DOCTYPE|doctype)\b[^<>]*>|<\?[A-Za-z][^<>]*\?>"
)
_BREAKING_TAG = re.compile(r"(?i:br|p|div|li|ul|ol|td|th|tr|table|hr|h[1-6]|title|seg)")
"""Tags that separate words, and are replaced by a blank."""


_is_nfc = partial(unicodedata.is_normalized, "NFC")


class PairExaminer:
    """Function from a pair of lines, as they were read, to the rules that it breaks.

    It runs on every line of large corpora, so a cheap test decides whether to search for a rare fault.
    """

    def __init__(self, data: DataConfig, cleaning: CleaningConfig, max_ratio: float) -> None:
        """Args:
        max_ratio: largest ratio of the characters of the longer and the shorter side; infinite: no limit.
        """
        self._normalize = without_moses(data.normalize)
        self.cuts_sources = data.max_source_tokens is not None
        self._max_tokens = cleaning.max_tokens
        self._max_characters = cleaning.max_characters
        # A line of n words has at least 2 n - 1 characters, so a line of at most this length exceeds neither limit.
        expansion = 1 if set(self._normalize) <= {"blanks"} else _LONGEST_EXPANSION
        by_characters = cleaning.max_characters or sys.maxsize
        by_words = 2 * cleaning.max_tokens or sys.maxsize
        self._surely_short = min(by_characters, by_words) // expansion
        self._max_ratio = max_ratio
        self._scripts = Script(data.source_language), Script(data.target_language)
        is_on = cleaning.wrong_language != "off"
        self._identifiers = [language_test(code) for code in (data.source_language, data.target_language) if is_on]
        self.compares_sides = task_of(data).has_source
        self._has_labels = data.has_labels  # labels have no length or script to compare
        # Exchanged sides can be recognised only if the two languages share no script.
        self._may_be_swapped = not set(self._scripts[0].names) & set(self._scripts[1].names)

    def broken_rules(self, source: str, target: str) -> list[str]:
        """Return the rules that the pair breaks, in the order of RULES."""
        rules: list[str] = []
        # A fast first test: separators, controls, U+FEFF and surrogates are not printable (nor are no-break spaces).
        if not (source.isprintable() and target.isprintable()) and (_ODD.search(source) or _ODD.search(target)):
            rules += [rule for rule, (odd, _) in _ODD_CHARACTERS.items() if odd.search(source) or odd.search(target)]
        if not (source.isascii() and target.isascii()) and not (_is_nfc(source) and _is_nfc(target)):
            rules.append("not_nfc")
        if not source or not target or source.isspace() or target.isspace():
            both = (not source or source.isspace()) and (not target or target.isspace())
            rules.append("both_blank" if both else "one_sided_blank")
        if "&" in source or "&" in target:
            texts = (match[0] for line in (source, target) for match in _ENTITY.finditer(line))
            rules += ["html_entity"] if any(map(_is_entity, texts)) else []
        if ("<" in source or "<" in target) and (_TAG.search(source) or _TAG.search(target)):
            rules.append("markup")
        source_length, target_length = len(source), len(target)
        longer = source_length if source_length > target_length else target_length
        if longer > self._surely_short and self.is_too_long(source, target):
            rules.append("too_long")
        if not self.compares_sides or self._has_labels or (rules and BLANK_RULES.intersection(rules)):
            return rules
        if source_length > self._max_ratio * target_length or target_length > self._max_ratio * source_length:
            rules.append("length_ratio")
        if source == target:
            rules.append("source_equals_target")
        source_script, target_script = self._scripts
        is_foreign = source_script.is_foreign(source), target_script.is_foreign(target)
        if is_foreign[0] or is_foreign[1]:
            swapped = self._may_be_swapped and target_script.is_own(source) and source_script.is_own(target)
            rules.append("swapped_sides" if swapped else "wrong_script")
        if "swapped_sides" not in rules:
            sides = zip(self._identifiers, (source, target), strict=False)
            rules += ["wrong_language"] if any(is_foreign(line) for is_foreign, line in sides) else []
        return rules

    def is_too_long(self, source: str, target: str) -> bool:
        """Return whether a side has too many characters, or more words than a pair may have tokens."""
        return self._exceeds_limit(target) or (not self.cuts_sources and self._exceeds_limit(source))

    def _exceeds_limit(self, line: str) -> bool:
        line = normalize(line, self._normalize)
        if 0 < self._max_characters < len(line):
            return True
        # Each word is at least one token, so a line of too many words has too many tokens.
        limit = self._max_tokens
        return 0 < limit <= line.count(" ") and len(line.split(" ")) - line.split(" ").count("") > limit


def _is_entity(text: str) -> bool:
    return text[1] == "#" or text[1:] in html.entities.html5


def repaired(line: str, rules: Collection[str]) -> str:
    """Return a line with the faults of the given rules corrected, and otherwise unchanged."""
    for rule, (odd, replacement) in _ODD_CHARACTERS.items():
        if rule in rules:
            line = odd.sub(replacement, line)
    if "markup" in rules:  # before entities: an escaped < is text
        line = _TAG.sub(lambda tag: " " if _BREAKING_TAG.fullmatch(tag["name"] or "") else "", line)
    if "html_entity" in rules:
        line = _ENTITY.sub(_unescaped, line)
        if "invisible_character" in rules:
            line = INVISIBLE.sub("", line)
    return unicodedata.normalize("NFC", line) if "not_nfc" in rules else line


def _unescaped(match: re.Match[str]) -> str:
    if not _is_entity(match[0]):
        return match[0]
    text = html.unescape(match[0])
    if text == "\ufeff":
        return ""
    breaks = "\n" in text or (_ODD.search(text) and not INVISIBLE.search(text))  # a line end would break the line
    return " " if breaks else text


def rule_against_text(source: str, target: str, cleaning: CleaningConfig, *, cuts_sources: bool = False) -> str | None:
    """Return the rule by which a pair of normalised lines cannot be trained on, or None.

    Args:
        cuts_sources: no source is too long, as it will be cut.
    """
    blanks = (not source.strip()) + (not target.strip())
    if blanks:
        return "both_blank" if blanks == 2 else "one_sided_blank"
    longest = len(target) if cuts_sources else max(len(source), len(target))
    return "too_long" if 0 < cleaning.max_characters < longest else None


def rules_against_lengths(
    source_tokens: npt.NDArray[np.int64], target_tokens: npt.NDArray[np.int64], cleaning: CleaningConfig
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return for each rule which pairs break it by their numbers of subword tokens, without end symbols [pairs]."""
    longer, shorter = np.maximum(source_tokens, target_tokens), np.minimum(source_tokens, target_tokens)
    rules = {"both_blank": longer == 0, "one_sided_blank": (longer > 0) & (shorter == 0)}
    if cleaning.max_tokens:
        rules["too_long"] = (shorter > 0) & (longer > cleaning.max_tokens)
    if cleaning.max_ratio:
        rules["length_ratio"] = (shorter > 0) & (longer > cleaning.max_ratio * shorter)
    return rules


@dataclass(frozen=True)
class RawBlock:
    """Pairs of one corpus as they are stored."""

    first: int  # number of the first pair, from 1 through all corpora
    lines_before: int  # number of lines of the corpus before this block
    names: tuple[str, str]  # of the sides, for messages
    source: list[bytes]  # lines with their line ends, equally many
    target: list[bytes]

    def readers(self, errors: Literal["strict", "surrogateescape"]) -> tuple[LineReader, LineReader]:
        """Return readers of the text of both sides."""
        reader = partial(LineReader, errors=errors, lines_before=self.lines_before)
        return reader(self.source, name=self.names[0]), reader(self.target, name=self.names[1])


@dataclass
class BlockFindings:
    """The rules that the pairs of a block break."""

    broken: list[tuple[str, int]] = field(default_factory=list)  # each with the number of the pair, in order
    # number and excerpts of both sides of the first pair, by rule
    examples: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)  # pairs left out, by rule

    def add(self, rule: str, number: int, source: str, target: str) -> None:
        """Note that a pair breaks a rule."""
        self.broken.append((rule, number))
        if rule not in self.examples:
            self.examples[rule] = number, excerpt(source), excerpt(target)


@dataclass
class ExaminedBlock(BlockFindings):
    """The result of examining a block."""

    states: bytearray = field(default_factory=bytearray)  # of each pair, one byte each
    # number of lines with 0, 1, ... words, for each side
    words: tuple[Counter[int], Counter[int]] = field(default_factory=lambda: (Counter(), Counter()))
    keys: tuple[bytes, bytes] = (b"", b"")  # of the sources and of the pairs, concatenated
    rows: npt.NDArray | None = None  # of a PairFile, for the pairs kept; None if no pairs are to be held out
    texts: tuple[bytes, bytes] = (b"", b"")  # source and target of the pairs kept, one line each
    carriage_returns: tuple[int, int] = (0, 0)  # removed at the ends of lines, for each side
    byte_order_marks: tuple[bool, bool] = (False, False)  # for each side, whether the corpus began with one
    unrelated: list[int] = field(default_factory=list)  # the first of each 1,000 pairs that look unaligned
    fault: str | None = None  # message about the next pair, which could not be read


class BlockExaminer:
    """Function that examines and cleans a block of pairs."""

    def __init__(
        self,
        data: DataConfig,
        cleaning: CleaningConfig,
        valid_keys: frozenset[bytes],
        test_keys: frozenset[bytes],
        check_only: bool,
        direction: str = "",
    ) -> None:
        """Args:
        valid_keys, test_keys: the keys of the pairs of all validation and of all test sets.
        check_only: nothing is kept, and no rule ends the preparation.
        direction: that of the pairs, where the recipe has several: pairs of others are no copies of theirs.
        """
        self._direction = [direction] if direction else []
        self._steps = without_moses(data.normalize)
        self._cleaning = cleaning
        self._actions = {rule: cleaning.action(rule) for rule in RULES}
        self._valid, self._test = valid_keys, test_keys
        self._check_only = check_only
        self._holds_out = bool(data.held_out) and not check_only
        self._data = data
        self._errors = utf8_errors(cleaning, check_only=check_only)
        ratio = cleaning.max_ratio or (float("inf") if data.has_fields else 0.0)  # a summary is always shorter
        # A ratio of tokens is checked once subwords are cut, which does not happen in a check.
        by_characters = ratio or REPORTED_RATIO if check_only or not ratio else float("inf")
        self._examiner = PairExaminer(data, cleaning, by_characters)

    def __call__(self, block: RawBlock) -> ExaminedBlock:
        result = ExaminedBlock()
        data, sides = self._data, block.readers(self._errors)
        source, target = sides
        broken_rules, checks_overlap = self._examiner.broken_rules, bool(self._valid or self._test)
        known = {"overlap_valid": self._valid, "overlap_test": self._test}
        # Running text has many equal short lines, so its lines are compared only where the recipe asks for it.
        of_text = [rule for rule in known if self._actions[rule] != "keep"]
        words: tuple[list[int], list[int]] = [], []
        lengths: tuple[list[int], list[int]] = [], []
        source_keys, pair_keys = [], []
        kept: list[tuple[int, str, str]] = []
        number = block.first - 1
        try:
            for pair in zip(source, target, strict=True):
                number += 1
                words[0].append(pair[0].count(" ") + 1 if pair[0] else 0)
                words[1].append(pair[1].count(" ") + 1 if pair[1] else 0)
                lengths[0].append(len(pair[0]))
                lengths[1].append(len(pair[1]))
                rules = broken_rules(*pair)
                # The reader has removed the mark, so the patterns do not find it.
                if source.num_lines == 1 and any(side.has_byte_order_mark for side in sides) and "bom" not in rules:
                    rules.append("bom")
                is_comparable = self._examiner.compares_sides and not BLANK_RULES.intersection(rules)
                state = COMPARABLE if is_comparable else 0
                compared_source = comparable_source(data, pair[0])
                key = key_of(compared_source, pair[1])
                source_keys.append(key_of(compared_source, *self._direction))
                pair_keys.append(key_of(compared_source, pair[1], *self._direction) if self._direction else key)
                overlaps: list[str] = []  # rules to check
                if checks_overlap and (state or (of_text and not self._examiner.compares_sides and pair[1] != NEWLINE)):
                    overlaps = [*known] if state else of_text
                    rules += [rule for rule in overlaps if key in known[rule]]
                cleaned: tuple[str, str] | None = pair
                if rules:
                    state |= TOO_LONG if "too_long" in rules else 0
                    cleaned = self._apply(rules, number, *pair, result)
                    # What is fixed may be a pair of these sets, too; a line that is blank by now is none of them.
                    if cleaned is not None and cleaned != pair and cleaned[1] != NEWLINE:
                        key = key_of(comparable_source(data, cleaned[0]), cleaned[1])
                        new = [rule for rule in overlaps if rule not in rules and key in known[rule]]
                        cleaned = self._apply(new, number, *cleaned, result) if new else cleaned
                if cleaned is not None and not self._check_only:
                    state |= SPOOLED
                    if rules and not data.has_labels and self._examiner.is_too_long(*cleaned):
                        state |= TOO_MANY_WORDS
                    kept.append((number, *cleaned))
                result.states.append(state)
        except DataError as error:  # not raised, so that the findings before it are counted first
            result.fault = str(error)
        result.words = Counter(words[0]), Counter(words[1])
        if data.task_name == "translation":
            for begin in range(0, len(lengths[0]), ALIGNED_PAIRS):
                if are_unrelated(*(of_side[begin : begin + ALIGNED_PAIRS] for of_side in lengths)):
                    result.unrelated.append(block.first + begin)
        result.keys = b"".join(source_keys), b"".join(pair_keys)
        sources, targets = ([f"{pair[side]}\n".encode() for pair in kept] for side in (1, 2))
        result.texts = b"".join(sources), b"".join(targets)
        if self._holds_out:
            compared = [(number, *held_out_sides(data, source, target)) for number, source, target in kept]
            result.rows = PairFile.rows(compared, self._steps, (sources, targets))
        result.carriage_returns = source.carriage_returns, target.carriage_returns
        result.byte_order_marks = source.has_byte_order_mark, target.has_byte_order_mark
        return result

    def _apply(
        self, rules: list[str], number: int, source: str, target: str, result: ExaminedBlock
    ) -> tuple[str, str] | None:
        """Note the rules that a pair breaks, and return its text after their actions; None if it is left out."""
        for rule in rules:
            result.add(rule, number, source, target)
        for rule in rules:
            # Pairs of too many words are left out after subwords are learned, as those of too many tokens are; a ratio
            # of characters only stands for that of tokens in a check.
            if self._actions[rule] == "drop" and rule not in ("too_long", "length_ratio"):
                result.dropped[rule] += 1
                return None
        fixes = [rule for rule in rules if self._actions[rule] == "fix"]
        if fixes:  # one may bring about what another corrects: letter and accent together, or an entity
            fixes += [
                rule for rule in ("html_entity", "invisible_character", "not_nfc") if self._actions[rule] == "fix"
            ]
        bytes_alone = [rule for rule in fixes if rule == "invalid_utf8"]
        source, target = (
            repaired(text, fixes if side in task_of(self._data).corrected_sides else bytes_alone)
            for side, text in (("source", source), ("target", target))
        )
        if "swapped_sides" in fixes:
            source, target = target, source
        normalized = normalize(source, self._steps), normalize(target, self._steps)
        unusable = rule_against_text(*normalized, self._cleaning, cuts_sources=self._examiner.cuts_sources)
        if unusable is not None:
            result.dropped[unusable] += 1
            return None
        return source, target


def comparable_source(data: DataConfig, source: str) -> str:
    """Return a source in the form in which copies are looked for: the order of two texts to compare has no meaning."""
    # The mark first, as few texts have it, and every pair of a corpus comes here.
    is_unordered = FIELD_MARK in source and data.has_labels and LABEL_KINDS[data.task_name].is_unordered
    return FIELD_MARK.join(sorted(source.split(FIELD_MARK))) if is_unordered else source


def held_out_sides(data: DataConfig, source: str, target: str) -> tuple[str, str]:
    """Return the sides by which copies of held-out pairs are found: examples with the same label are no copies."""
    if data.has_labels:
        source = target = comparable_source(data, source)
    return source, target


def utf8_errors(cleaning: CleaningConfig, *, check_only: bool) -> Literal["strict", "surrogateescape"]:
    """Return the `errors` argument for decoding training text; with surrogateescape, rules handle invalid bytes."""
    return "strict" if cleaning.action("invalid_utf8") == "error" and not check_only else "surrogateescape"


def excerpt(line: str) -> str:
    """Return the beginning of a line, with invisible characters and control characters escaped."""
    begin = line[:_EXCERPT_CHARACTERS]
    begin = begin.translate({ord(NEWLINE): None, ord(TAB): "\t", ord(FIELD_MARK): "\t"})
    # An invalid byte 0xdf is U+DCDF; it is shown as \xdf.
    visible = "".join(char if char.isprintable() else ascii(char)[1:-1].replace("\\udc", "\\x") for char in begin)
    return visible + "..." * (len(line) > _EXCERPT_CHARACTERS)
